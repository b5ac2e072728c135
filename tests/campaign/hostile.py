"""Hostile peers: what one client can do without credentials, and how long its neighbours have to wait meanwhile.

The control is the same neighbour at the same broker just before. A stall is a wait of 50 ms more than the longest of
the control, or a loop that is held for 50 ms more of its thread's processor time (see ``loopwatch``), which does not
depend on what else the machine does. What the machine alone brings about does not come three times in a row, so an
attack has three tries.
"""

from __future__ import annotations

import base64
import random
import socket
import time
from collections.abc import Callable
from pathlib import Path

import anyio
import anyio.to_thread
import attrs
import orjson

from tests.campaign import loopwatch
from tests.campaign.loopwatch import WATCH
from tests.campaign.neighbour import Neighbour, resident_mib
from tests.campaign.outcome import Kind, Outcome
from tests.kernel.test_bad_input import DOUBLING
from tests.plugins.batch.test_batch import element
from tests.plugins.txn.peers import peer
from verniermq.kernel import Command, RequestCode
from verniermq.testing import BrokerProcess

STALL_MS = 50.0
CONTROL_SECONDS = 1.0
AFTER_SECONDS = 0.5
ATTACKS_PER_ROUND = 5
TRIES = 3
MARKER = 2**31 - 1

_marker = Command.request(RequestCode.GET_MAX_OFFSET, {"topic": "marker", "queueId": "0"})
_marker.opaque = MARKER
MARKER_FRAME = _marker.encode()


def frame(code: int, fields: dict[str, object] | None = None, body: bytes = b"") -> bytes:
    command = Command.request(code, {name: str(value) for name, value in (fields or {}).items()}, body)
    command.opaque = 1
    return command.encode()


@attrs.frozen
class Attack:
    """Bytes for each of its connections."""

    payloads: list[bytes]
    is_answered: bool = True
    """Whether to wait for the answers; the others are left alone for a moment, with nobody who reads."""


def _send(topic: str, body: bytes = b"x", properties: str = "", code: int = RequestCode.SEND_MESSAGE_V2) -> bytes:
    fields: dict[str, object] = {
        "a": "p", "b": topic, "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0, "i": properties,
        "m": str(code == RequestCode.SEND_BATCH_MESSAGE).lower(),
    }  # fmt: skip
    return frame(code, fields, body)


def _pull(topic: str, suspend: int, offset: int = 0, subscription: str = "*", kind: str = "TAG") -> bytes:
    fields: dict[str, object] = {
        "consumerGroup": "hostile", "topic": topic, "queueId": 0, "queueOffset": offset, "maxMsgNums": 32,
        "sysFlag": 6 if suspend else 4, "commitOffset": 0, "suspendTimeoutMillis": suspend,
        "subscription": subscription, "subVersion": 0, "expressionType": kind,
    }  # fmt: skip
    return frame(RequestCode.PULL_MESSAGE, fields)


def _heartbeat(client: str, groups: list[str], topics: list[str]) -> bytes:
    subscriptions = [{"topic": topic, "subString": "*", "expressionType": "TAG"} for topic in topics]
    consumers = [
        {"groupName": group, "messageModel": "CLUSTERING", "subscriptionDataSet": subscriptions} for group in groups
    ]
    return frame(RequestCode.HEART_BEAT, {}, orjson.dumps({"clientID": client, "consumerDataSet": consumers}))


def references() -> Attack:
    body = f'{{"consumerGroup":"g","clientId":"c","mqSet":{{"$ref":"$.a39"}},{DOUBLING}}}'.encode()
    return Attack([frame(code, {}, body) * 5 for code in (RequestCode.LOCK_BATCH_MQ, RequestCode.HEART_BEAT, 200, 401)])


def deep_json() -> Attack:
    bodies = [b'{"groupName":"g","deep":' + b'{"a":' * n + b"1" + b"}" * (n + 1) for n in (300, 50_000)]
    bodies += [b"[" * 100_000, b'{"a":' * 50_000, b"[" + b"[]," * 110_000 + b"1]", b"{" + b"0:0," * 20_000 + b"0:0}"]
    return Attack(
        [b"".join([frame(code, {}, body) for body in bodies]) for code in (34, 41, 200, 225, 401, 18, 200151)]
    )


def huge_batches() -> Attack:
    batches = [b"".join([element(b"%d" % number) for number in range(count)]) for count in (8_000, 60_000)]
    return Attack([_send("hostile", batch, code=RequestCode.SEND_BATCH_MESSAGE) for batch in batches])


def held_pulls() -> Attack:
    return Attack([_send("hostile-held") + _pull("hostile-held", 20_000, 1_000_000) * 10_000] * 6)


