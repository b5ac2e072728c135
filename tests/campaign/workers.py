"""Workers: each sends or consumes one kind of message, and knows what has to be true after any crash.

A worker *works* until its connection breaks, *checks* after each restart what must be so at once, and *finishes* when
the broker is killed no more: by then everything that was promised for later has to come. What a message contains
follows from the worker's name and the message's number, so every byte that is read can be compared.
"""

from __future__ import annotations

import random
import sys
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import anyio
import attrs

from tests.campaign.outcome import Outcome
from tests.plugins.batch.test_batch import element
from tests.plugins.pop.popper import Consumer, Popped
from tests.plugins.txn.peers import HalfSent, Peer
from verniermq.kernel import Command, RequestCode, ResponseCode, StoredMessage, decode_records
from verniermq.kernel.tables.jsonfile import JsonFile

PATIENCE = 90.0
"""Seconds: by then everything is delivered that is due, on however busy a machine."""

QUEUES = 2
COMMIT, ROLLBACK = 8, 12


def now_ms() -> int:
    return time.time_ns() // 1_000_000


async def read_queue(peer: Peer, topic: str, queue: int) -> tuple[int, list[StoredMessage]]:
    """The least offset of a queue, and everything from there on that a consumer gets of it."""
    offset = await _least_offset(peer, topic, queue)
    found: list[StoredMessage] = []
    while True:
        answer = await peer.ask(
            RequestCode.PULL_MESSAGE,
            {
                "consumerGroup": "campaign", "topic": topic, "queueId": queue, "queueOffset": offset,
                "maxMsgNums": 1024, "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*",
                "subVersion": 0, "expressionType": "TAG",
            },
        )  # fmt: skip
        if answer.code == ResponseCode.SUCCESS:
            found += decode_records(answer.body)
        elif answer.code not in (ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED):
            break
        if int(answer.ext["nextBeginOffset"]) <= offset:
            break
        offset = int(answer.ext["nextBeginOffset"])
    least = await _least_offset(peer, topic, queue)  # old messages may have been deleted meanwhile
    return least, [message for message in found if message.queue_offset >= least]


async def _least_offset(peer: Peer, topic: str, queue: int) -> int:
    answer = await peer.ask(RequestCode.GET_MIN_OFFSET, {"topic": topic, "queueId": queue})
    return int(answer.ext["offset"]) if answer.code == ResponseCode.SUCCESS else 0


@attrs.define(eq=False)
class Worker(ABC):
    name: str
    seed: int
    outcome: Outcome
    kept_ms: int | None = None
    """How long messages are kept at least; ``None`` for ever."""
    chance: random.Random = attrs.field(init=False)
    sent: int = 0
    """How many were sent, acknowledged or not; the numbers below this one are taken."""
    acknowledged: dict[int, tuple[int, int]] = attrs.field(factory=dict)
    """Number → queue and queue offset, of those whose answer came."""
    times: dict[int, int] = attrs.field(factory=dict)
    """When they were sent."""
    pause: float = 0.0
    """Seconds between two steps."""

    def __attrs_post_init__(self) -> None:
        self.chance = random.Random(f"{self.seed} {self.name}")

    @property
    def topic(self) -> str:
        return self.name

    def body(self, number: int) -> bytes:
        chance = random.Random(f"{self.seed} {self.name} {number}")
        return b"%s:%d:" % (self.name.encode(), number) + chance.randbytes(chance.choice((0, 10, 200, 3000)))

    def number(self, message: StoredMessage) -> int | None:
        """Which of ours it is; a failure if it is not one of ours, byte for byte."""
        name, _, rest = message.body.partition(b":")
        digits = rest.partition(b":")[0]
        if name == self.name.encode() and digits.isdigit():
            number = int(digits)
            if number < self.sent and message.body == self.body(number):
                return number
        place = f"{message.topic}/{message.queue_id} at {message.queue_offset}"
        self.outcome.fail("wrong", f"{place} has a body that nobody sent: {message.body[:60]!r}")
        return None

    def take(self) -> int:
        self.times[self.sent] = now_ms()
        self.sent += 1
        return self.sent - 1

    def is_taken(self, answer: Command) -> bool:
        """Whether an answer is an acknowledgement; a refusal is one that a full disk may bring about."""
        if answer.code != ResponseCode.SUCCESS:
            self.outcome.notes["refused"] += 1
        return answer.code == ResponseCode.SUCCESS

    async def work(self, peer: Peer) -> None:
        while True:
            await self.step(peer)
            await anyio.sleep(self.pause)

    @abstractmethod
    async def step(self, peer: Peer) -> None: ...

    @abstractmethod
    async def check(self, peer: Peer) -> None: ...

    async def finish(self, peer: Peer, advance: Callable[[float], None]) -> None:
        await self.check(peer)
        self.outcome.checked += len(self.acknowledged)

    async def until(self, what: str, missing: Callable[[], object]) -> None:
        """Wait until nothing is missing; what still is then, is lost."""
        with anyio.move_on_after(PATIENCE):
            while missing():  # noqa: ASYNC110 - the broker tells nobody
                await anyio.sleep(0.1)
        self.outcome.expect(not missing(), "lost", f"{self.name}: {what}: {str(missing())[:200]}")


