"""POP_MESSAGE: take messages from any queue, make them invisible, answer or wait (RocketMQ: ``PopMessageProcessor``).

Consumers that pop share every queue: the broker remembers who has what, so nobody has to be told which queue
is whose. A pop goes round the queues of the topic from a random one on, and looks into the retry topic of its
group before or after that, until it has enough.
"""

from __future__ import annotations

import random
from collections.abc import Coroutine, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import attrs

from verniermq.kernel import (
    MATCH_ALL,
    RETRY_PREFIX,
    Appended,
    BadField,
    Broker,
    Command,
    Connection,
    MessageFilter,
    NoPermission,
    Perm,
    ResponseCode,
    Subscription,
    decode_record,
    encode_record,
    record_properties,
)
from verniermq.plugins.pop.checkpoint import MOST_MESSAGES, CheckPoint
from verniermq.plugins.pop.handle import ORDER_QUEUE, Handle, mark_of, retry_topic
from verniermq.plugins.pop.inflight import QUEUES, InFlight
from verniermq.plugins.pop.ordering import OrderTable
from verniermq.plugins.pop.waiting import Waiting, WaitingRoom

if TYPE_CHECKING:
    from verniermq.plugins.pop import Config

FROM_END: Final = 1
POP_CK: Final = "POP_CK"

RECENT_BYTES: Final = 1 << 30
"""A group that begins "at the end" still gets a queue from its first message on if that is so young, as with
RocketMQ: a consumer that starts a moment after its producer misses nothing."""


@attrs.frozen
class Pop:
    """The fields of a request; a waiting pop is tried again with them."""

    group: str
    topic: str
    queue_id: int
    wanted: int
    invisible_ms: int
    from_end: bool
    filter: MessageFilter
    is_ordered: bool = False
    attempt_id: str = ""


@attrs.define
class Taken:
    """What a pop has got together so far."""

    pop_time: int
    revive_queue: int
    pieces: list[bytes] = attrs.Factory(list)
    starts: list[str] = attrs.Factory(list)
    offsets: list[str] = attrs.Factory(list)
    counts: list[str] = attrs.Factory(list)
    rest: int = 0
    appended: Appended | None = None

    def ext(self, pop: Pop) -> dict[str, str]:
        fields = {
            "popTime": str(self.pop_time),
            "invisibleTime": str(pop.invisible_ms),
            "reviveQid": str(self.revive_queue),
            "restNum": str(self.rest),
        }
        if self.pieces:
            fields["startOffsetInfo"] = ";".join(self.starts)
            fields["msgOffsetInfo"] = ";".join(self.offsets)
        if self.counts:
            fields["orderCountInfo"] = ";".join(self.counts)
        return fields