def acknowledgement_bits() -> Attack:
    bits = base64.b64encode(b"\xff" * 32_768).decode()
    ack = {"b": bits, "c": "g", "it": 60_000, "pt": 1, "q": 0, "r": "0", "rq": 0, "so": 0, "t": "hostile"}
    body = orjson.dumps({"acks": [ack] * 8, "brokerName": "broker-a"})
    return Attack([_send("hostile") + frame(RequestCode.BATCH_ACK_MESSAGE, {}, body) * 3])


def many_groups() -> Attack:
    return Attack([_heartbeat("hostile", [f"hostile-{number}" for number in range(20_000)], ["hostile"])])


def many_members() -> Attack:
    beats = b"".join([_heartbeat(f"hostile-{number}", ["hostile"], ["hostile"]) for number in range(3_000)])
    asks = frame(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "hostile"}) * 20
    return Attack([beats + asks + frame(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "hostile"}) * 5])


def many_subscriptions() -> Attack:
    return Attack([_heartbeat("hostile", ["hostile"], [f"hostile-{number}" for number in range(50_000)])])


def many_locks() -> Attack:
    queues = [{"topic": "hostile", "brokerName": "broker-a", "queueId": number} for number in range(100_000)]
    body = orjson.dumps({"consumerGroup": "hostile", "clientId": "c", "mqSet": queues})
    return Attack([frame(RequestCode.LOCK_BATCH_MQ, {}, body) * 2])


def many_queues() -> Attack:
    made = b"".join([
        frame(17, {
            "topic": f"hostile-{queues}", "defaultTopic": "TBW102", "readQueueNums": queues, "writeQueueNums": queues,
            "perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false",
        })
        for queues in (4_096, 65_536)
    ])  # fmt: skip
    asks = [frame(code, {"topic": f"hostile-{queues}", "consumerGroup": "hostile", "group": "hostile"})
            for code in (202, 208, 300, 343) for queues in (4_096, 65_536)]  # fmt: skip
    return Attack([made + b"".join(asks) * 2])


def many_topics() -> Attack:
    return Attack([b"".join([_send(f"hostile-topic-{number}") for number in range(2_000)])])


def flood() -> Attack:
    """Nothing wrong with any request, but very many at once."""
    return Attack([_send("neighbour") * 2_000] * 64)


def flood_of_a_new_topic() -> Attack:
    """The same to a topic that has to be made and saved first; each time another one."""
    return Attack([_send(f"hostile-new-{time.time_ns()}") * 2_000] * 64)


def flood_of_pulls() -> Attack:
    filled = b"".join([_send("hostile-pulled", b"x" * 100) for _ in range(64)])
    return Attack([filled + _pull("hostile-pulled", 0) * 500 for _ in range(64)])


def sql() -> Attack:
    bombs = [
        "(" * 2_000 + "a = 1" + ")" * 2_000, " OR ".join(["a = 1"] * 600), "NOT " * 1_000 + "a = 1",
        "a IN (" + ",".join(["'x'"] * 900) + ")", "a LIKE '" + "%a" * 1_500 + "'", "a = " + "9" * 4_000,
        " AND ".join(["a BETWEEN 1 AND 2"] * 200), "((((" * 500,
    ]  # fmt: skip
    return Attack([_send("hostile-sql", properties="a\x01aaaaaaaa\x02") + b"".join(
        [_pull("hostile-sql", 0, subscription=bomb, kind="SQL92") for bomb in bombs]
    ) * 10])  # fmt: skip


def half_frames() -> Attack:
    whole = frame(RequestCode.GET_ALL_TOPIC_CONFIG, {"a": "b" * 1_000})
    return Attack([whole[: 1 + number * 5 % len(whole)] for number in range(300)], is_answered=False)


def slow_readers() -> Attack:
    filled = b"".join([_send("hostile-slow", b"x" * 30_000) for _ in range(64)])
    return Attack([filled + _pull("hostile-slow", 0) * 500 for _ in range(10)], is_answered=False)


def noise() -> Attack:
    chance = random.Random(4711)
    return Attack([chance.randbytes(chance.randrange(1, 4_000)) for _ in range(300)], is_answered=False)


ATTACKS: tuple[Callable[[], Attack], ...] = (
    references, deep_json, huge_batches, held_pulls, acknowledgement_bits, many_groups, many_members,
    many_subscriptions, many_locks, many_queues, many_topics, flood, flood_of_a_new_topic, flood_of_pulls,
    sql, half_frames, slow_readers, noise,
)  # fmt: skip