# --- messages that are there at once ------------------------------------------------------


class Sender(Worker):
    """Plain messages with keys, one after the other or many in flight: each once, at its place, in order."""

    async def step(self, peer: Peer) -> None:
        queue = self.chance.randrange(QUEUES)
        if self.chance.random() < 0.3:
            async with anyio.create_task_group() as flight:
                for _ in range(self.chance.randrange(2, 20)):
                    flight.start_soon(self._send, peer, queue, self.take())
        else:
            await self._send(peer, queue, self.take())

    async def _send(self, peer: Peer, queue: int, number: int) -> None:
        keys = {"KEYS": f"{self.name}-{number}", "UNIQ_KEY": f"U{self.name}{number}"}
        answer = await peer.send(self.topic, self.body(number), keys, queue_id=queue, born=now_ms(), d=QUEUES)
        if self.is_taken(answer):
            self.acknowledged[number] = queue, int(answer.ext["queueOffset"])

    async def check(self, peer: Peer) -> None:
        await self._check_queues(peer)
        await self._check_keys(peer)

    async def _check_queues(self, peer: Peer) -> None:
        at: dict[tuple[int, int], int] = {}
        least: dict[int, int] = {}
        for queue in range(QUEUES):
            least[queue], messages = await read_queue(peer, self.topic, queue)
            numbers = []
            for message in messages:
                number = self.number(message)
                if number is not None:
                    at[queue, message.queue_offset] = number
                    numbers.append(number)
            offsets = [message.queue_offset for message in messages]
            if self.kept_ms is not None:  # a file of the log goes first, then the entries of its messages
                least[queue] = offsets[0] if offsets else sys.maxsize
            expected = list(range(least[queue], least[queue] + len(messages)))
            self.outcome.expect(offsets == expected, "lost", f"{self.name}/{queue}: a gap in its offsets")
            self.outcome.expect(
                numbers == sorted(numbers), "wrong", f"{self.name}/{queue}: not in the order of sending"
            )
        twice = [number for number, count in Counter(at.values()).items() if count > 1]
        self.outcome.expect(not twice, "wrong", f"{self.name}: more than once: {twice[:10]}")
        gone = [number for number, place in self.acknowledged.items() if at.get(place) != number]
        young = now_ms() - (self.kept_ms or 0)
        lost = [
            number
            for number in gone
            if self.kept_ms is None
            or self.acknowledged[number][1] >= least[self.acknowledged[number][0]]
            or self.times[number] > young
        ]
        for number in lost[:10]:
            queue, offset = self.acknowledged[number]
            self.outcome.fail("lost", f"{self.name} {number} is not in queue {queue} at {offset}")

    async def _check_keys(self, peer: Peer) -> None:
        if self.kept_ms is not None:
            return
        numbers = list(self.acknowledged)
        for number in {*numbers[-5:], *self.chance.sample(numbers, min(len(numbers), 10))}:
            for key in (f"{self.name}-{number}", f"U{self.name}{number}"):
                answer = await peer.ask(
                    RequestCode.QUERY_MESSAGE,
                    {"topic": self.topic, "key": key, "maxNum": 8, "beginTimestamp": 0, "endTimestamp": 2**62},
                )
                found = [message.body for message in decode_records(answer.body)]
                self.outcome.expect(found == [self.body(number)], "lost", f"{self.name}: key {key} finds {len(found)}")


