"""POP_MESSAGE: take messages from any queue, make them invisible, answer or wait (RocketMQ: ``PopMessageProcessor``).

Consumers that pop share every queue: the broker remembers who has what, so nobody has to be told which queue
is whose. Beside the pop itself there are the requests that only look: is there something, how much is waited
for, what would come next.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import attrs

from verniermq.kernel import (
    MATCH_ALL,
    Appended,
    BadField,
    Command,
    Connection,
    Context,
    MessageFilter,
    NoPermission,
    Perm,
    ResponseCode,
    Subscription,
)
from verniermq.plugins.pop.handle import retry_topic
from verniermq.plugins.pop.longpoll import HeldPop, HeldPops
from verniermq.plugins.pop.orderinfo import OrderTable
from verniermq.plugins.pop.reader import Pop, PopReader, PopResult
from verniermq.protocol.pop import Notification, PeekMessage, PollingInfo, PopMessage

if TYPE_CHECKING:
    from verniermq.plugins.pop import Config

FROM_END: Final = 1
LONGEST_ATTEMPT_ID: Final = 255
QUEUES_PER_WEIGHT: Final = 64
MOST_FETCHES: Final = 16
"""How often a pop waits for the disk: what the system drops again at once is read on the spot then."""


class PopHandler:
    def __init__(self, broker: Context, config: Config, reader: PopReader, orders: OrderTable, held: HeldPops) -> None:
        self._broker = broker
        self.config = config
        self._reader = reader
        self._orders = orders
        self._held = held
        self._compile = lru_cache(maxsize=1024)(self._compile_expression)

    # --- requests --------------------------------------------------------------------------

    def pop(self, request: Command, connection: Connection) -> Command | Coroutine[Any, Any, Command | None] | None:
        asked = PopMessage.of(request)
        pop = self._pop(asked, connection)
        taken = self._reader.take(pop)
        if taken.fetching is not None:
            return self._pop_from_disk(request, connection, pop, asked.wait_ms, taken.fetching)
        return self._serve(request, connection, pop, asked.wait_ms, taken)

    async def _pop_from_disk(
        self, request: Command, connection: Connection, pop: Pop, wait_ms: int, fetching: Coroutine[Any, Any, None]
    ) -> Command | None:
        """Take after the messages are in memory: some of the queues at a time, and then whatever it takes."""
        for left in reversed(range(MOST_FETCHES)):
            await fetching
            taken = self._reader.take(pop, patient=not left)
            if taken.fetching is None:
                break
            fetching = taken.fetching
        answer = self._serve(request, connection, pop, wait_ms, taken)
        return answer if answer is None or isinstance(answer, Command) else await answer

    def _serve(
        self, request: Command, connection: Connection, pop: Pop, wait_ms: int, taken: PopResult
    ) -> Command | Coroutine[Any, Any, Command] | None:
        if taken.pieces:
            return self._answer(request, pop, taken)
        if wait_ms <= 0 or taken.is_cut_short:
            return request.reply(ResponseCode.POLLING_TIMEOUT, taken.ext(pop), remark="no message")

        def attempt() -> int | None:
            found = self._reader.take(pop)
            if found.fetching is not None:
                self._broker.start_soon(self._wake_after, found.fetching, pop)
                return None
            if not found.pieces:
                if not found.is_cut_short:
                    return None
                give_up()  # there is more to look at, so it should ask again at once
                return 0
            answer = self._answer(request, pop, found)
            if isinstance(answer, Command):
                connection.answer(request, answer)
            else:
                self._broker.start_soon(self._answer_later, connection, request, answer)
            return sum(map(len, found.pieces))

        def give_up() -> None:
            connection.answer(request, request.reply(ResponseCode.POLLING_TIMEOUT, self._reader.nothing(pop).ext(pop)))

        if self._wait(pop, wait_ms, connection, attempt, give_up):
            return None
        return request.reply(ResponseCode.POLLING_FULL, taken.ext(pop), remark="too many requests wait already")

    def notification(self, request: Command, connection: Connection) -> Command | None:
        """NOTIFICATION: say as soon as there is something to pop, without popping it."""
        asked = Notification.of(request)
        pop = self._look(asked, connection)

        def reply(*, has_message: bool, is_full: bool = False) -> Command:
            return request.reply(ext={"hasMsg": str(has_message).lower(), "pollingFull": str(is_full).lower()})

        def attempt() -> int | None:
            if not self._reader.has_message(pop):
                return None
            connection.answer(request, reply(has_message=True))
            return 0

        if self._reader.has_message(pop):
            return reply(has_message=True)
        wait_ms = asked.wait_ms
        if wait_ms <= 0:
            return reply(has_message=False)
        give_up = lambda: connection.answer(request, reply(has_message=False))  # noqa: E731
        if self._wait(pop, wait_ms, connection, attempt, give_up):
            return None
        return reply(has_message=False, is_full=True)

    def polling_info(self, request: Command, connection: Connection) -> Command:
        asked = PollingInfo.of(request)
        self._broker.topics.get(asked.topic)
        waiting = self._held.count(asked.topic, asked.group, asked.queue_id)
        return request.reply(ext={"pollingNum": str(waiting)})

    async def peek(self, request: Command, connection: Connection) -> Command:
        """PEEK_MESSAGE: the next messages, which stay visible to everybody."""
        asked = PeekMessage.of(request)
        pop = attrs.evolve(self._look(asked, connection), wanted=asked.max_messages)
        taken = self._reader.nothing(pop)
        for topic, queue_id in self._reader.places(pop):
            offset = self._reader.position(pop, topic, queue_id)
            wanted = pop.wanted - len(taken.pieces)
            if (fetching := self._reader.fetching(pop, topic, queue_id, offset, wanted)) is not None:
                await fetching
            records, _, _ = self._reader.read(pop, topic, queue_id, offset, wanted)
            taken.pieces += records
        code = ResponseCode.SUCCESS if taken.pieces else ResponseCode.PULL_NOT_FOUND
        return request.reply(code, taken.ext(attrs.evolve(pop, invisible_ms=0)), taken.pieces)

    def _wait(
        self,
        pop: Pop,
        wait_ms: int,
        connection: Connection,
        attempt: Callable[[], int | None],
        give_up: Callable[[], None],
    ) -> bool:
        # Counted from now: the request says when it was made by the client's clock, which may not agree with ours.
        deadline = self._broker.clock.monotonic() + min(wait_ms / 1000, self.config.max_wait)
        retry = retry_topic(pop.topic, pop.group)
        topic = self._broker.topics.find(pop.topic)
        weight = 1 + (topic.read_queues if topic is not None and pop.queue_id < 0 else 0) // QUEUES_PER_WEIGHT
        waiting = HeldPop(pop.group, pop.topic, retry, pop.queue_id, deadline, connection, attempt, give_up, weight)
        if not self._held.add(waiting):
            return False
        if pop.is_ordered:
            self._broker.start_soon(self._wake_when_unblocked, pop, waiting)
        return True

    async def _wake_when_unblocked(self, pop: Pop, waiting: HeldPop) -> None:
        """A queue that nobody acknowledges opens by itself after a while; no message arrives to tell."""
        while not waiting.done and self._broker.topics.find(pop.topic) is not None:
            places = [(topic, pop.group, queue_id) for topic, queue_id in self._reader.places(pop)]
            times = [time for place in places if (time := self._orders.blocked_for(place)) is not None]
            if not times:
                return
            await self._broker.clock.sleep(min(times))
            if self._broker.topics.find(pop.topic) is not None:  # nobody deleted it meanwhile
                self._held.wake([pop.topic])

    async def _wake_after(self, fetching: Coroutine[Any, Any, None], pop: Pop) -> None:
        await fetching
        if self._broker.topics.find(pop.topic) is not None:
            self._held.wake([pop.topic])

    async def _answer_later(
        self, connection: Connection, request: Command, answer: Coroutine[Any, Any, Command]
    ) -> None:
        connection.answer(request, await answer)

    def _answer(self, request: Command, pop: Pop, taken: PopResult) -> Command | Coroutine[Any, Any, Command]:
        answer = request.reply(ResponseCode.SUCCESS, taken.ext(pop), taken.pieces)
        if taken.appended is None or not self._broker.must_confirm({}):
            return answer
        return self._confirmed(answer, taken.appended)

    async def _confirmed(self, answer: Command, appended: Appended) -> Command:
        await self._broker.confirm(appended)  # late or not: the messages are invisible now, so they must go out
        return answer

    # --- what is asked for -----------------------------------------------------------------

    def _look(self, asked: Notification, connection: Connection) -> Pop:
        """A pop that takes nothing."""
        group, topic, queue_id = asked.group, asked.topic, asked.queue_id
        config = self._broker.topics.get(topic)
        if not config.perm & Perm.READ:
            raise NoPermission(f"topic {topic!r} may not be read (perm {config.perm})")
        if queue_id >= config.read_queues:
            raise BadField("queueId", queue_id, f"-1 for any, or 0 to {config.read_queues - 1}")
        if not self._broker.groups.for_use(group, connection.peer_host).may_consume:
            raise NoPermission(f"group {group!r} may not consume (consumeEnable is false)")
        attempt_id = asked.attempt_id or ""
        if len(attempt_id) > LONGEST_ATTEMPT_ID:
            raise BadField("attemptId", attempt_id[:80], f"at most {LONGEST_ATTEMPT_ID} characters")
        wanted = MATCH_ALL
        if asked.expression:
            wanted = self._compile(topic, asked.expression, asked.expression_type or "TAG")
        return Pop(group, topic, queue_id, 1, 0, False, wanted, asked.is_ordered, attempt_id)

    def _pop(self, asked: PopMessage, connection: Connection) -> Pop:
        return attrs.evolve(
            self._look(asked, connection),
            wanted=asked.max_messages,
            invisible_ms=asked.invisible_ms,
            from_end=asked.init_mode == FROM_END,
        )

    def _compile_expression(self, topic: str, expression: str, expression_type: str) -> MessageFilter:
        return self._broker.compile_filter(Subscription(topic, expression, expression_type))
