"""What producers were told and readers saw, and what must be so at the end.

- what was acknowledged is in the queues of every replica;
- a queue offset names the same message for all readers, of all brokers, at all times;
- what one producer sent to one queue lies in the order in which it was acknowledged;
- nothing is acknowledged by the master of a term once that of a later one has acknowledged something;
- the logs of all replicas are equal, byte for byte, and their queues are what the log says.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import anyio
import attrs

from tests.campaign.outcome import Outcome
from tests.campaign.replicas import Group
from verniermq.kernel import Command, RemotingError, RequestCode, ResponseCode, decode_records
from verniermq.plugins.ha import epochfile
from verniermq.plugins.ha.coordinator import CoordinatorTrouble, Snapshot
from verniermq.plugins.ha.etcd import Etcd
from verniermq.protocol.peers import Peers

TOPIC = "orders"
QUEUES = 4
PATIENCE = 90.0
SIZE_AND_MAGIC, FILLER = 8, b"\xcb\xd4\x31\x94"
ENTRY = 20
"""Bytes of a consume queue's entry: position, size, hash of the tag."""


@attrs.define(eq=False)
class Sent:
    """One send, and what its producer was told."""

    body: str
    queue: int
    outcome: str = "unknown"
    """``ok``, ``12`` (stored, not confirmed), ``refused`` or ``unknown``."""
    offset: int = -1
    position: int = -1
    """In the log."""
    began: float = 0.0
    ended: float = 0.0


@attrs.define(eq=False)
class History:
    """What all clients did and saw."""

    outcome: Outcome
    namesrv: str
    sent: list[Sent] = attrs.field(factory=list)
    seen: dict[tuple[int, int], str] = attrs.field(factory=dict)
    """(queue, offset) → body, of any reader at any time."""
    over: bool = False
    last_ok: float = 0.0
    longest_gap: float = 0.0

    async def produce(self, name: str, queue: int, pause: float) -> None:
        """One producer for one queue: it sends the next when it knows, or gave up, about the one before."""
        number = 0
        async with Peers(self.namesrv, timeout=4.0) as servers:
            while not self.over:
                sent = Sent(f"{name}-{number:06d}", queue)
                number += 1
                self.sent.append(sent)
                sent.began = time.monotonic()
                try:
                    master = (await servers.masters()).get("a")
                    if master is None:
                        sent.outcome = "refused"
                    else:
                        await self._send(servers, master, sent)
                except RemotingError:
                    pass
                await anyio.sleep(pause if sent.outcome == "ok" else 0.05)

    async def _send(self, servers: Peers, master: str, sent: Sent) -> None:
        fields = {
            "a": "producers", "b": TOPIC, "c": "TBW102", "d": str(QUEUES), "e": str(sent.queue), "f": "0",
            "g": "1600000000000", "h": "0", "i": "", "j": "0",
        }  # fmt: skip
        request = Command.request(RequestCode.SEND_MESSAGE_V2, fields, sent.body.encode())
        answer = await servers.ask(master, request, fine=range(1 << 16))
        if answer.code == ResponseCode.SUCCESS:
            now = time.monotonic()
            if self.last_ok:
                self.longest_gap = max(self.longest_gap, now - self.last_ok)
            self.last_ok = now
            sent.outcome, sent.offset, sent.ended = "ok", int(answer.ext["queueOffset"]), now
            sent.position = int(answer.ext["msgId"][16:], 16)
        elif answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT:
            sent.outcome = "12"
        else:
            sent.outcome = "refused"

    async def read(self, group: Group, number: int) -> None:
        """Read all queues of one replica, whatever it is now, again and again."""
        positions = dict.fromkeys(range(QUEUES), 0)
        async with Peers(timeout=2.0) as servers:
            while not self.over:
                for queue in range(QUEUES):
                    try:
                        found = await pull(servers, group.replicas[number].broker, queue, positions[queue])
                    except (RemotingError, OSError):
                        break
                    for offset, body in found:
                        self.note(queue, offset, body, f"replica {number}")
                        positions[queue] = offset + 1
                    self.outcome.checked += len(found)
                await anyio.sleep(0.2)

    def note(self, queue: int, offset: int, body: str, where: str) -> None:
        known = self.seen.setdefault((queue, offset), body)
        if known != body:
            self.outcome.fail("wrong", f"queue {queue}[{offset}] was {known} and is {body} at {where}")


async def pull(servers: Peers, address: str, queue: int, offset: int) -> list[tuple[int, str]]:
    fields = {
        "consumerGroup": "readers", "topic": TOPIC, "queueId": str(queue), "queueOffset": str(offset),
        "maxMsgNums": "256", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*",
        "subVersion": "0", "expressionType": "TAG",
    }  # fmt: skip
    answer = await servers.ask(address, Command.request(RequestCode.PULL_MESSAGE, fields), fine=range(1 << 16))
    if answer.code != ResponseCode.SUCCESS:
        return []
    return [(message.queue_offset, message.body.decode()) for message in decode_records(answer.body)]


