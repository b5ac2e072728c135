"""One method per request to a broker: fields in, a checked answer out (RocketMQ: ``MQClientAPIImpl``).

Everything that is sent to a broker is worded here, except sends, which have a file of their own because they are
on the path of every message.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from verniermq.client.connection import ConnectionPool
from verniermq.client.errors import BadAnswer, ReceiptExpired
from verniermq.client.message import (
    MAX_OFFSET,
    DamagedMessage,
    ReceivedMessage,
    decode_messages,
    decode_one,
    decode_popped,
)
from verniermq.client.receipt import PLAIN, Receipt, start_offsets
from verniermq.client.results import PullResult, PullStatus
from verniermq.kernel import (
    Command,
    MessageQueue,
    Property,
    RequestCode,
    ResponseCode,
    Subscription,
    UnexpectedAnswer,
    parse_answer,
)
from verniermq.kernel.requests import (
    GetConsumerList,
    GetMaxOffset,
    GetMinOffset,
    PullMessage,
    QueryConsumerOffset,
    Request,
    SearchOffset,
    UnregisterClient,
    UpdateConsumerOffset,
)
from verniermq.protocol.inflate import MAX_BODY
from verniermq.protocol.lock import LockBatchMQ
from verniermq.protocol.pop import AckMessage, ChangeInvisibleTime, Notification, PopMessage
from verniermq.protocol.query import QueryMessage, ViewMessage
from verniermq.protocol.recall import RecallMessage
from verniermq.protocol.sendback import ConsumerSendMsgBack

logger = logging.getLogger(__name__)

LIGHT_QUEUE_PREFIX: Final = "%LMQ%"
LONGEST_REASON: Final = 1000
"""Characters of an error that travel with a message that is handed back."""

SLACK_SECONDS: Final = 10.0
"""What an answer may take longer than the broker was asked to wait."""

_NOTHING_POPPED: Final = frozenset(
    {ResponseCode.POLLING_TIMEOUT, ResponseCode.POLLING_FULL, ResponseCode.PULL_NOT_FOUND}
)
_PULLED: Final = {int(status.value): status for status in PullStatus}


def queue_json(queue: MessageQueue) -> dict[str, Any]:
    return {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}


def queue_from_json(data: Mapping[str, Any]) -> MessageQueue:
    return MessageQueue(str(data["topic"]), str(data["brokerName"]), int(data["queueId"]))


class BrokerApi:
    """Requests to brokers, by address."""

    def __init__(self, pool: ConnectionPool, timeout: float, max_body_size: int = MAX_BODY) -> None:
        self._pool = pool
        self._timeout = timeout
        self._max_body_size = max_body_size

    async def call(
        self,
        address: str,
        code: RequestCode,
        ext: dict[str, str] | None = None,
        body: bytes = b"",
        *,
        timeout: float | None = None,
    ) -> Command:
        """An answer that says success.

        Raises:
            UnexpectedAnswer: it says something else.
            RemotingError: there is none.
        """
        return await self._called(address, code.name, Command.request(code, ext or {}, body), timeout)

    async def ask(self, address: str, request: Request, timeout: float | None = None) -> Command:
        """The same for a request that has a class.

        Raises:
            UnexpectedAnswer, RemotingError: as :meth:`call`.
        """
        return await self._called(address, request.code.name, request.command(), timeout)

    async def _called(self, address: str, name: str, command: Command, timeout: float | None) -> Command:
        answer = await self._pool.request(address, command, timeout or self._timeout)
        if answer.code != ResponseCode.SUCCESS:
            raise UnexpectedAnswer(address, name, answer.code, answer.remark)
        return answer

    async def json(self, address: str, asked: Request | RequestCode, *, timeout: float | None = None) -> Any:
        """The object in the body of an answer; a code alone is a request without fields."""
        if isinstance(asked, RequestCode):
            return parse_answer((await self.call(address, asked, timeout=timeout)).body, address, asked.name)
        return parse_answer((await self.ask(address, asked, timeout)).body, address, asked.code.name)

    # --- pulling ---------------------------------------------------------------------------

    async def pull(
        self,
        address: str,
        queue: MessageQueue,
        offset: int,
        *,
        group: str,
        max_messages: int,
        subscription: Subscription,
        include_subscription: bool,
        hold_ms: int = 0,
        commit: int | None = None,
        lite: bool = False,
        timeout: float = 30.0,
    ) -> PullResult:
        """Read a queue; with ``hold_ms`` the broker waits so long for the first message.

        Raises:
            UnexpectedAnswer, RemotingError: as :meth:`call`.
        """
        flags = PullMessage.SUBSCRIPTION_INCLUDED if include_subscription else 0
        flags |= (PullMessage.SUSPEND if hold_ms else 0) | (PullMessage.LITE if lite else 0)
        pull = PullMessage(
            group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            offset=offset,
            max_messages=max_messages,
            sys_flag=flags | (PullMessage.COMMIT_OFFSET if commit is not None else 0),
            commit_offset=commit or 0,
            wait_ms=hold_ms,
            expression=subscription.expression if include_subscription else None,
            expression_type=subscription.expression_type,
            sub_version=subscription.version,
            broker_name=queue.broker_name,
        )
        code = RequestCode.LITE_PULL_MESSAGE if lite else RequestCode.PULL_MESSAGE
        answer = await self._pool.request(address, pull.command(code), timeout)
        status = _PULLED.get(answer.code)
        if status is None:
            raise UnexpectedAnswer(address, code.name, answer.code, answer.remark)
        got = answer.ext
        following = int(got["nextBeginOffset"])
        messages: list[ReceivedMessage] = []
        damaged: list[DamagedMessage] = []
        if status is PullStatus.FOUND:
            # Queues that are views of others have offsets of their own, which their records know nothing of.
            is_view = "offsetDelta" in got or queue.topic.startswith(LIGHT_QUEUE_PREFIX)
            bounds = (0, MAX_OFFSET) if is_view else (offset, following)
            messages, damaged = decode_messages(answer.body, queue, self._max_body_size, *bounds)
        return PullResult(
            status, messages, following, int(got["minOffset"]), int(got["maxOffset"]),
            int(got.get("suggestWhichBrokerId") or 0), damaged,
        )  # fmt: skip

    # --- popping ---------------------------------------------------------------------------

    async def pop(
        self, address: str, broker_name: str, subscription: Subscription, *, group: str, max_messages: int,
        invisible_ms: int, from_end: bool,
    ) -> list[ReceivedMessage]:  # fmt: skip
        """Take messages from any queue of a topic, without waiting; each has its receipt.

        Raises:
            UnexpectedAnswer, RemotingError: as :meth:`call`.
            BadAnswer: it does not say what the messages are acknowledged by.
        """
        pop = PopMessage(
            group=group,
            topic=subscription.topic,
            queue_id=-1,
            born_ms=int(time.time() * 1000),
            expression=subscription.expression,
            expression_type=subscription.expression_type,
            max_messages=max_messages,
            invisible_ms=invisible_ms,
            init_mode=1 if from_end else 0,
            broker_name=broker_name,
        )
        answer = await self._pool.request(address, pop.command(), self._timeout)
        if answer.code in _NOTHING_POPPED:
            return []
        if answer.code != ResponseCode.SUCCESS:
            raise UnexpectedAnswer(address, "POP_MESSAGE", answer.code, answer.remark)
        messages, damaged = decode_popped(answer.body, broker_name, self._max_body_size)
        for record in damaged:
            logger.error("damaged message left out, it comes again group=%s message=%s", group, record)
        starts = start_offsets(answer, address)
        for message in messages:
            try:
                carried = message.properties.get(Property.POP_CK)
                message.receipt = Receipt.parse(carried) if carried else Receipt(
                    starts[message.queue.queue_id], answer.integer("popTime"), answer.integer("invisibleTime"),
                    answer.integer("reviveQid"), PLAIN, broker_name, message.queue.queue_id, message.queue_offset,
                )  # fmt: skip
            except (KeyError, ValueError) as error:
                raise BadAnswer(address, "POP_MESSAGE", f"no handle of message {message.message_id}: {error}") from None
        return messages

    async def wait_to_pop(self, address: str, subscription: Subscription, *, group: str, hold_ms: int) -> bool:
        """Wait until there is something to pop, or the time is over; ``False`` if too many wait there already.

        Raises:
            UnexpectedAnswer, RemotingError: as :meth:`call`.
        """
        question = Notification(
            group=group,
            topic=subscription.topic,
            queue_id=-1,
            wait_ms=hold_ms,
            born_ms=int(time.time() * 1000),
            expression=subscription.expression,
            expression_type=subscription.expression_type,
        )
        answer = await self.ask(address, question, hold_ms / 1000 + SLACK_SECONDS)
        return answer.ext.get("pollingFull") != "true"

    async def acknowledge(self, address: str, group: str, topic: str, receipt: Receipt) -> None:
        """A popped message is done with."""
        ack = AckMessage(
            group=group,
            topic=receipt.wire_topic(topic, group),
            queue_id=receipt.queue_id,
            offset=receipt.offset,
            handle=str(receipt),
            broker_name=receipt.broker_name,
        )
        await self.ask(address, ack)

    async def change_invisible(
        self, address: str, group: str, topic: str, receipt: Receipt, invisible_ms: int
    ) -> Receipt:
        """Let a popped message stay invisible for so long from now on; the handle that holds from now on.

        Raises:
            ReceiptExpired: it came, or will come, to somebody else.
        """
        change = ChangeInvisibleTime(
            group=group,
            topic=receipt.wire_topic(topic, group),
            queue_id=receipt.queue_id,
            offset=receipt.offset,
            handle=str(receipt),
            broker_name=receipt.broker_name,
            invisible_ms=invisible_ms,
        )
        try:
            return receipt.renewed(await self.ask(address, change))
        except UnexpectedAnswer as error:
            if error.code == ResponseCode.NO_MESSAGE:
                raise ReceiptExpired(str(receipt), error.remark) from None
            raise

    # --- offsets ---------------------------------------------------------------------------

    async def max_offset(self, address: str, queue: MessageQueue) -> int:
        """One past the last message."""
        asked = GetMaxOffset(topic=queue.topic, queue_id=queue.queue_id, broker_name=queue.broker_name)
        return (await self.ask(address, asked)).integer("offset")

    async def min_offset(self, address: str, queue: MessageQueue) -> int:
        asked = GetMinOffset(topic=queue.topic, queue_id=queue.queue_id, broker_name=queue.broker_name)
        return max(0, (await self.ask(address, asked)).integer("offset"))

    async def offset_by_time(self, address: str, queue: MessageQueue, timestamp_ms: int) -> int:
        """The first message stored at that time or later."""
        asked = SearchOffset(
            topic=queue.topic, queue_id=queue.queue_id, broker_name=queue.broker_name, timestamp=timestamp_ms
        )
        return (await self.ask(address, asked)).integer("offset")

    async def committed(self, address: str, group: str, queue: MessageQueue, *, guess: bool = True) -> int | None:
        """Where a group is in a queue; ``None`` if the broker has nothing of it.

        ``guess`` lets the broker answer 0 for a queue that still has its first message.
        """
        asked = QueryConsumerOffset(
            group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            zero_if_none=guess,
            broker_name=queue.broker_name,
        )
        try:
            return (await self.ask(address, asked)).integer("offset")
        except UnexpectedAnswer as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise

    async def commit(self, address: str, group: str, queue: MessageQueue, offset: int, *, wait: bool = False) -> None:
        """Say where a group is; one way unless ``wait``."""
        update = UpdateConsumerOffset(
            group=group, topic=queue.topic, queue_id=queue.queue_id, offset=offset, broker_name=queue.broker_name
        )
        if wait:
            await self.ask(address, update)
        else:
            await self._pool.oneway(address, update.command(oneway=True), self._timeout)

    # --- who is alive ----------------------------------------------------------------------

    async def consumer_ids(self, address: str, group: str) -> list[str]:
        """The client ids of a group's live members."""
        answer = await self.ask(address, GetConsumerList(group=group))
        body = parse_answer(answer.body, address, "GET_CONSUMER_LIST_BY_GROUP")
        return sorted(body.get("consumerIdList") or [])

    async def unregister(
        self, address: str, client_id: str, *, producer_group: str = "", consumer_group: str = ""
    ) -> None:
        leaving = UnregisterClient(
            client_id=client_id, producer_group=producer_group or None, consumer_group=consumer_group or None
        )
        await self.ask(address, leaving)

    async def lock(
        self, address: str, client_id: str, group: str, queues: Iterable[MessageQueue], timeout: float = 1.0
    ) -> set[MessageQueue]:
        """The queues that are this client's alone now."""
        answer = await self.ask(address, LockBatchMQ.of_queues(group, client_id, queues), timeout)
        body = parse_answer(answer.body, address, "LOCK_BATCH_MQ")
        return {queue_from_json(queue) for queue in body.get("lockOKMQSet") or ()}

    async def unlock(self, address: str, client_id: str, group: str, queues: Iterable[MessageQueue]) -> None:
        unlock = LockBatchMQ.of_queues(group, client_id, queues)
        command = unlock.command(RequestCode.UNLOCK_BATCH_MQ, oneway=True)
        await self._pool.oneway(address, command, self._timeout)

    # --- messages --------------------------------------------------------------------------

    async def send_back(
        self, address: str, group: str, message: ReceivedMessage, *, delay_level: int, max_reconsume_times: int | None,
        origin_topic: str, reason: str = "",
    ) -> None:  # fmt: skip
        """Hand a message back: the broker offers it again later, or puts it to the dead letters.

        The reason is kept by VernierMQ's brokers, to be read with the dead letter; Apache's leave it alone.
        """
        back = ConsumerSendMsgBack(
            group=group,
            offset=message.commit_log_offset,
            delay_level=delay_level,
            max_reconsume_times=max_reconsume_times,
            origin_message_id=message.offset_message_id,
            origin_topic=origin_topic,
            broker_name=message.queue.broker_name,
            reason=reason[:LONGEST_REASON] or None,
        )
        await self.ask(address, back, 5.0)

    async def recall(self, address: str, group: str, topic: str, broker_name: str, handle: str) -> str:
        """Take a message with a delivery time back; its unique id."""
        recall = RecallMessage(group=group, topic=topic, handle=handle, broker_name=broker_name)
        return (await self.ask(address, recall)).text("msgId")

    async def view(self, address: str, commit_log_offset: int, broker_name: str, topic: str = "") -> ReceivedMessage:
        answer = await self.ask(address, ViewMessage(offset=commit_log_offset, topic=topic or None))
        return decode_one(answer.body, broker_name, self._max_body_size)

    async def query(
        self, address: str, broker_name: str, topic: str, key: str, *, limit: int, begin_ms: int, end_ms: int,
        unique: bool,
    ) -> Sequence[ReceivedMessage]:  # fmt: skip
        """Messages by a key; the broker goes by the key's hash, so there may be some too many."""
        query = QueryMessage(topic=topic, key=key, max_messages=limit, begin_ms=begin_ms, end_ms=end_ms, unique=unique)
        try:
            answer = await self.ask(address, query, 18.0)
        except UnexpectedAnswer as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return []
            raise
        found = []
        position = 0
        while position < len(answer.body):
            message = decode_one(answer.body[position:], broker_name, self._max_body_size)
            found.append(message)
            position += message.size
        return found