class BatchSender(Sender):
    """Batches: each message of an acknowledged one is stored alone, behind the one before it."""

    async def step(self, peer: Peer) -> None:
        queue = self.chance.randrange(QUEUES)
        numbers = [self.take() for _ in range(self.chance.randrange(1, 30))]
        body = b"".join([
            element(self.body(n), {"KEYS": f"{self.name}-{n}", "UNIQ_KEY": f"U{self.name}{n}"}) for n in numbers
        ])  # fmt: skip
        answer = await peer.send(
            self.topic, body, queue_id=queue, born=now_ms(), code=RequestCode.SEND_BATCH_MESSAGE, m="true", d=QUEUES
        )
        if self.is_taken(answer):
            first = int(answer.ext["queueOffset"])
            self.acknowledged.update({n: (queue, first + i) for i, n in enumerate(numbers)})


# --- messages that come later -------------------------------------------------------------


@attrs.define(eq=False)
class LaterSender(Worker):
    """Messages that are delivered later: each comes, none too early."""

    due: dict[int, int] = attrs.field(factory=dict)
    """Number → the moment before which it must not be delivered."""
    arrived: Counter[int] = attrs.field(factory=Counter)

    def delay(self) -> tuple[int, dict[str, str]]:
        """Milliseconds, and the property that asks for them."""
        raise NotImplementedError

    async def step(self, peer: Peer) -> None:
        number, (milliseconds, properties) = self.take(), self.delay()
        self.due[number] = now_ms() + milliseconds
        answer = await peer.send(self.topic, self.body(number), properties, queue_id=0, born=now_ms())
        if self.is_taken(answer):
            self.acknowledged[number] = 0, -1

    async def check(self, peer: Peer) -> None:
        self.arrived.clear()
        for message in (await read_queue(peer, self.topic, 0))[1]:
            number = self.number(message)
            if number is None:
                continue
            self.arrived[number] += 1
            early = self.due[number] - message.store_timestamp
            self.outcome.expect(early <= 0, "wrong", f"{self.name} {number} was delivered {early} ms too early")

    async def finish(self, peer: Peer, advance: Callable[[float], None]) -> None:
        with anyio.move_on_after(PATIENCE):
            while True:
                await self.check(peer)
                if set(self.acknowledged) <= set(self.arrived):
                    break
                await anyio.sleep(0.2)
        lost = sorted(set(self.acknowledged) - set(self.arrived))
        for number in lost[:10]:
            self.outcome.fail("lost", f"{self.name} {number} was never delivered")
        self.outcome.notes["delivered again after a kill"] += sum(count - 1 for count in self.arrived.values())
        self.outcome.checked += len(self.acknowledged)


LEVELS_MS = (100, 300, 500, 700, 900, 1100)
"""The delay levels of the broker that is killed; a message that is given back waits for level 3."""


class LevelSender(LaterSender):
    def delay(self) -> tuple[int, dict[str, str]]:
        level = self.chance.randrange(1, 5)
        return LEVELS_MS[level - 1], {"DELAY": str(level)}


