"""ReceiveMessage: a pop, waited for.

A stream has one status, then the messages, then the time of delivery. It always ends before the client's deadline:
"nothing there" is an answer, a deadline that passes is an error for whoever waits. Messages that were popped for a
client that is gone are given back at once, and so are those that it did not read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final

import attrs

from verniermq.client.errors import BadAnswer, ClientError
from verniermq.client.receipt import PLAIN, Receipt, start_offsets
from verniermq.contrib.grpc.ack import AckCalls
from verniermq.contrib.grpc.brokers import Brokers
from verniermq.contrib.grpc.call import Call
from verniermq.contrib.grpc.clients import ClientTable, GrpcClient, subscription_of
from verniermq.contrib.grpc.delivery import Name, delivered
from verniermq.contrib.grpc.enums import Code, MessageType
from verniermq.contrib.grpc.handles import Handle, Sealer
from verniermq.contrib.grpc.renewal import INVISIBLE_SECONDS, Renewals, return_soon
from verniermq.contrib.grpc.routes import accepted_types
from verniermq.contrib.grpc.schema import proto
from verniermq.contrib.grpc.settings import LONGEST_POLL, is_fifo, max_attempts
from verniermq.contrib.grpc.status import CallFailed, code_of, status
from verniermq.contrib.grpc.unread import Unread
from verniermq.kernel import (
    Command,
    Perm,
    Property,
    ResponseCode,
    StoredMessage,
    Subscription,
    TopicConfig,
    decode_records,
)
from verniermq.protocol.pop import MOST_POPPED, PopMessage

logger = logging.getLogger(__name__)

SHORTEST_INVISIBLE: Final = 10.0
LONGEST_INVISIBLE: Final = 12 * 3600.0
MARGIN: Final = 0.5
"""Seconds before the client's deadline at which it has its answer."""
FROM_END: Final = 1
"""Where a new group begins, as Apache's proxy has it."""
NOTHING: Final = frozenset({ResponseCode.POLLING_TIMEOUT, ResponseCode.PULL_NOT_FOUND})


@attrs.frozen
class Popped:
    """A message with what it is acknowledged by."""

    stored: StoredMessage
    handle: Handle
    attempt: int


@attrs.frozen
class Wish:
    """What a receive asks for, checked."""

    group: str
    topic: str
    broker_name: str
    subscription: Subscription
    invisible: float
    auto_renew: bool
    fifo: bool
    max_attempts: int
    namespace: str


@attrs.define(eq=False)
class ReceiveCalls:
    brokers: Brokers
    clients: ClientTable
    acks: AckCalls
    sealer: Sealer
    renewals: Renewals
    unread: Unread = attrs.field(factory=Unread)

    async def receive(self, request: Any, call: Call, time_left: float | None) -> AsyncGenerator[Any, None]:
        """The parts of the stream.

        Raises:
            CallFailed: the call cannot be served.
        """
        wish = await self._wish(request, call)
        client = self.clients.of(call)
        self.unread.check(client)
        unsent = await self._pop(client, wish, request, call, time_left)
        size = sum(len(one.stored.body) for one in unsent)
        try:
            self.unread.check(client)  # once more: it may have waited for long, beside others
            self.unread.add(client, size)
        except CallFailed:
            self._give_back(wish, unsent)
            raise
        try:
            unsent = [one for one in unsent if await self._is_for(wish, one, call)]
            if not unsent:
                yield proto.ReceiveMessageResponse(status=status(Code.MESSAGE_NOT_FOUND, "no new message"))
            else:
                yield proto.ReceiveMessageResponse(status=status(Code.OK))
            while unsent:
                message = await self._message(wish, unsent[0], client)
                if message is not None:
                    yield proto.ReceiveMessageResponse(message=message)
                unsent.pop(0)
        finally:
            self.unread.remove(client, size)
            if unsent:
                self._give_back(wish, unsent)
        last = proto.ReceiveMessageResponse()
        last.delivery_timestamp.FromMilliseconds(self.brokers.clock.now_ms())
        yield last

    # --- what is asked for -----------------------------------------------------------------

    async def _wish(self, request: Any, call: Call) -> Wish:
        group, topic = call.group(request.group), call.topic(request.message_queue.topic)
        broker_name = request.message_queue.broker.name or (await self.brokers.route(topic))[0].broker_name
        if request.batch_size < 1:
            raise CallFailed(Code.BAD_REQUEST, f"batch_size is {request.batch_size}, expected 1 to {MOST_POPPED}")
        invisible = INVISIBLE_SECONDS
        if not request.auto_renew:
            invisible = request.invisible_duration.ToMilliseconds() / 1000
            if not SHORTEST_INVISIBLE <= invisible <= LONGEST_INVISIBLE:
                what = f"invisible for {invisible:g} s; expected {SHORTEST_INVISIBLE:g} s to {LONGEST_INVISIBLE:g} s"
                raise CallFailed(Code.ILLEGAL_INVISIBLE_TIME, what)
        config = await self.brokers.topic(topic, broker_name)
        if not config.perm & Perm.READ or not config.read_queues:
            raise CallFailed(Code.FORBIDDEN, f"topic {topic!r} has no queue that may be read")
        settings = await self.brokers.group(group, broker_name)
        return Wish(
            group, topic, broker_name, subscription_of(topic, request.filter_expression), invisible,
            request.auto_renew, self._is_fifo(settings, config), max_attempts(settings),
            request.message_queue.topic.resource_namespace,
        )  # fmt: skip

    def _is_fifo(self, settings: Any, topic: TopicConfig) -> bool:
        return is_fifo(settings) and MessageType.FIFO in accepted_types(topic)

    # --- popping ---------------------------------------------------------------------------

    async def _pop(
        self, client: GrpcClient, wish: Wish, request: Any, call: Call, time_left: float | None
    ) -> list[Popped]:
        seconds = poll_seconds(request, time_left)
        pop = PopMessage(
            group=wish.group,
            topic=wish.topic,
            queue_id=-1,
            max_messages=min(request.batch_size, MOST_POPPED),
            invisible_ms=round(wish.invisible * 1000),
            wait_ms=round(seconds * 1000),
            born_ms=self.brokers.clock.now_ms(),
            init_mode=FROM_END,
            expression=wish.subscription.expression,
            expression_type=wish.subscription.expression_type,
            is_ordered=wish.fifo,
            attempt_id=request.attempt_id or None,
            broker_name=wish.broker_name or None,
        )
        answer = await client.ask_apart(
            wish.broker_name, pop.command(), call, seconds + 5, lambda late: self._give_back_answer(wish, late)
        )
        if answer.code in NOTHING:
            return []
        if answer.code != ResponseCode.SUCCESS:
            raise CallFailed(code_of(answer), answer.remark or f"the pop was answered with {answer.code}")
        return _taken_apart(answer, wish)

    def _give_back_answer(self, wish: Wish, answer: Command) -> None:
        """The client is gone. What its pop found is for others."""
        if answer.code == ResponseCode.SUCCESS:
            self._give_back(wish, _taken_apart(answer, wish))

    def _give_back(self, wish: Wish, popped: list[Popped]) -> None:
        async def give_back() -> None:
            for one in popped:
                await return_soon(self.brokers, wish.group, wish.topic, one.handle)

        _TASKS.add(task := asyncio.create_task(give_back()))
        task.add_done_callback(_TASKS.discard)

    # --- handing out -----------------------------------------------------------------------

    async def _is_for(self, wish: Wish, one: Popped, call: Call) -> bool:
        """Whether a message goes to the client: it has the right tag, and did not come too often."""
        if not _has_tag(wish.subscription, one.stored):
            # The broker goes by the hashes of tags, which may collide.
            await self.acks.settle(wish.group, wish.topic, one.handle)
            return False
        if one.stored.reconsume_times >= wish.max_attempts:
            await self.acks.bury(wish.group, wish.topic, one.handle, f"tried {wish.max_attempts} times")
            return False
        return True

    async def _message(self, wish: Wish, one: Popped, client: GrpcClient) -> Any:
        receipt = self.sealer.write(one.handle, wish.group, wish.topic)
        try:
            message = await delivered(
                one.stored, Name.of(wish.topic, wish.namespace), receipt=receipt, attempt=one.attempt
            )
        except ClientError as error:
            logger.error("a message cannot be handed out, it comes again group=%s reason=%s", wish.group, error)
            return None
        if wish.auto_renew:
            self.renewals.add(receipt, client, wish.group, wish.topic, one.handle)
        return message


