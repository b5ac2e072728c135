"""What one client can do to the others: a broker in a process of its own, its memory and a control beside it.

``python -m tests.grpc.test_hostile`` shows the figures of each attack.
"""

from __future__ import annotations

import asyncio
import logging
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import attrs
import grpc.aio
import orjson
import pytest

from tests.grpc.rocketmq5 import TOPIC, Client, consumer_settings, named
from verniermq.contrib.grpc.enums import Code
from verniermq.contrib.grpc.schema import proto
from verniermq.kernel import Command, RequestCode, backend_options
from verniermq.protocol.peers import Peers
from verniermq.testing import BrokerProcess, broker_process

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS_FRAME = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
CROWD = 500
"""Receives on one connection. A queue of a group has places for 1024 that wait."""
PATIENCE = 60.0


@attrs.define(eq=False)
class Scene:
    process: BrokerProcess
    endpoint: str
    control: Client
    times: list[float] = attrs.field(factory=list)
    """Seconds that each call of the control took."""
    most_mib: float = 0.0
    """What the broker needed while an attack went on."""

    @property
    def resident_mib(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS:"))

    async def serve_control(self, calls: int = 20) -> None:
        """A client that does nothing special is served."""
        for _ in range(calls):
            began = time.perf_counter()
            sent = await self.control.send(b"control", "control")
            self.times.append(time.perf_counter() - began)
            assert sent.status.code == Code.OK

    async def figures(self) -> dict[str, Any]:
        async with Peers() as peers:
            answer = await peers.ask(self.process.broker, Command.request(RequestCode.GET_BROKER_RUNTIME_INFO))
        return dict(orjson.loads(answer.body)["table"])

    @asynccontextmanager
    async def attacker(self, client_id: str) -> AsyncIterator[Client]:
        # Not the control's connection: gRPC shares one among channels with the same options.
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
        async with grpc.aio.insecure_channel(self.endpoint, options=options) as channel:
            yield Client(channel, {"x-mq-client-id": client_id})


@asynccontextmanager
async def scene(folder: Path) -> AsyncIterator[Scene]:
    settings = ("--set=plugins.enable=default,grpc", "--set=plugins.grpc.port=0")
    with broker_process(folder / "store", *settings) as process:
        async with Peers() as peers:
            answer = await peers.ask(process.broker, Command.request(RequestCode.GET_BROKER_RUNTIME_INFO))
        endpoint = f"127.0.0.1:{orjson.loads(answer.body)['table']['grpcPort']}"
        async with grpc.aio.insecure_channel(endpoint) as channel:
            made = Scene(process, endpoint, Client(channel, {"x-mq-client-id": "control@1"}))
            await made.serve_control()
            yield made


# --- attacks -------------------------------------------------------------------------------


async def wait_in_crowds(scene: Scene, count: int = 1000) -> None:
    """So many receives wait at the same time; the control is served meanwhile, and they end with their client."""
    await scene.control.send(b"one for each group", "few")
    peers, groups = [], []
    for first in range(0, count, CROWD):
        groups.append(f"crowd{first}")
        calls = [receive_frames(2 * number + 1, groups[-1], "few") for number in range(min(count - first, CROWD))]
        peers.append(await open_raw(scene, b"".join(calls)))
        await scene.serve_control(2)
    with anyio.fail_after(PATIENCE):
        while int((await scene.figures())["popWaiting"]) < count - len(groups):  # noqa: ASYNC110
            await anyio.sleep(0.1)
    await scene.serve_control()
    scene.most_mib = scene.resident_mib
    for writer in peers:
        writer.close()
    with anyio.fail_after(PATIENCE):
        while int((await scene.figures())["popWaiting"]) > 0:  # noqa: ASYNC110
            await anyio.sleep(0.1)


async def never_read(scene: Scene, connections: int = 20, calls: int = 8) -> None:
    """Connections on each of which several receives are answered with megabytes that nobody takes."""
    async with scene.attacker("sender@1") as sender:
        for _ in range(40):
            await sender.send(b"x" * 1_000_000, "large")
    peers = []
    for number in range(connections):
        frames = [receive_frames(2 * call + 1, f"deaf{number}-{call}", "large") for call in range(calls)]
        peers.append(await open_raw(scene, b"".join(frames)))
        await scene.serve_control(5)
    scene.most_mib = scene.resident_mib
    for writer in peers:
        writer.close()


async def open_raw(scene: Scene, calls: bytes) -> asyncio.StreamWriter:
    """A connection that makes calls and reads no answer."""
    host, port = scene.endpoint.split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(PREFACE + SETTINGS_FRAME + calls)
    await writer.drain()
    return writer


def receive_frames(stream: int, group: str, topic: str) -> bytes:
    """One ReceiveMessage call as frames of HTTP/2, its headers not compressed."""
    request = proto.ReceiveMessageRequest(batch_size=32, group=named(group), auto_renew=True)
    request.message_queue.topic.name = topic
    body = request.SerializeToString()
    headers = {
        ":method": "POST", ":scheme": "http", ":path": "/apache.rocketmq.v2.MessagingService/ReceiveMessage",
        ":authority": "x", "content-type": "application/grpc", "te": "trailers", "x-mq-client-id": f"{group}@1",
    }  # fmt: skip
    block = b"".join(b"\x00" + _text(name) + _text(value) for name, value in headers.items())
    data = b"\x00" + len(body).to_bytes(4) + body
    return _frame(1, 4, stream, block) + _frame(0, 1, stream, data)


def _text(value: str) -> bytes:
    assert len(value) < 127
    return bytes([len(value)]) + value.encode()


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


async def half_open(scene: Scene, connections: int = 500) -> None:
    """Connections that say nothing, or only begin: plain, TLS, a call without its message."""
    host, port = scene.endpoint.split(":")
    begins = (
        b"",
        b"\x16\x03",
        PREFACE[:10],
        PREFACE + SETTINGS_FRAME,
        PREFACE + SETTINGS_FRAME + b"\x00\x10\x00\x01\x04",
    )
    peers = []
    for number in range(connections):
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(begins[number % len(begins)])
        peers.append(writer)
    await scene.serve_control()
    for writer in peers:
        writer.close()


async def forge(scene: Scene, count: int = 500) -> None:
    """Receipts that are guessed: none acknowledges what another group has in hand."""
    async with scene.attacker("owner@1") as owner, scene.attacker("forger@1") as forger:
        await owner.send(b"mine")
        (message,) = await owner.receive_all(1, group="owners", invisible=600)
        words = message.system_properties.receipt_handle
        tries = [
            words[:-1] + ("1" if words[-1] == "0" else "0"),
            words[:-16] + "0" * 16,
            words.rpartition(" ")[0],
            words[::-1],
            "",
            "\x00" * 1000,
        ]
        codes = set()
        for number in range(count):
            message.system_properties.receipt_handle = tries[number % len(tries)]
            codes.add((await forger.ack(message, group="owners")).code)
        message.system_properties.receipt_handle = words
        of_others = (await forger.ack(message, group="forgers")).code
        assert (codes, of_others) == ({Code.INVALID_RECEIPT_HANDLE}, Code.INVALID_RECEIPT_HANDLE)
        assert (await owner.ack(message, group="owners")).code == Code.OK
    await scene.serve_control()


async def leave_commands_unread(scene: Scene, streams: int = 200) -> None:
    """Telemetry streams of one client that are opened and never read, each telling the same again and again."""
    async with scene.attacker("mute@1") as client:
        calls = []
        for _ in range(streams):
            stream = client.stub("Telemetry")(metadata=tuple(client.metadata.items()))
            for _ in range(10):
                await stream.write(proto.TelemetryCommand(settings=consumer_settings("mute", TOPIC)))
            calls.append(stream)
        await scene.serve_control()


Attack = Callable[[Scene], Awaitable[None]]
ATTACKS: tuple[Attack, ...] = (wait_in_crowds, never_read, half_open, forge, leave_commands_unread)


async def test_a_peer_writes_nothing_into_the_log(tmp_path: Path) -> None:
    async with scene(tmp_path) as made:
        forged = b"\n2026-11-18 12:00:00,000 ERROR forged"
        goodbye = bytes(4) + (2).to_bytes(4) + forged
        frames = len(goodbye).to_bytes(3) + bytes([7, 0]) + bytes(4) + goodbye
        for _ in range(3):
            (await open_raw(made, frames)).close()
        await made.serve_control(2)
        said = made.process.log

    assert "forged" not in said.read_text(errors="replace")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
async def test_one_client_does_no_harm_to_others(attack: Attack, tmp_path: Path) -> None:
    async with scene(tmp_path) as made:
        before = made.resident_mib
        await attack(made)

        assert max(made.most_mib, made.resident_mib) - before < 400
        await made.serve_control()
        assert (await made.control.call("QueryRoute", topic=named(TOPIC))).status.code == Code.OK


# --- by hand -------------------------------------------------------------------------------


async def show() -> None:
    attacks: list[tuple[str, Attack]] = [
        ("10,000 waiting receives", lambda made: wait_in_crowds(made, 10_000)),
        ("100 connections that never read", lambda made: never_read(made, 100)),
        ("2,000 half-open connections", lambda made: half_open(made, 2000)),
        ("10,000 forged receipts", lambda made: forge(made, 10_000)),
        ("1,000 unread telemetry streams", lambda made: leave_commands_unread(made, 1000)),
    ]
    print(f"{'':<34} {'control: median':>16} {'worst':>9} {'alone':>9} {'worst':>9} {'memory':>12}")
    for name, attack in attacks:
        async with anyio.TemporaryDirectory() as folder, scene(Path(folder)) as made:
            made.times.clear()
            await made.serve_control(200)
            alone, before = list(made.times), made.resident_mib
            made.times.clear()
            await attack(made)
            print(
                f"{name:<34} {statistics.median(made.times) * 1000:13.1f} ms {max(made.times) * 1000:6.0f} ms "
                f"{statistics.median(alone) * 1000:6.1f} ms {max(alone) * 1000:6.0f} ms "
                f"{before:5.0f} -> {max(made.most_mib, made.resident_mib):.0f} MiB",
                flush=True,
            )


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    anyio.run(show, backend_options=backend_options())