def strike(address: str, attack: Attack) -> None:
    """Carry it out with blocking sockets, for a thread: whoever measures is busy with nothing else."""
    host, _, port = address.rpartition(":")
    peers = [socket.create_connection((host, int(port)), timeout=30) for _ in attack.payloads]
    try:
        for peer_, payload in zip(peers, attack.payloads, strict=True):
            try:
                peer_.sendall(payload + MARKER_FRAME if attack.is_answered else payload)
            except OSError:
                pass  # it was closed, or nobody reads any more
        if not attack.is_answered:
            time.sleep(1)
        for peer_ in peers if attack.is_answered else []:
            _until_marker(peer_)
    finally:
        for peer_ in peers:
            peer_.close()


def _until_marker(peer_: socket.socket) -> None:
    received = b""
    try:
        while b'"opaque":2147483647' not in received:
            piece = peer_.recv(1 << 20)
            if not piece:
                return
            received = received[-40:] + piece
    except OSError:
        return


@attrs.frozen
class Measured:
    neighbour: Neighbour
    held_ms: float
    """The longest hold of the loop, in processor time."""
    stack: str
    """Where it was, if it was long."""

    def exceeds(self, control: Measured, allowed_ms: float) -> bool:
        waited = self.neighbour.longest_ms > control.neighbour.longest_ms + allowed_ms
        return waited or self.held_ms > control.held_ms + allowed_ms


async def _measured(process: BrokerProcess, outcome: Outcome, name: str, attack: Attack | None) -> Measured:
    """A neighbour's life beside an attack, or for a while without one."""
    neighbour = Neighbour(process.broker, process.pid, outcome, name)
    async with peer(process.broker, f"watch-{name}") as watch, anyio.create_task_group() as tasks:
        await watch.ask(WATCH, {"do": "begin"})
        tasks.start_soon(neighbour.live)
        if attack is None:
            await anyio.sleep(CONTROL_SECONDS)
        else:
            await anyio.to_thread.run_sync(strike, process.broker, attack)
            await anyio.sleep(AFTER_SECONDS)
        tasks.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            seen = await watch.ask(WATCH, {"do": "end"})
    return Measured(neighbour, float(seen.ext["held_ms"]), bytes(seen.body).decode())


async def attack(seed: int, folder: Path, count: int = ATTACKS_PER_ROUND, allowed_ms: float = STALL_MS) -> Outcome:
    chance = random.Random(seed)
    outcome = Outcome(rounds=0)
    process = BrokerProcess(folder / "store", [f'--set=plugins.enable=["default", "{loopwatch.__file__}"]'])
    process.start()
    try:
        neighbours = []
        for number, make in enumerate(chance.sample(ATTACKS, count)):
            tries: list[tuple[Measured, Measured]] = []
            for again in range(TRIES):
                built = make()
                control = await _measured(process, outcome, f"c{number}{again}", None)
                beside = await _measured(process, outcome, f"a{number}{again}", built)
                neighbours += [control.neighbour, beside.neighbour]
                outcome.rounds += 1
                outcome.checked += len(control.neighbour.waits) + len(beside.neighbour.waits)
                tries.append((beside, control))
                if not beside.exceeds(control, allowed_ms):
                    break
            _judge(outcome, f"seed {seed}: {make.__name__}", tries, allowed_ms)
        outcome.notes["largest broker, MiB"] = round(resident_mib(process.pid))
        async with peer(process.broker) as client:
            for neighbour in neighbours:
                await neighbour.check(client)
        await anyio.to_thread.run_sync(process.stop)
    finally:
        process.kill()
    said = process.log.read_text(errors="replace")
    outcome.expect("Traceback" not in said, "wrong", f"seed {seed}: {said[said.find('Traceback') :][:1500]}")
    return outcome


def _judge(outcome: Outcome, what: str, tries: list[tuple[Measured, Measured]], allowed_ms: float) -> None:
    """The best of the tries counts, for the wait and for the hold."""
    wait, waited = min((beside.neighbour.longest_ms, control.neighbour.longest_ms) for beside, control in tries)
    held, control = min(tries, key=lambda pair: pair[0].held_ms)
    outcome.stall_ms, outcome.control_ms = max(outcome.stall_ms, wait), max(outcome.control_ms, waited)
    outcome.hold_ms = max(outcome.hold_ms, held.held_ms)
    outcome.hold_control_ms = max(outcome.hold_control_ms, control.held_ms)
    outcome.expect(
        wait <= waited + allowed_ms, "stalled", f"{what} had a neighbour wait {wait:.0f} ms, without it {waited:.0f} ms"
    )
    outcome.expect(
        held.held_ms <= control.held_ms + allowed_ms, "stalled",
        f"{what} held the loop for {held.held_ms:.0f} ms, without it {control.held_ms:.0f} ms: {held.stack}",
    )  # fmt: skip


def run(seed: int, folder: Path) -> Outcome:
    return anyio.run(attack, seed, folder)


KIND = Kind(
    "hostile",
    "sends",
    "One peer's attack makes no neighbour wait, and holds the loop, no 50 ms longer than without it.",
    run,
)