class TimedSender(LaterSender):
    def delay(self) -> tuple[int, dict[str, str]]:
        milliseconds = self.chance.choice((500, 1000, 1700, 2500))
        if self.chance.random() < 0.5:
            return milliseconds, {"TIMER_DELAY_MS": str(milliseconds)}
        return milliseconds, {"TIMER_DELIVER_MS": str(now_ms() + milliseconds)}


# --- transactions -------------------------------------------------------------------------


@attrs.define(eq=False)
class Transactor(Worker):
    """Transactions: committed ones are there once, rolled back ones never, open ones are asked about."""

    halves: dict[int, HalfSent] = attrs.field(factory=dict)
    ended: set[int] = attrs.field(factory=set)
    """Those whose end was acknowledged."""
    doubtful: set[int] = attrs.field(factory=set)
    """Those whose end was sent, with no answer: it may be carried out twice."""

    def decision(self, number: int) -> int:
        return ROLLBACK if number % 3 == 0 else COMMIT

    async def work(self, peer: Peer) -> None:
        await peer.join(producers=(self.name,))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._answer_checks, peer)
            await super().work(peer)

    async def step(self, peer: Peer) -> None:
        number = self.take()
        half = await peer.send_half(
            self.topic, self.body(number), {"UNIQ_KEY": f"{self.name}{number}"}, group=self.name, born=now_ms()
        )
        self.halves[number] = half
        if number % 5:
            await self._end(peer, number, half)

    async def _end(self, peer: Peer, number: int, half: HalfSent, **more: str) -> None:
        self.doubtful.add(number)
        answer = await peer.end(half, self.decision(number), group=self.name, **more)
        if answer.code == ResponseCode.SUCCESS:
            self.ended.add(number)

    async def _answer_checks(self, peer: Peer) -> None:
        while True:
            request = await peer.checks.receive()
            (message,) = decode_records(request.body)
            number = self.number(message)
            if number is not None:
                half = HalfSent(int(request.ext["tranStateTableOffset"]), int(request.ext["commitLogOffset"]), request)
                await self._end(peer, number, half, fromTransactionCheck="true")

    async def found(self, peer: Peer) -> Counter[int]:
        numbers = [self.number(message) for message in (await read_queue(peer, self.topic, 0))[1]]
        return Counter([number for number in numbers if number is not None])

    async def check(self, peer: Peer) -> None:
        found = await self.found(peer)
        for number, times in found.items():
            is_committed = self.decision(number) == COMMIT
            self.outcome.expect(is_committed, "wrong", f"{self.name} {number} was rolled back and is there")
            if times > 1 and number not in self.doubtful:
                self.outcome.fail("wrong", f"{self.name} {number} was committed once and is there {times} times")
        for number in sorted(self.ended):
            if self.decision(number) == COMMIT and number not in found:
                self.outcome.fail("lost", f"{self.name} {number} was committed and is not there")

    async def finish(self, peer: Peer, advance: Callable[[float], None]) -> None:
        await peer.join(producers=(self.name,))
        wanted = {number for number in self.halves if self.decision(number) == COMMIT}
        missing = set(wanted)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._answer_checks, peer)
            with anyio.move_on_after(PATIENCE):
                while missing := wanted - set(await self.found(peer)):  # noqa: ASYNC110 - the broker tells nobody
                    await anyio.sleep(0.2)
            tasks.cancel_scope.cancel()
        for number in sorted(missing)[:10]:
            self.outcome.fail("lost", f"{self.name} {number} was to be committed and nobody asked")
        await self.check(peer)
        self.outcome.checked += len(self.halves)


# --- messages that are given back, or popped ----------------------------------------------