class Popper:
    def __init__(
        self, broker: Broker, config: Config, inflight: InFlight, orders: OrderTable, room: WaitingRoom
    ) -> None:
        self._broker = broker
        self._store = broker.store
        self._limits = broker.configuration.pull
        self.config = config
        self._inflight = inflight
        self._orders = orders
        self._room = room
        self._turn = random.randrange(QUEUES)
        self._pulled = broker.host.calls("messages_pulled")
        self._compile = lru_cache(maxsize=1024)(self._compile_expression)

    # --- requests --------------------------------------------------------------------------

    def pop(self, request: Command, connection: Connection) -> Command | Coroutine[Any, Any, Command] | None:
        pop = self._decode(request)
        taken = self._take(pop)
        if taken.pieces:
            return self._answer(request, pop, taken)
        wait_ms = request.integer("pollTime", 0)
        if wait_ms <= 0:
            return request.reply(ResponseCode.POLLING_TIMEOUT, taken.ext(pop), remark="no message")

        def attempt() -> bool:
            found = self._take(pop)
            if not found.pieces:
                return False
            answer = self._answer(request, pop, found)
            if isinstance(answer, Command):
                connection.answer(request, answer)
            else:
                self._broker.task_group.start_soon(self._answer_later, connection, request, answer)
            return True

        def give_up() -> None:
            connection.answer(request, request.reply(ResponseCode.POLLING_TIMEOUT, self._nothing(pop).ext(pop)))

        if self._wait(pop, wait_ms, connection, attempt, give_up):
            return None
        return request.reply(ResponseCode.POLLING_FULL, taken.ext(pop), remark="too many requests wait already")

    def notification(self, request: Command, connection: Connection) -> Command | None:
        """NOTIFICATION: say as soon as there is something to pop, without popping it."""
        pop = self._decode(request, is_notification=True)

        def reply(*, has_message: bool, is_full: bool = False) -> Command:
            return request.reply(ext={"hasMsg": str(has_message).lower(), "pollingFull": str(is_full).lower()})

        def attempt() -> bool:
            if self._has_message(pop):
                connection.answer(request, reply(has_message=True))
                return True
            return False

        if self._has_message(pop):
            return reply(has_message=True)
        wait_ms = request.integer("pollTime", 0)
        if wait_ms <= 0:
            return reply(has_message=False)
        give_up = lambda: connection.answer(request, reply(has_message=False))  # noqa: E731
        if self._wait(pop, wait_ms, connection, attempt, give_up):
            return None
        return reply(has_message=False, is_full=True)

    def polling_info(self, request: Command, connection: Connection) -> Command:
        topic, group = request.text("topic"), request.text("consumerGroup")
        self._broker.topics.get(topic)
        waiting = self._room.count(topic, group, request.integer("queueId"))
        return request.reply(ext={"pollingNum": str(waiting)})

    def peek(self, request: Command, connection: Connection) -> Command:
        """PEEK_MESSAGE: the next messages, which stay visible to everybody."""
        pop = self._decode(request, is_notification=True)
        pop = attrs.evolve(pop, wanted=self._wanted(request))
        taken = self._nothing(pop)
        for topic, queue_id in self._places(pop):
            offset = self._position(pop, topic, queue_id)
            records, _, _ = self._read(pop, topic, queue_id, offset, pop.wanted - len(taken.pieces))
            taken.pieces += records
        code = ResponseCode.SUCCESS if taken.pieces else ResponseCode.PULL_NOT_FOUND
        return request.reply(code, taken.ext(attrs.evolve(pop, invisible_ms=0)), taken.pieces)

    def _wait(self, pop: Pop, wait_ms: int, connection: Connection, attempt: Any, give_up: Any) -> bool:
        # Counted from now: the request says when it was made by the client's clock, which may not agree with ours.
        deadline = self._broker.clock.now() + min(wait_ms / 1000, self.config.max_wait)
        retry = retry_topic(pop.topic, pop.group)
        waiting = Waiting(pop.group, pop.topic, retry, pop.queue_id, deadline, connection, attempt, give_up)
        if not self._room.add(waiting):
            return False
        if pop.is_ordered:
            self._broker.task_group.start_soon(self._wake_when_unblocked, pop, waiting)
        return True

    async def _wake_when_unblocked(self, pop: Pop, waiting: Waiting) -> None:
        """A queue that nobody acknowledges opens by itself after a while; no message arrives to tell."""
        while not waiting.is_done:
            places = [(topic, pop.group, queue_id) for topic, queue_id in self._places(pop)]
            times = [time for place in places if (time := self._orders.blocked_until(place)) is not None]
            if not times:
                return
            await self._broker.clock.sleep_until(min(times) / 1000)
            self._room.wake([pop.topic])

    async def _answer_later(
        self, connection: Connection, request: Command, answer: Coroutine[Any, Any, Command]
    ) -> None:
        connection.answer(request, await answer)

    def _answer(self, request: Command, pop: Pop, taken: Taken) -> Command | Coroutine[Any, Any, Command]:
        answer = request.reply(ResponseCode.SUCCESS, taken.ext(pop), taken.pieces)
        if taken.appended is None or not self._broker.must_confirm({}):
            return answer
        return self._confirmed(answer, taken.appended)

    async def _confirmed(self, answer: Command, appended: Appended) -> Command:
        await self._broker.confirm(appended)  # late or not: the messages are invisible now, so they must go out
        return answer

    # --- reading the request ---------------------------------------------------------------

    def _decode(self, request: Command, *, is_notification: bool = False) -> Pop:
        group, topic, queue_id = request.text("consumerGroup"), request.text("topic"), request.integer("queueId")
        config = self._broker.topics.get(topic)
        if not config.perm & Perm.READ:
            raise NoPermission(f"topic {topic!r} may not be read (perm {config.perm})")
        if queue_id >= config.read_queues:
            raise BadField("queueId", queue_id, f"-1 for any, or 0 to {config.read_queues - 1}")
        if not self._broker.groups.for_use(group).may_consume:
            raise NoPermission(f"group {group!r} may not consume (consumeEnable is false)")
        is_ordered = request.boolean("order", False)
        attempt_id = request.text("attemptId", "")
        if is_notification:
            return Pop(group, topic, queue_id, 1, 0, False, MATCH_ALL, is_ordered, attempt_id)
        invisible_ms = request.integer("invisibleTime")
        if invisible_ms < 0:
            raise BadField("invisibleTime", invisible_ms, "milliseconds, not below 0")
        expression = request.text("exp", "")
        return Pop(
            group, topic, queue_id, self._wanted(request), invisible_ms, request.integer("initMode", 0) == FROM_END,
            self._compile(topic, expression, request.text("expType", "TAG") or "TAG") if expression else MATCH_ALL,
            is_ordered, attempt_id,
        )  # fmt: skip

    def _wanted(self, request: Command) -> int:
        wanted = request.integer("maxMsgNums")
        if not 1 <= wanted <= MOST_MESSAGES:
            raise BadField("maxMsgNums", wanted, f"1 to {MOST_MESSAGES}")
        return wanted

    def _compile_expression(self, topic: str, expression: str, expression_type: str) -> MessageFilter:
        return self._broker.compile_filter(Subscription(topic, expression, expression_type))

    # --- taking ----------------------------------------------------------------------------

    def _nothing(self, pop: Pop) -> Taken:
        if pop.is_ordered:
            return Taken(self._broker.clock.now_ms(), ORDER_QUEUE)
        self._turn = (self._turn + 1) % QUEUES
        return Taken(self._broker.clock.now_ms(), self._turn)

    def _take(self, pop: Pop) -> Taken:
        taken = self._nothing(pop)
        for topic, queue_id in self._places(pop):
            self._take_from(pop, taken, topic, queue_id)
        return taken

    def _places(self, pop: Pop) -> Iterator[tuple[str, int]]:
        """The queues a pop looks into, in its order."""
        retry = retry_topic(pop.topic, pop.group)
        has_retry = not pop.is_ordered and not pop.topic.startswith(RETRY_PREFIX) and retry in self._broker.topics
        retry_first = has_retry and random.random() * 100 < self.config.retry_first_percent
        if retry_first:
            yield retry, 0
        if pop.queue_id >= 0:
            yield pop.topic, pop.queue_id
        else:
            queues = self._broker.topics.get(pop.topic).read_queues
            first = random.randrange(queues) if queues else 0
            for step in range(queues):
                yield pop.topic, (first + step) % queues
        if has_retry and not retry_first:
            yield retry, 0

    def _position(self, pop: Pop, topic: str, queue_id: int) -> int:
        """Where a group goes on in a queue."""
        offsets = self._broker.offsets
        offsets.take_reset(pop.group, topic, queue_id)  # it is committed already, and now we know of it
        low, high = self._store.min_offset(topic, queue_id), self._store.max_offset(topic, queue_id)
        committed = offsets.committed(pop.group, topic, queue_id)
        if committed is not None:
            return min(max(committed, low), high)
        if not pop.from_end or topic.startswith(RETRY_PREFIX) or low == high:
            return low
        queue = self._store.queue(topic, queue_id)
        is_young = queue is not None and low == 0 and self._store.end - queue.entries(0, 1)[0][0] <= RECENT_BYTES
        return low if is_young else high

    def _read(
        self, pop: Pop, topic: str, queue_id: int, offset: int, wanted: int
    ) -> tuple[list[bytes], list[int], int]:
        """Records that pass the filter, their offsets, and the offset after the last one looked at."""
        queue = self._store.queue(topic, queue_id)
        records: list[bytes] = []
        offsets: list[int] = []
        if queue is None or wanted <= 0:
            return records, offsets, offset
        wish = MATCH_ALL if topic != pop.topic else pop.filter  # what is tried again has passed it before
        budget = int(self._limits.max_bytes)
        for position, size, code in queue.entries(offset, wanted if wish is MATCH_ALL else self._limits.max_scan):
            if wish.tag_codes is None or code in wish.tag_codes:
                if size > budget and records:
                    break
                record = self._store.read(position, size)
                if record is not None and (wish.test is None or wish.test(record_properties(record))):
                    records.append(record)
                    offsets.append(offset)
                    budget -= size
            offset += 1
            if len(records) == wanted:
                break
        return records, offsets, offset

    def _take_from(self, pop: Pop, taken: Taken, topic: str, queue_id: int) -> None:
        if pop.is_ordered and self._orders.is_blocked((topic, pop.group, queue_id), pop.attempt_id):
            return
        start = self._position(pop, topic, queue_id)
        records, offsets, following = self._read(pop, topic, queue_id, start, pop.wanted - len(taken.pieces))
        taken.rest += max(0, self._store.max_offset(topic, queue_id) - following)
        if not records:
            if following > start:
                self._broker.offsets.commit(pop.group, topic, queue_id, following)  # nothing there is for this group
            return
        if pop.is_ordered:
            self._note_ordered(pop, taken, topic, queue_id, offsets)
        else:
            checkpoint = CheckPoint(
                pop.group, topic, queue_id, start, taken.pop_time, pop.invisible_ms, offsets, self._broker.name,
                revive_queue=taken.revive_queue,
            )  # fmt: skip
            while checkpoint.key in self._inflight and not taken.pieces:
                # The same messages popped twice within a millisecond, after a reset: each needs a key of its own.
                taken.pop_time = checkpoint.pop_time = checkpoint.pop_time + 1
            taken.appended = self._inflight.add(checkpoint)
            self._broker.offsets.commit(pop.group, topic, queue_id, following)
        mark = mark_of(topic)
        taken.starts.append(f"{mark} {queue_id} {start}")
        taken.offsets.append(f"{mark} {queue_id} {','.join(map(str, offsets))}")
        if topic != pop.topic:
            records = [self._with_handle(pop, taken, start, record) for record in records]
        taken.pieces += records
        for call in self._pulled:
            call(pop.group, topic, queue_id, len(records), sum(map(len, records)))

    def _with_handle(self, pop: Pop, taken: Taken, start: int, record: bytes) -> bytes:
        """A message of the retry topic as one of the topic itself; it has its handle with it, for it gives no other."""
        message = decode_record(record)
        handle = Handle(
            start, taken.pop_time, pop.invisible_ms, taken.revive_queue, mark_of(message.topic), self._broker.name,
            message.queue_id, message.queue_offset,
        )  # fmt: skip
        properties = {POP_CK: str(handle), **message.properties}
        return encode_record(attrs.evolve(message, topic=pop.topic, properties=properties))

    def _note_ordered(self, pop: Pop, taken: Taken, topic: str, queue_id: int, offsets: list[int]) -> None:
        noted = self._orders.popped(
            (topic, pop.group, queue_id), pop.attempt_id, taken.pop_time, pop.invisible_ms, offsets
        )
        self._broker.offsets.commit(pop.group, topic, queue_id, offsets[0])
        mark = mark_of(topic)
        taken.counts.append(f"{mark} {queue_id} {min(noted.times.get(offset, 0) for offset in offsets)}")
        taken.counts += [f"{mark} qo{queue_id}%{offset} {noted.times.get(offset, 0)}" for offset in offsets]

    def _has_message(self, pop: Pop) -> bool:
        for topic, queue_id in self._places(pop):
            if pop.is_ordered and self._orders.is_blocked((topic, pop.group, queue_id), pop.attempt_id):
                continue
            if self._position(pop, topic, queue_id) < self._store.max_offset(topic, queue_id):
                return True
        return False
