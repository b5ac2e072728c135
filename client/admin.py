"""Looking after topics, groups, offsets and messages (RocketMQ: ``MQAdminExt``, ``mqadmin``)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final, Literal, Unpack

import anyio
import attrs
import orjson

from verniermq.client.base import Client
from verniermq.client.consumer.pull import TOOLS_GROUP
from verniermq.client.errors import MessageNotFound, NoRoute
from verniermq.client.message import ReceivedMessage
from verniermq.client.names import with_namespace
from verniermq.client.options import ConnectionOptions
from verniermq.client.outgoing import Preparer
from verniermq.client.results import PullStatus
from verniermq.client.routes import MASTER, TEMPLATE_TOPIC
from verniermq.client.selectors import RoundRobin
from verniermq.client.sending import Sender
from verniermq.kernel import (
    DEAD_LETTER_PREFIX,
    Message,
    MessageQueue,
    Perm,
    Property,
    RemotingError,
    RequestCode,
    ResponseCode,
    Subscription,
    UnexpectedAnswer,
    check_group_name,
    check_topic_name,
    parse_offset_message_id,
)

ROUTE_PATIENCE: Final = 5.0
"""Seconds that a new topic may take to reach the name server."""
FOREVER: Final = 2**63 - 1

GROUP_DEFAULTS: Final = {
    "attributes": {},
    "brokerId": 0,
    "consumeBroadcastEnable": True,
    "consumeEnable": True,
    "consumeFromMinEnable": True,
    "consumeMessageOrderly": False,
    "consumeTimeoutMinute": 15,
    "groupSysFlag": 0,
    "notifyConsumerIdsChangedEnable": True,
    "whichBrokerWhenConsumeSlowly": 1,
}

NOT_RESENT: Final = frozenset(
    {
        Property.RETRY_TOPIC, Property.ORIGIN_MESSAGE_ID, Property.RECONSUME_TIME, Property.MAX_RECONSUME_TIMES,
        Property.DELAY, Property.REAL_TOPIC, Property.REAL_QUEUE_ID, Property.UNIQUE_KEY,
        Property.TRANSACTION_PREPARED, Property.PRODUCER_GROUP, Property.WAIT, Property.REGION,
        Property.TRACE_SWITCH, Property.CLUSTER,
    }
)  # fmt: skip
"""What a message gained on its way to the dead letters, and a new one must not begin with."""


@attrs.frozen
class QueueProgress:
    """How far a group is in one queue."""

    committed: int | None
    """The next message it wants; ``None`` if it never said."""
    min_offset: int
    max_offset: int

    @property
    def lag(self) -> int:
        place = self.min_offset if self.committed is None else self.committed
        return max(0, self.max_offset - max(place, self.min_offset))


@attrs.frozen
class TopicInfo:
    """One topic, over all brokers that have it."""

    name: str
    queues: int
    """Read queues on all brokers together."""
    write_queues: int
    perm: int
    brokers: tuple[str, ...]


class Admin(Client):
    """Creates, changes, lists and deletes; looks at messages and at how far groups are.

    ::

        async with Admin() as admin:
            await admin.create_topic("orders", queues=8)
            print(await admin.lag("billing"))
    """

    def __init__(self, **connection: Unpack[ConnectionOptions]) -> None:
        super().__init__(**connection)

    def _wire(self, name: str) -> str:
        return with_namespace(self.options.namespace, name)

    async def _masters(self, brokers: Sequence[str] | None = None) -> dict[str, str]:
        """Broker name → address of its master."""
        known = await self._name_servers.brokers()
        wanted = {name: ids for name, ids in sorted(known.items()) if not brokers or name in brokers}
        return {name: ids[MASTER] for name, ids in wanted.items() if MASTER in ids}

    # --- topics ----------------------------------------------------------------------------

    async def topics(self) -> list[str]:
        """The names of all topics that the name server knows, system topics included."""
        self._ensure_running()
        return await self._name_servers.topics()

    async def topic(self, name: str) -> TopicInfo:
        """
        Raises:
            NoRoute: there is no such topic.
        """
        self._ensure_running()
        route = await self._routes.fetch(self._wire(name))
        return TopicInfo(
            name,
            sum(data.read for data in route.queues),
            sum(data.write for data in route.queues),
            max((data.perm for data in route.queues), default=0),
            tuple(data.broker_name for data in route.queues),
        )

    async def create_topic(
        self,
        name: str,
        *,
        queues: int = 8,
        perm: int = Perm.READ_WRITE,
        order: bool = False,
        brokers: Sequence[str] | None = None,
        attributes: dict[str, str] | None = None,
    ) -> None:
        """Create a topic, or change it, on all brokers or on those named.

        Returns when the name server knows it, so that a send right afterwards finds it.

        Raises:
            BadName: it may not be called so.
            UnexpectedAnswer: a broker refused.
        """
        self._ensure_running()
        wire = self._wire(name)
        check_topic_name(wire)
        ext = {
            "topic": wire,
            "defaultTopic": TEMPLATE_TOPIC,
            "readQueueNums": str(queues),
            "writeQueueNums": str(queues),
            "perm": str(perm),
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "true" if order else "false",
            "attributes": ",".join(f"+{key}={value}" for key, value in (attributes or {}).items()),
        }
        masters = await self._masters(brokers)
        for address in masters.values():
            await self._api.call(address, RequestCode.UPDATE_AND_CREATE_TOPIC, dict(ext), timeout=10.0)
        await self._until_routed(wire, set(masters), queues)

    async def _until_routed(self, topic: str, brokers: set[str], queues: int) -> None:
        deadline = time.monotonic() + ROUTE_PATIENCE
        while True:
            try:
                route = await self._routes.fetch(topic)
            except NoRoute:
                if time.monotonic() > deadline:
                    raise
            else:
                ready = {data.broker_name for data in route.queues if data.read == queues}
                if brokers <= ready or time.monotonic() > deadline:
                    return
            await anyio.sleep(0.05)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic with its messages, on all brokers and in the name servers."""
        self._ensure_running()
        wire = self._wire(name)
        for address in (await self._masters()).values():
            await self._api.call(address, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": wire}, timeout=10.0)
        for address in self.options.namesrv:
            await self._api.call(address, RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": wire})
        self._routes.forget(wire)

    async def topic_offsets(self, name: str) -> dict[MessageQueue, tuple[int, int]]:
        """Queue → (first offset, one past the last).

        Raises:
            NoRoute: there is no such topic.
        """
        self._ensure_running()
        route = await self._routes.fetch(self._wire(name))
        found = {}
        for queue in route.readable:
            address = route.address(queue.broker_name)
            if address is not None:
                low, high = await self._api.min_offset(address, queue), await self._api.max_offset(address, queue)
                found[queue] = (low, high)
        return found

    # --- groups ----------------------------------------------------------------------------

    async def groups(self) -> list[str]:
        """The names of all consumer groups that some broker knows."""
        self._ensure_running()
        names: set[str] = set()
        for address in (await self._masters()).values():
            body = await self._api.json(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
            names.update(body.get("subscriptionGroupTable") or {})
        return sorted(names)

    async def create_group(self, name: str, *, max_reconsume_times: int = 16, retry_queues: int = 1) -> None:
        """Create a consumer group on all brokers, or change it."""
        self._ensure_running()
        wire = self._wire(name)
        check_group_name(wire)
        config = {"groupName": wire, "retryMaxTimes": max_reconsume_times, "retryQueueNums": retry_queues}
        body = orjson.dumps({**GROUP_DEFAULTS, **config})
        for address in (await self._masters()).values():
            await self._api.call(address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)

    async def delete_group(self, name: str, *, with_offsets: bool = True) -> None:
        """Forget a consumer group on all brokers."""
        self._ensure_running()
        ext = {"groupName": self._wire(name), "cleanOffset": "true" if with_offsets else "false"}
        for address in (await self._masters()).values():
            await self._api.call(address, RequestCode.DELETE_SUBSCRIPTIONGROUP, dict(ext))

    async def members(self, group: str) -> list[str]:
        """The client ids of a group's live members."""
        self._ensure_running()
        found: set[str] = set()
        for address in (await self._masters()).values():
            try:
                found.update(await self._api.consumer_ids(address, self._wire(group)))
            except UnexpectedAnswer:
                continue  # nobody of the group is connected to this broker
        return sorted(found)

    # --- offsets ---------------------------------------------------------------------------

    async def progress(self, group: str, topic: str) -> dict[MessageQueue, QueueProgress]:
        """How far a group is in each queue of a topic.

        Raises:
            NoRoute: there is no such topic.
        """
        self._ensure_running()
        found = {}
        for queue, (low, high) in (await self.topic_offsets(topic)).items():
            address = self._routes.broker_address(queue.broker_name)
            assert address is not None  # topic_offsets has just asked it
            place = await self._api.committed(address, self._wire(group), queue, guess=False)
            found[queue] = QueueProgress(place, low, high)
        return found

    async def lag(self, group: str, topic: str) -> int:
        """How many messages of a topic a group has not consumed."""
        return sum(queue.lag for queue in (await self.progress(group, topic)).values())

    async def reset_offsets(
        self, group: str, topic: str, to: datetime | int | Literal["first", "last"]
    ) -> dict[MessageQueue, int]:
        """Send a group elsewhere in a topic: to a time (``datetime`` or milliseconds), the first or the last message.

        Members that run go there at once; a group without members begins there. The new offsets are returned.

        Raises:
            NoRoute: there is no such topic.
            UnexpectedAnswer: a broker refused.
        """
        self._ensure_running()
        wire = self._wire(topic)
        route = await self._routes.fetch(wire)
        if self._wire(group) not in await self.groups():
            await self.create_group(group)
        offsets: dict[MessageQueue, int] = {}
        for queue in route.readable:
            address = route.address(queue.broker_name)
            if address is None:
                continue
            offsets[queue] = await self._offset(address, queue, to)
            await self._reset(address, group, queue, offsets[queue])
        return offsets

    async def _offset(self, address: str, queue: MessageQueue, to: datetime | int | str) -> int:
        if to == "first":
            return await self._api.min_offset(address, queue)
        if to == "last":
            return await self._api.max_offset(address, queue)
        ms = int(to.timestamp() * 1000) if isinstance(to, datetime) else int(to)
        return await self._api.offset_by_time(address, queue, ms)

    async def _reset(self, address: str, group: str, queue: MessageQueue, offset: int) -> None:
        ext = {
            "topic": queue.topic,
            "group": self._wire(group),
            "queueId": str(queue.queue_id),
            "offset": str(offset),
            "timestamp": "-1",
            "isForce": "true",
        }
        try:
            await self._api.call(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext)
        except UnexpectedAnswer as error:
            if error.code not in (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.CONSUMER_NOT_ONLINE):
                raise
            await self._api.commit(address, self._wire(group), queue, offset, wait=True)

    # --- messages --------------------------------------------------------------------------

    async def message(self, message_id: str, topic: str | None = None) -> ReceivedMessage:
        """One message by its id: the offset id, or with ``topic`` the producer's unique id.

        Raises:
            MessageNotFound: there is none.
        """
        self._ensure_running()
        if topic is not None:
            found = await self._by_key(self._wire(topic), message_id, unique=True, limit=32, begin_ms=0, end_ms=FOREVER)
            for message in found:
                if message.message_id == message_id:
                    return message
        try:
            address, log_offset = parse_offset_message_id(message_id)
            return await self._api.view(address, log_offset, "", self._wire(topic) if topic else "")
        except (ValueError, RemotingError) as error:
            raise MessageNotFound(message_id, topic, str(error)) from error

    async def messages_by_key(
        self, topic: str, key: str, *, limit: int = 32, begin_ms: int = 0, end_ms: int = FOREVER
    ) -> list[ReceivedMessage]:
        """Messages of a topic that carry a key, newest first."""
        self._ensure_running()
        found = await self._by_key(self._wire(topic), key, unique=False, limit=limit, begin_ms=begin_ms, end_ms=end_ms)
        found = [message for message in found if key in message.keys]
        found.sort(key=lambda message: message.store_timestamp, reverse=True)
        return found[:limit]

    async def _by_key(
        self, topic: str, key: str, *, unique: bool, limit: int, begin_ms: int, end_ms: int
    ) -> list[ReceivedMessage]:
        route = await self._routes.fetch(topic)
        found: list[ReceivedMessage] = []
        for name in route.brokers:
            address = route.address(name)
            if address is not None:
                found += await self._api.query(
                    address, name, topic, key, limit=limit, begin_ms=begin_ms, end_ms=end_ms, unique=unique
                )
        return [message for message in found if message.topic == topic]

    # --- dead letters ----------------------------------------------------------------------

    async def dead_letters(self, group: str, *, limit: int = 100) -> list[ReceivedMessage]:
        """The messages that a group failed on too often, oldest first; none if there never was one."""
        self._ensure_running()
        topic = DEAD_LETTER_PREFIX + self._wire(group)
        try:
            route = await self._routes.fetch(topic)
        except NoRoute:
            return []
        found: list[ReceivedMessage] = []
        for queue in route.readable:
            address = route.address(queue.broker_name)
            offset = await self._api.min_offset(address, queue) if address is not None else 0
            while address is not None and len(found) < limit:
                pulled = await self._api.pull(
                    address, queue, offset, group=TOOLS_GROUP, max_messages=32,
                    subscription=Subscription(topic), include_subscription=True, timeout=10.0,
                )  # fmt: skip
                if pulled.status is PullStatus.NO_NEW_MESSAGE:
                    break
                found += pulled.messages
                offset = pulled.next_offset
        for message in found:
            message.topic = message.properties.get(Property.RETRY_TOPIC, message.topic)
        return found[:limit]

    async def resend_dead_letters(
        self,
        group: str,
        *,
        limit: int = 100,
        per_second: float = 100.0,
        keep: Callable[[ReceivedMessage], bool] | None = None,
    ) -> int:
        """Send dead letters to their own topics again, slowly; say how many.

        They become new messages with the old keys, tags and properties. ``keep`` chooses which.
        """
        letters = [letter for letter in await self.dead_letters(group, limit=limit) if keep is None or keep(letter)]
        sender = Sender(self._pool, self._routes, RoundRobin(), self._name_servers.text)
        preparer = Preparer(f"{group}-resend"[:120])
        for letter in letters:
            properties = {name: value for name, value in letter.properties.items() if name not in NOT_RESENT}
            message = Message(letter.topic, letter.body, properties=properties, flag=letter.flag)
            await sender.send(preparer.prepare(message))
            await anyio.sleep(1 / per_second)
        return len(letters)

    # --- brokers ---------------------------------------------------------------------------

    async def brokers(self) -> dict[str, dict[int, str]]:
        """Broker name → id → address; 0 is the master."""
        self._ensure_running()
        return await self._name_servers.brokers()

    async def clusters(self) -> dict[str, list[str]]:
        """Cluster name → the names of its brokers."""
        self._ensure_running()
        return await self._name_servers.clusters()

    async def broker_info(self, broker_name: str) -> dict[str, str]:
        """The figures that a broker reports of itself."""
        self._ensure_running()
        address = (await self._masters([broker_name])).get(broker_name)
        if address is None:
            raise NoRoute(broker_name, self._name_servers.text, "no such broker")
        body: dict[str, Any] = await self._api.json(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        return dict(body.get("table") or {})
