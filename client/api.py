"""One method per request to a broker: fields in, a checked answer out (RocketMQ: ``MQClientAPIImpl``).

Everything that is sent to a broker is worded here, except sends, which have a file of their own because they are
on the path of every message.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import orjson

from verniermq.client.connection import ConnectionPool
from verniermq.client.message import ReceivedMessage, decode_messages, decode_one
from verniermq.client.results import PullResult, PullStatus
from verniermq.kernel import (
    Command,
    MessageQueue,
    RequestCode,
    ResponseCode,
    Subscription,
    UnexpectedAnswer,
    parse_fastjson,
)

COMMIT_OFFSET: Final = 0x1
SUSPEND: Final = 0x2
SUBSCRIPTION_INCLUDED: Final = 0x4
LITE_PULL: Final = 0x10
LONGEST_REASON: Final = 1000
"""Characters of an error that travel with a message that is handed back."""

_PULLED: Final = {int(status.value): status for status in PullStatus}


def queue_json(queue: MessageQueue) -> dict[str, Any]:
    return {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}


def queue_from_json(data: Mapping[str, Any]) -> MessageQueue:
    return MessageQueue(str(data["topic"]), str(data["brokerName"]), int(data["queueId"]))


class BrokerApi:
    """Requests to brokers, by address."""

    def __init__(self, pool: ConnectionPool, timeout: float) -> None:
        self._pool = pool
        self._timeout = timeout

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
        answer = await self._pool.request(address, Command.request(code, ext or {}, body), timeout or self._timeout)
        if answer.code != ResponseCode.SUCCESS:
            raise UnexpectedAnswer(address, code.name, answer.code, answer.remark)
        return answer

    async def json(
        self, address: str, code: RequestCode, ext: dict[str, str] | None = None, *, timeout: float | None = None
    ) -> Any:
        answer = await self.call(address, code, ext, timeout=timeout)
        return parse_fastjson(answer.body) if answer.body else {}

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
        flags = SUBSCRIPTION_INCLUDED if include_subscription else 0
        flags |= (SUSPEND if hold_ms else 0) | (LITE_PULL if lite else 0) | (COMMIT_OFFSET if commit is not None else 0)
        ext = {
            "consumerGroup": group,
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            "queueOffset": str(offset),
            "maxMsgNums": str(max_messages),
            "sysFlag": str(flags),
            "commitOffset": str(commit or 0),
            "suspendTimeoutMillis": str(hold_ms),
            "subVersion": str(subscription.version),
            "expressionType": subscription.expression_type,
            "bname": queue.broker_name,
        }
        if include_subscription:
            ext["subscription"] = subscription.expression
        code = RequestCode.LITE_PULL_MESSAGE if lite else RequestCode.PULL_MESSAGE
        answer = await self._pool.request(address, Command.request(code, ext), timeout)
        status = _PULLED.get(answer.code)
        if status is None:
            raise UnexpectedAnswer(address, code.name, answer.code, answer.remark)
        got = answer.ext
        messages = decode_messages(answer.body, queue) if status is PullStatus.FOUND else []
        return PullResult(
            status, messages, int(got["nextBeginOffset"]), int(got["minOffset"]), int(got["maxOffset"]),
            int(got.get("suggestWhichBrokerId") or 0),
        )  # fmt: skip

    # --- offsets ---------------------------------------------------------------------------

    async def _offset(self, address: str, code: RequestCode, queue: MessageQueue, **more: str) -> int:
        ext = {"topic": queue.topic, "queueId": str(queue.queue_id), "bname": queue.broker_name, **more}
        return (await self.call(address, code, ext)).integer("offset")

    async def max_offset(self, address: str, queue: MessageQueue) -> int:
        """One past the last message."""
        return await self._offset(address, RequestCode.GET_MAX_OFFSET, queue)

    async def min_offset(self, address: str, queue: MessageQueue) -> int:
        return max(0, await self._offset(address, RequestCode.GET_MIN_OFFSET, queue))

    async def offset_by_time(self, address: str, queue: MessageQueue, timestamp_ms: int) -> int:
        """The first message stored at that time or later."""
        return await self._offset(
            address, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, queue, timestamp=str(timestamp_ms), boundaryType="LOWER"
        )

    async def committed(self, address: str, group: str, queue: MessageQueue, *, guess: bool = True) -> int | None:
        """Where a group is in a queue; ``None`` if the broker has nothing of it.

        ``guess`` lets the broker answer 0 for a queue that still has its first message.
        """
        ext = {
            "consumerGroup": group,
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            "setZeroIfNotFound": "true" if guess else "false",
            "bname": queue.broker_name,
        }
        try:
            return (await self.call(address, RequestCode.QUERY_CONSUMER_OFFSET, ext)).integer("offset")
        except UnexpectedAnswer as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise

    async def commit(
        self, address: str, group: str, queue: MessageQueue, offset: int, *, wait: bool = False
    ) -> None:
        """Say where a group is; one way unless ``wait``."""
        ext = {
            "consumerGroup": group,
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            "commitOffset": str(offset),
            "bname": queue.broker_name,
        }
        if wait:
            await self.call(address, RequestCode.UPDATE_CONSUMER_OFFSET, ext)
        else:
            await self._pool.oneway(
                address, Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, ext, oneway=True), self._timeout
            )

    # --- who is alive ----------------------------------------------------------------------

    async def consumer_ids(self, address: str, group: str) -> list[str]:
        """The client ids of a group's live members."""
        body = await self.json(address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group})
        return sorted(body.get("consumerIdList") or [])

    async def unregister(
        self, address: str, client_id: str, *, producer_group: str = "", consumer_group: str = ""
    ) -> None:
        ext = {"clientID": client_id}
        if producer_group:
            ext["producerGroup"] = producer_group
        if consumer_group:
            ext["consumerGroup"] = consumer_group
        await self.call(address, RequestCode.UNREGISTER_CLIENT, ext)

    async def lock(
        self, address: str, client_id: str, group: str, queues: Iterable[MessageQueue], timeout: float = 1.0
    ) -> set[MessageQueue]:
        """The queues that are this client's alone now."""
        answer = await self.call(
            address, RequestCode.LOCK_BATCH_MQ, body=_lock_body(client_id, group, queues), timeout=timeout
        )
        body = parse_fastjson(answer.body) if answer.body else {}
        return {queue_from_json(queue) for queue in body.get("lockOKMQSet") or ()}

    async def unlock(self, address: str, client_id: str, group: str, queues: Iterable[MessageQueue]) -> None:
        command = Command.request(
            RequestCode.UNLOCK_BATCH_MQ, body=_lock_body(client_id, group, queues), oneway=True
        )
        await self._pool.oneway(address, command, self._timeout)

    # --- messages --------------------------------------------------------------------------

    async def send_back(
        self, address: str, group: str, message: ReceivedMessage, *, delay_level: int, max_reconsume_times: int,
        origin_topic: str, reason: str = "",
    ) -> None:  # fmt: skip
        """Hand a message back: the broker offers it again later, or puts it to the dead letters.

        The reason is kept by VernierMQ's brokers, to be read with the dead letter; Apache's leave it alone.
        """
        ext = {
            "offset": str(message.commit_log_offset),
            "group": group,
            "delayLevel": str(delay_level),
            "originMsgId": message.offset_message_id,
            "originTopic": origin_topic,
            "unitMode": "false",
            "maxReconsumeTimes": str(max_reconsume_times),
            "bname": message.queue.broker_name,
        }
        if reason:
            ext["failureReason"] = reason[:LONGEST_REASON]
        await self.call(address, RequestCode.CONSUMER_SEND_MSG_BACK, ext, timeout=5.0)

    async def view(self, address: str, commit_log_offset: int, broker_name: str, topic: str = "") -> ReceivedMessage:
        ext = {"offset": str(commit_log_offset)}
        if topic:
            ext["topic"] = topic
        answer = await self.call(address, RequestCode.VIEW_MESSAGE_BY_ID, ext)
        return decode_one(answer.body, broker_name)

    async def query(
        self, address: str, broker_name: str, topic: str, key: str, *, limit: int, begin_ms: int, end_ms: int,
        unique: bool,
    ) -> Sequence[ReceivedMessage]:  # fmt: skip
        """Messages by a key; the broker goes by the key's hash, so there may be some too many."""
        ext = {
            "topic": topic,
            "key": key,
            "maxNum": str(limit),
            "beginTimestamp": str(begin_ms),
            "endTimestamp": str(end_ms),
            "_UNIQUE_KEY_QUERY": "true" if unique else "false",
        }
        try:
            answer = await self.call(address, RequestCode.QUERY_MESSAGE, ext, timeout=18.0)
        except UnexpectedAnswer as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return []
            raise
        found = []
        position = 0
        while position < len(answer.body):
            message = decode_one(answer.body[position:], broker_name)
            found.append(message)
            position += message.size
        return found


def _lock_body(client_id: str, group: str, queues: Iterable[MessageQueue]) -> bytes:
    return orjson.dumps(
        {
            "clientId": client_id,
            "consumerGroup": group,
            "mqSet": [queue_json(queue) for queue in queues],
            "onlyThisBroker": False,
        }
    )
