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
    Broker,
    Command,
    Connection,
    MessageFilter,
    NoPermission,
    Perm,
    ResponseCode,
    Subscription,
)
from verniermq.plugins.pop.checkpoint import MOST_MESSAGES
from verniermq.plugins.pop.handle import retry_topic
from verniermq.plugins.pop.ordering import OrderTable
from verniermq.plugins.pop.taking import Pop, Taken, Taker
from verniermq.plugins.pop.waiting import Waiting, WaitingRoom

if TYPE_CHECKING:
    from verniermq.plugins.pop import Config

FROM_END: Final = 1


class Popper:
    def __init__(self, broker: Broker, config: Config, taker: Taker, orders: OrderTable, room: WaitingRoom) -> None:
        self._broker = broker
        self.config = config
        self._taker = taker
        self._orders = orders
        self._room = room
        self._compile = lru_cache(maxsize=1024)(self._compile_expression)

    # --- requests --------------------------------------------------------------------------

    def pop(self, request: Command, connection: Connection) -> Command | Coroutine[Any, Any, Command] | None:
        pop = self._decode(request)
        taken = self._taker.take(pop)
        if taken.pieces:
            return self._answer(request, pop, taken)
        wait_ms = request.integer("pollTime", 0)
        if wait_ms <= 0:
            return request.reply(ResponseCode.POLLING_TIMEOUT, taken.ext(pop), remark="no message")

        def attempt() -> bool:
            found = self._taker.take(pop)
            if not found.pieces:
                return False
            answer = self._answer(request, pop, found)
            if isinstance(answer, Command):
                connection.answer(request, answer)
            else:
                self._broker.task_group.start_soon(self._answer_later, connection, request, answer)
            return True

        def give_up() -> None:
            connection.answer(request, request.reply(ResponseCode.POLLING_TIMEOUT, self._taker.nothing(pop).ext(pop)))

        if self._wait(pop, wait_ms, connection, attempt, give_up):
            return None
        return request.reply(ResponseCode.POLLING_FULL, taken.ext(pop), remark="too many requests wait already")

    def notification(self, request: Command, connection: Connection) -> Command | None:
        """NOTIFICATION: say as soon as there is something to pop, without popping it."""
        pop = self._decode(request, is_notification=True)

        def reply(*, has_message: bool, is_full: bool = False) -> Command:
            return request.reply(ext={"hasMsg": str(has_message).lower(), "pollingFull": str(is_full).lower()})

        def attempt() -> bool:
            if self._taker.has_message(pop):
                connection.answer(request, reply(has_message=True))
                return True
            return False

        if self._taker.has_message(pop):
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
        taken = self._taker.nothing(pop)
        for topic, queue_id in self._taker.places(pop):
            offset = self._taker.position(pop, topic, queue_id)
            records, _, _ = self._taker.read(pop, topic, queue_id, offset, pop.wanted - len(taken.pieces))
            taken.pieces += records
        code = ResponseCode.SUCCESS if taken.pieces else ResponseCode.PULL_NOT_FOUND
        return request.reply(code, taken.ext(attrs.evolve(pop, invisible_ms=0)), taken.pieces)

    def _wait(
        self, pop: Pop, wait_ms: int, connection: Connection, attempt: Callable[[], bool], give_up: Callable[[], None]
    ) -> bool:
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
        while not waiting.done:
            places = [(topic, pop.group, queue_id) for topic, queue_id in self._taker.places(pop)]
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