@attrs.define(eq=False)
class Retrier(Worker):
    """Messages that a consumer gives back: each acknowledged one comes again in the group's retry topic."""

    given_back: set[int] = attrs.field(factory=set)

    async def step(self, peer: Peer) -> None:
        number = self.take()
        answer = await peer.send(self.topic, self.body(number), queue_id=0, born=now_ms())
        if not self.is_taken(answer):
            return
        offset = int(answer.ext["queueOffset"])
        self.acknowledged[number] = 0, offset
        (message, *_) = await peer.pull(self.topic, 0, offset) or [None]
        if message is None:
            return  # dispatched in the next turn
        back = await peer.ask(
            RequestCode.CONSUMER_SEND_MSG_BACK,
            {
                "offset": message.commit_log_offset, "group": self.name, "delayLevel": 1,
                "originMsgId": message.offset_message_id, "originTopic": self.topic,
            },
        )  # fmt: skip
        if self.is_taken(back):
            self.given_back.add(number)

    async def check(self, peer: Peer) -> None:
        found = {self.number(message) for message in (await read_queue(peer, self.topic, 0))[1]}
        for number in sorted(set(self.acknowledged) - found)[:10]:
            self.outcome.fail("lost", f"{self.name} {number} is not in its queue")

    async def finish(self, peer: Peer, advance: Callable[[float], None]) -> None:
        await self.check(peer)
        missing = set(self.given_back)
        with anyio.move_on_after(PATIENCE):
            while missing:
                for message in (await read_queue(peer, f"%RETRY%{self.name}", 0))[1]:
                    number = self.number(message)
                    missing.discard(-1 if number is None else number)
                    times = message.reconsume_times
                    self.outcome.expect(times == 1, "wrong", f"{self.name} {number}: tried {times} times")
                await anyio.sleep(0.2)
        for number in sorted(missing)[:10]:
            self.outcome.fail("lost", f"{self.name} {number} was given back and never came again")
        self.outcome.checked += len(self.acknowledged)


@attrs.define(eq=False)
class Popper(Worker):
    """Popped messages: what was acknowledged does not come again, everything else does."""

    done: set[int] = attrs.field(factory=set)
    """Acknowledged long before their invisible time was over."""
    seen: set[int] = attrs.field(factory=set)
    doubtful: set[int] = attrs.field(factory=set)
    """An acknowledgement was sent; if no answer came, nobody knows whether it counts."""

    def consumer(self, peer: Peer) -> Consumer:
        return Consumer(peer, "broker-a", self.name, self.topic)

    async def step(self, peer: Peer) -> None:
        for _ in range(self.chance.randrange(1, 6)):
            number = self.take()
            answer = await peer.send(self.topic, self.body(number), queue_id=0, born=now_ms())
            if self.is_taken(answer):
                self.acknowledged[number] = 0, int(answer.ext["queueOffset"])
        keeps = self.chance.random() < 0.7
        for one in await self.pop(peer, 600_000 if keeps else 1000):
            if keeps:
                await self.acknowledge(peer, one)

    async def pop(self, peer: Peer, invisible_ms: int) -> list[Popped]:
        before = set(self.done)
        popped = await self.consumer(peer).pop(invisibleTime=invisible_ms, maxMsgNums=8)
        for one in popped:
            number = self.number(one.message)
            self.outcome.expect(number not in before, "wrong", f"{self.name} {number} came again, though acknowledged")
            if number is not None:
                self.seen.add(number)
        return popped

    async def acknowledge(self, peer: Peer, one: Popped) -> None:
        number = self.number(one.message)
        if number is None:
            return
        self.doubtful.add(number)
        answer = await self.consumer(peer).ack(one)
        if answer.code == ResponseCode.SUCCESS:
            self.done.add(number)

    async def check(self, peer: Peer) -> None:
        found = {self.number(message) for message in (await read_queue(peer, self.topic, 0))[1]}
        for number in sorted(set(self.acknowledged) - found)[:10]:
            self.outcome.fail("lost", f"{self.name} {number} is not in its queue")

    async def finish(self, peer: Peer, advance: Callable[[float], None]) -> None:
        await self.check(peer)
        await anyio.to_thread.run_sync(advance, 700)  # what a kill kept from its acknowledgement is visible again
        with anyio.move_on_after(PATIENCE):
            while self._missing():
                popped = await self.pop(peer, 600_000)
                for one in popped:
                    await self.acknowledge(peer, one)
                if not popped:
                    await anyio.sleep(0.1)
        for number in self._missing()[:10]:
            self.outcome.fail("lost", f"{self.name} {number} never came again (seen: {number in self.seen})")
        self.outcome.checked += len(self.acknowledged)

    def _missing(self) -> list[int]:
        return sorted(set(self.acknowledged) - self.done - self.doubtful)