_TASKS: Final[set[asyncio.Task[None]]] = set()
"""Messages on their way back; the loop itself keeps no task alive."""


def poll_seconds(request: Any, time_left: float | None) -> float:
    """How long to wait: as long as the client asks for, and never up to its deadline."""
    wanted = LONGEST_POLL
    if request.HasField("long_polling_timeout"):
        wanted = request.long_polling_timeout.ToMilliseconds() / 1000
    if time_left is not None:
        wanted = min(wanted, time_left - MARGIN)
    return min(max(wanted, 0.0), LONGEST_POLL)


def _taken_apart(answer: Command, wish: Wish) -> list[Popped]:
    """The messages of a pop, each with its handle.

    Raises:
        CallFailed: the answer is not what a pop's should be.
    """
    try:
        starts, attempts = start_offsets(answer, wish.broker_name), _order_counts(answer)
        popped = []
        for stored in decode_records(answer.body):
            carried = stored.properties.get(Property.POP_CK)
            receipt = Receipt.parse(carried) if carried else Receipt(
                starts[stored.queue_id], answer.integer("popTime"), answer.integer("invisibleTime"),
                answer.integer("reviveQid"), PLAIN, wish.broker_name, stored.queue_id, stored.queue_offset,
            )  # fmt: skip
            times = attempts.get((stored.queue_id, stored.queue_offset), stored.reconsume_times)
            stored = attrs.evolve(stored, reconsume_times=times)
            popped.append(Popped(stored, Handle(receipt, stored.commit_log_offset), times + 1))
    except (BadAnswer, KeyError, ValueError) as error:
        raise CallFailed(Code.INTERNAL_SERVER_ERROR, f"the pop's answer cannot be read: {error}") from error
    return popped


def _order_counts(answer: Command) -> Mapping[tuple[int, int], int]:
    """Queue and offset → how often a message was handed out before, for pops in order: ``0 qo3%17 2``."""
    counts = {}
    for part in answer.text("orderCountInfo", "").split(";"):
        words = part.split(" ")
        if len(words) == 3 and words[1].startswith("qo"):
            queue_id, _, offset = words[1][2:].partition("%")
            counts[int(queue_id), int(offset)] = int(words[2])
    return counts


def _has_tag(wanted: Subscription, stored: StoredMessage) -> bool:
    if wanted.wants_all or wanted.expression_type != "TAG":
        return True
    return stored.tags in {tag.strip() for tag in wanted.expression.split("||")}
