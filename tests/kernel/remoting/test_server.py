"""Servers: who may connect, for how long, and how it ends."""

from __future__ import annotations

import asyncio
import logging
import random

import attrs
import pytest

from verniermq.kernel.codes import ResponseCode
from verniermq.kernel.errors import ListenFailed, PeerUnreachable
from verniermq.kernel.remoting import Command, Connection, RemotingLimits, RemotingServer, connect

from .conftest import Listen
from .test_frame import BAD_FRAMES

pytestmark = pytest.mark.anyio

ECHO, WAIT = 1, 2


def echo(request: Command, connection: Connection) -> Command:
    return request.reply(0, body=request.body)


@attrs.define
class Clock:
    """Time that a test moves by hand."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


# --- peers that misbehave ------------------------------------------------------------------


@pytest.mark.parametrize("name", [*BAD_FRAMES, "random"])
async def test_a_bad_peer_is_closed_after_its_good_requests_and_others_go_on(
    listening: Listen, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    bad = BAD_FRAMES[name][0] if name in BAD_FRAMES else b"\xff" + random.Random(7).randbytes(100_000)
    async with listening({ECHO: echo}) as there:
        good_peer, bad_peer = await there.raw_peer(), await there.raw_peer()

        await bad_peer.send(Command(ECHO, opaque=5).encode() + bad)

        assert (await bad_peer.receive()).opaque == 5
        assert await bad_peer.is_closed()
        await good_peer.send(Command(ECHO, opaque=6))
        assert (await good_peer.receive()).opaque == 6
        warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert ["its bytes are no frame" in record.getMessage() for record in warnings] == [True]


async def test_half_a_frame_and_then_nothing_leaves_nothing_behind(listening: Listen) -> None:
    gone = asyncio.Event()
    async with listening({ECHO: echo}, on_disconnect=lambda _: gone.set()) as there:
        peer = await there.raw_peer()
        await peer.send(Command(ECHO, body=bytes(100)).encode()[:50])

        await peer.close()
        await gone.wait()

        assert there.server.connections == set()


# --- who may connect -----------------------------------------------------------------------


async def test_one_connection_too_many_is_closed_and_there_is_room_again_later(
    listening: Listen, caplog: pytest.LogCaptureFixture
) -> None:
    gone = asyncio.Event()
    limits = RemotingLimits(max_connections=2)
    async with listening({ECHO: echo}, limits=limits, on_disconnect=lambda _: gone.set()) as there:
        first, second = await connect(there.address), await connect(there.address)
        await first.request(Command.request(ECHO))
        await second.request(Command.request(ECHO))

        third = await there.raw_peer()
        assert await third.is_closed()
        assert "max_connections=2" in caplog.text
        assert not gone.is_set()

        first.close()
        await gone.wait()
        fourth = await connect(there.address)
        assert (await fourth.request(Command.request(ECHO))).code == 0
        second.close()
        fourth.close()


async def test_callbacks_hear_of_each_connection_once(listening: Listen) -> None:
    heard: list[str] = []
    gone = asyncio.Event()

    def leave(connection: Connection) -> None:
        heard.append(f"gone {connection.peer_address}")
        gone.set()

    async with listening(
        {ECHO: echo}, on_connect=lambda connection: heard.append(f"new {connection.peer_address}"), on_disconnect=leave
    ) as there:
        peer = await there.raw_peer()
        await peer.send(Command(ECHO))
        await peer.receive()
        _, port = peer.writer.get_extra_info("sockname")
        await peer.close()
        await gone.wait()

        assert heard == [f"new 127.0.0.1:{port}", f"gone 127.0.0.1:{port}"]


async def test_several_listeners_share_the_handlers(listening: Listen) -> None:
    async with listening({ECHO: echo}) as there:
        other_port = await there.server.listen("127.0.0.1", 0)
        connection = await connect(f"127.0.0.1:{other_port}")

        assert (await connection.request(Command.request(ECHO, body=b"hi"))).body == b"hi"
        assert there.server.addresses == [("127.0.0.1", there.port), ("127.0.0.1", other_port)]
        connection.close()


async def test_a_port_in_use_is_named_with_what_to_do(listening: Listen) -> None:
    async with listening({}) as there:
        with pytest.raises(ListenFailed, match=f"127.0.0.1:{there.port}: the port is in use; stop what listens there"):
            await RemotingServer({}).listen("127.0.0.1", there.port)


async def test_a_foreign_address_is_named_with_what_to_do() -> None:
    with pytest.raises(ListenFailed, match=r"192.0.2.1:0: this machine does not have the address"):
        await RemotingServer({}).listen("192.0.2.1", 0)


# --- idle connections ----------------------------------------------------------------------


async def test_a_connection_on_which_nothing_happens_is_closed(listening: Listen) -> None:
    clock = Clock()
    async with listening({ECHO: echo}, clock=clock) as there:
        idle, busy = await there.raw_peer(), await there.raw_peer()
        for peer in (idle, busy):
            await peer.send(Command(ECHO))
            await peer.receive()

        clock.now += 119
        await busy.send(Command(ECHO))
        await busy.receive()
        assert there.server.close_idle() == 0
        clock.now += 1
        assert there.server.close_idle() == 1

        assert await idle.is_closed()
        await busy.send(Command(ECHO))
        assert (await busy.receive()).code == 0


async def test_a_connection_that_is_only_written_to_is_not_idle(listening: Listen) -> None:
    clock = Clock()
    held: list[tuple[Command, Connection]] = []
    async with listening({WAIT: lambda *it: held.append(it), ECHO: echo}, clock=clock) as there:
        peer = await there.raw_peer()
        await peer.send(Command(WAIT, opaque=1), Command(ECHO))
        await peer.receive()

        clock.now += 119
        request, connection = held[0]
        connection.answer(request, request.reply())
        assert (await peer.receive()).opaque == 1
        clock.now += 119

        assert there.server.close_idle() == 0


async def test_the_sweep_closes_idle_connections_by_itself(listening: Listen) -> None:
    async with listening({}, limits=RemotingLimits(idle_seconds=0.02)) as there:
        peer = await there.raw_peer()

        assert await peer.is_closed()


# --- stopping ------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "code"), [(479, ResponseCode.GO_AWAY), (475, ResponseCode.SYSTEM_BUSY)])
async def test_a_graceful_stop_finishes_work_and_sends_new_requests_away(
    listening: Listen, version: int, code: int
) -> None:
    go_on = asyncio.Event()

    async def wait(request: Command, connection: Connection) -> Command:
        await go_on.wait()
        return request.reply(0, body=b"finished")

    async with listening({ECHO: echo, WAIT: wait}) as there:
        peer = await there.raw_peer()
        await peer.send(Command(WAIT, opaque=1), Command(ECHO, opaque=2))
        assert (await peer.receive()).opaque == 2

        stopping = asyncio.create_task(there.server.stop(grace_seconds=30))
        await asyncio.sleep(0)
        await peer.send(Command(ECHO, opaque=3, version=version))
        refused = await peer.receive()
        with pytest.raises(PeerUnreachable):
            await connect(there.address)
        go_on.set()
        finished = await peer.receive()
        await stopping

        assert (refused.opaque, refused.code) == (3, code)
        assert (finished.opaque, finished.body) == (1, b"finished")
        assert await peer.is_closed()


async def test_work_that_outlasts_the_grace_is_cancelled(listening: Listen, caplog: pytest.LogCaptureFixture) -> None:
    cancelled: list[int] = []

    async def forever(request: Command, connection: Connection) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(request.opaque)
            raise

    async with listening({ECHO: echo, WAIT: forever}) as there:
        peer = await there.raw_peer()
        await peer.send(Command(WAIT, opaque=1), Command(ECHO, opaque=2))
        await peer.receive()

        await there.server.stop(grace_seconds=0.01)

        assert cancelled == [1]
        assert "requests cancelled at stop count=1" in caplog.text
        assert await peer.is_closed()


async def test_what_was_answered_is_written_before_the_end(listening: Listen) -> None:
    body = bytes(3_000_000)
    async with listening({ECHO: lambda request, _: request.reply(0, body=body)}) as there:
        peer = await there.raw_peer()
        await peer.send(Command(ECHO))
        chunk = await peer.reader.readexactly(1000)

        stopping = asyncio.create_task(there.server.stop(grace_seconds=30))
        peer.commands += peer.decoder.feed(chunk)
        answer = await peer.receive()
        await stopping

        assert answer.body == body


async def test_a_peer_that_does_not_read_does_not_hold_up_the_end(listening: Listen) -> None:
    async with listening({ECHO: lambda request, _: request.reply(0, body=bytes(12_000_000))}) as there:
        peer = await there.raw_peer()
        await peer.send(Command(ECHO))
        await peer.reader.readexactly(10)

        await there.server.stop(grace_seconds=0.01)

        assert there.server.connections == set()


async def test_stopping_twice_is_fine(listening: Listen) -> None:
    async with listening({}) as there:
        await there.server.stop()
        await there.server.stop()


# --- connecting ----------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["", "nohost", "host:", ":1", "host:x", "host:0", "host:65536", "::1:80", "h:٣"])
async def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(PeerUnreachable, match="is no address"):
        await connect(address)


async def test_nobody_listening_is_a_reason(listening: Listen) -> None:
    async with listening({}) as there:
        address = there.address

    with pytest.raises(PeerUnreachable, match=f"cannot reach {address}: Connection refused"):
        await connect(address)


async def test_a_name_that_does_not_exist_is_a_reason() -> None:
    with pytest.raises(PeerUnreachable, match=r"cannot reach nowhere.invalid:1: the name is unknown"):
        await connect("nowhere.invalid:1", timeout=30)


async def test_ipv6_peers_are_served() -> None:
    seen: list[Connection] = []
    async with RemotingServer({ECHO: echo}, on_connect=seen.append) as server:
        try:
            port = await server.listen("::1", 0)
        except ListenFailed as error:
            pytest.skip(f"no IPv6 here: {error}")
        connection = await connect(f"[::1]:{port}")

        assert (await connection.request(Command.request(ECHO))).code == 0
        assert seen[0].peer_address.startswith("[::1]:")
        assert len(seen[0].packed_host) == 20
        connection.close()