# --- tables -------------------------------------------------------------------------------


@attrs.define(eq=False)
class Committer(Worker):
    """Offsets of a group: after a kill never ahead of what was committed, never behind what is on the disk."""

    store: Path = attrs.field(kw_only=True)
    on_disk: int = -1
    committed: int = -1
    """The newest that was sent."""

    def fields(self) -> dict[str, object]:
        return {"consumerGroup": self.name, "topic": self.topic, "queueId": 0}

    async def step(self, peer: Peer) -> None:
        number = self.take()
        answer = await peer.send(self.topic, self.body(number), queue_id=0, born=now_ms())
        if self.is_taken(answer):
            self.acknowledged[number] = 0, int(answer.ext["queueOffset"])
            self.committed = self.acknowledged[number][1]
            await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, {**self.fields(), "commitOffset": self.committed})

    def killed(self) -> None:
        """Look at the file before the next start reads it."""
        data = JsonFile(self.store / "config" / "consumerOffset.json").load() or {}
        saved = data.get("offsetTable", {}).get(f"{self.topic}@{self.name}", {}).get("0")
        self.on_disk = -1 if saved is None else int(saved)

    async def check(self, peer: Peer) -> None:
        answer = await peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, self.fields())
        offset = int(answer.ext["offset"]) if answer.code == ResponseCode.SUCCESS else -1
        self.outcome.expect(
            offset <= max(self.committed, 0),
            "lost",
            f"{self.name}: the group is at {offset}, committed was {self.committed}",
        )
        self.outcome.expect(
            offset >= self.on_disk, "wrong", f"{self.name}: the group is at {offset}, the file said {self.on_disk}"
        )
        self.committed = offset


@attrs.define(eq=False)
class TopicMaker(Worker):
    """Topics: one that was made, by an administrator or by a send, has all its queues again."""

    made: dict[str, int] = attrs.field(factory=dict)

    async def step(self, peer: Peer) -> None:
        name, queues = f"{self.name}-{self.take()}", self.chance.randrange(1, 9)
        if self.chance.random() < 0.5:
            answer = await peer.ask(
                RequestCode.UPDATE_AND_CREATE_TOPIC,
                {
                    "topic": name, "defaultTopic": "TBW102", "readQueueNums": queues, "writeQueueNums": queues,
                    "perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false",
                },
            )  # fmt: skip
        else:
            answer = await peer.send(name, b"first", queue_id=0, born=now_ms(), d=queues)
        if self.is_taken(answer):
            self.made[name] = queues

    async def check(self, peer: Peer) -> None:
        names = list(self.made)
        for name in {*names[-5:], *self.chance.sample(names, min(len(names), 5))}:
            queues = self.made[name]
            answer = await peer.send(name, b"last queue", queue_id=queues - 1, born=now_ms(), c="none")
            self.outcome.expect(
                answer.code == ResponseCode.SUCCESS, "lost", f"{name} had {queues} queues: {answer.remark}"
            )

    async def finish(self, peer: Peer, advance: Callable[[float], None]) -> None:
        await self.check(peer)
        self.outcome.checked += len(self.made)