async def check(group: Group, etcd: Etcd, history: History) -> None:
    outcome = history.outcome
    everybody = set(group.replicas)
    deadline = time.monotonic() + PATIENCE
    snapshot: Snapshot | None = None
    while snapshot is None or not _is_complete(snapshot, everybody):
        if time.monotonic() > deadline:
            outcome.fail("wrong", f"after {PATIENCE:g} s of peace the set is {snapshot and snapshot.state}")
            return
        await anyio.sleep(0.2)
        with contextlib.suppress(CoordinatorTrouble):
            snapshot = await etcd.read()
    assert snapshot.state is not None
    async with Peers(timeout=5.0) as servers:
        contents = {number: await everything(servers, group.replicas[number].broker, snapshot) for number in everybody}
    for number, content in contents.items():
        for place, body in content.items():
            history.note(*place, body, f"replica {number} at the end")
        there = set(content.values())
        lost = [sent.body for sent in history.sent if sent.outcome == "ok" and sent.body not in there]
        if lost:
            outcome.fail("lost", f"replica {number} lacks {len(lost)} that were acknowledged, such as {lost[:3]}")
        twice = len(content) - len(there)
        outcome.expect(not twice, "wrong", f"replica {number} has {twice} messages more than once")
    for place in set(history.seen) - set(contents[snapshot.state.master]):
        outcome.fail("lost", f"queue {place[0]}[{place[1]}] was read as {history.seen[place]} and is gone")
    last: dict[tuple[str, int], int] = {}
    for sent in history.sent:
        if sent.outcome == "ok":
            key = (sent.body.partition("-")[0], sent.queue)
            outcome.expect(sent.offset > last.get(key, -1), "wrong", f"{sent.body} lies before what was sent earlier")
            last[key] = sent.offset
    outcome.expect(last, "wrong", "nothing was ever acknowledged")
    for outcome_name in ("ok", "12", "refused", "unknown"):
        outcome.notes[f"sends: {outcome_name}"] += sum(sent.outcome == outcome_name for sent in history.sent)


def _is_complete(snapshot: Snapshot, everybody: set[int]) -> bool:
    state = snapshot.state
    return (
        state is not None
        and state.master in snapshot.live
        and {number for number, _ in state.in_sync} == everybody
    )  # fmt: skip


async def everything(servers: Peers, address: str, snapshot: Snapshot) -> dict[tuple[int, int], str]:
    """All that a replica has, once its queues know what the master's know."""
    assert snapshot.state is not None
    master = snapshot.live[snapshot.state.master].address
    found: dict[tuple[int, int], str] = {}
    for queue in range(QUEUES):
        fields = {"topic": TOPIC, "queueId": str(queue)}
        answer = await servers.ask(master, Command.request(RequestCode.GET_MAX_OFFSET, fields))
        end, position = int(answer.ext["offset"]), 0
        deadline = time.monotonic() + PATIENCE
        while position < end and time.monotonic() < deadline:
            read = await pull(servers, address, queue, position)
            found.update({(queue, offset): body for offset, body in read})
            position = read[-1][0] + 1 if read else position
            if not read:
                await anyio.sleep(0.1)
    return found


# --- after all have stopped ----------------------------------------------------------------


def check_files(group: Group, history: History) -> None:
    """The logs, the epochs and the queues of all replicas."""
    outcome = history.outcome
    logs = {number: _log(process.store) for number, process in group.replicas.items()}
    first = logs[1]
    for number, (_, log) in logs.items():
        where = f"the log of replica {number} ({len(log)} bytes)"
        outcome.expect(log == first[1], "wrong", f"{where} is not that of replica 1 ({len(first[1])})")
        _check_queues(group.replicas[number].store, logs[number], number, outcome)
    _check_terms(epochfile.load(group.replicas[1].store, 1 << 62), history)


def _log(store: Path) -> tuple[int, bytes]:
    """Where it starts, and its bytes."""
    files = sorted((store / "commitlog").iterdir())
    return int(files[0].name), b"".join(path.read_bytes() for path in files).rstrip(b"\0")


def _check_queues(store: Path, log: tuple[int, bytes], number: int, outcome: Outcome) -> None:
    """What each record of the log says of its place in a queue is what the queue has."""
    start, data = log
    size = (store / "commitlog" / f"{start:020}").stat().st_size
    wanted: dict[tuple[int, int], tuple[int, int]] = {}
    at = 0
    while at + SIZE_AND_MAGIC <= len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        if data[at + 4 : at + 8] == FILLER or not length:
            at = (at // size + 1) * size
            continue
        message = decode_records(data[at : at + length])[0]
        if message.topic == TOPIC:
            wanted[message.queue_id, message.queue_offset] = (start + at, length)
        at += length
    found: dict[tuple[int, int], tuple[int, int]] = {}
    for queue in range(QUEUES):
        for path in sorted((store / "consumequeue" / TOPIC / str(queue)).iterdir()):
            entries, base = path.read_bytes(), int(path.name)
            for place in range(0, len(entries), ENTRY):
                length = int.from_bytes(entries[place + 8 : place + 12], "big")
                if length:
                    position = int.from_bytes(entries[place : place + 8], "big")
                    found[queue, (base + place) // ENTRY] = (position, length)
    odd = sorted(place for place in {*wanted, *found} if wanted.get(place) != found.get(place))
    if odd:
        outcome.fail("wrong", f"replica {number}: {len(odd)} entries of queues are not what the log says, such as "
                     f"{odd[0]}: {found.get(odd[0])}, the log has {wanted.get(odd[0])}")  # fmt: skip


def _check_terms(epochs: tuple[tuple[int, int], ...], history: History) -> None:
    """A send that began when a later term had acknowledged something was not acknowledged by an earlier one."""
    done = sorted((sent for sent in history.sent if sent.outcome == "ok"), key=lambda sent: sent.ended)
    terms = {sent.body: max(term for term, start in epochs if start <= sent.position) for sent in done}
    newest, ended = 0, iter(done)
    following = next(ended, None)
    for sent in sorted(done, key=lambda sent: sent.began):
        while following is not None and following.ended < sent.began:
            newest = max(newest, terms[following.body])
            following = next(ended, None)
        if terms[sent.body] < newest:
            history.outcome.fail("wrong", f"{sent.body} was acknowledged in term {terms[sent.body]}, after {newest}")
