"""Brokers and topics as a whole: what each broker says of itself, and what each queue of a topic holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs

from verniermq.client.admin.progress import ProgressAdmin, object_pairs
from verniermq.client.routes import MASTER
from verniermq.kernel import MessageQueue, RemotingError, RequestCode, ResponseCode, UnexpectedAnswer
from verniermq.kernel.requests import GetEarliestStoreTime
from verniermq.protocol.figures import GetTopicStats, QueryGroups
from verniermq.protocol.nameserver import SetWritePermission
from verniermq.protocol.replicas import SwitchMaster
from verniermq.protocol.topics import GetTopicConfig

SWITCH_SECONDS: Final = 60.0


@attrs.frozen
class BrokerStatus:
    """One broker: where it is, and its figures by RocketMQ's names, or why it gave none."""

    cluster: str
    name: str
    broker_id: int
    address: str
    figures: Mapping[str, str]
    trouble: str = ""

    @property
    def role(self) -> str:
        return "master" if self.broker_id == MASTER else "slave"

    def rate(self, name: str) -> float:
        """The first of the three rates that such a figure has, of about 10 seconds."""
        first = self.figures.get(name, "").split(" ")[0]
        try:
            return float(first)
        except ValueError:
            return 0.0


@attrs.frozen
class TopicQueue:
    """One queue of a topic."""

    queue: MessageQueue
    first: int
    end: int
    """One past the last message."""
    last_ms: int
    """When the last message was stored; 0 if there is none."""


@attrs.frozen
class TopicStatus:
    """What the queues of a topic hold, and what comes."""

    queues: tuple[TopicQueue, ...]
    rate: float
    """Messages in, a second, where brokers say it; Apache's do from 5.2 on."""


class ClusterAdmin(ProgressAdmin):
    async def broker_statuses(self) -> list[BrokerStatus]:
        """Every broker that a name server knows, also those that do not answer."""
        self._ensure_running()
        clusters = {name: cluster for cluster, names in (await self.clusters()).items() for name in names}
        found = []
        for name, ids in sorted((await self.brokers()).items()):
            for broker_id, address in sorted(ids.items()):
                figures: Mapping[str, str] = {}
                trouble = ""
                try:
                    body = await self._api.json(address, RequestCode.GET_BROKER_RUNTIME_INFO)
                    figures = dict(body.get("table") or {})
                except RemotingError as error:
                    trouble = str(error)
                found.append(BrokerStatus(clusters.get(name, ""), name, broker_id, address, figures, trouble))
        return found

    async def topic_status(self, name: str) -> TopicStatus:
        """
        Raises:
            NoRoute: there is no such topic.
        """
        self._ensure_running()
        wire = self._wire(name)
        route = await self._routes.fetch(wire)
        found = []
        rate = 0.0
        for broker in route.brokers:
            address = route.address(broker)
            if address is None:
                continue
            body = await self._api.json(address, GetTopicStats(topic=wire))
            rate += float(body.get("topicPutTps") or 0)
            for queue, row in object_pairs(body.get("offsetTable")):
                place = MessageQueue(wire, str(queue["brokerName"]), int(queue["queueId"]))
                figures = (int(row.get(key) or 0) for key in ("minOffset", "maxOffset", "lastUpdateTimestamp"))
                found.append(TopicQueue(place, *figures))
        return TopicStatus(tuple(sorted(found, key=lambda row: (row.queue.broker_name, row.queue.queue_id))), rate)

    async def first_stored(self, queue: MessageQueue) -> int:
        """When the first message of a queue was stored, in milliseconds since 1970; 0 if there is none."""
        self._ensure_running()
        asked = GetEarliestStoreTime(topic=queue.topic, queue_id=queue.queue_id)
        try:
            answer = await self._api.ask(await self._address_of(queue), asked)
        except UnexpectedAnswer:
            return 0  # its messages have just expired
        return max(0, answer.integer("timestamp", 0))

    async def topic_settings(self, name: str) -> dict[str, dict[str, Any]]:
        """Broker name → the settings of a topic there, by RocketMQ's names.

        Raises:
            NoRoute: there is no such topic.
        """
        self._ensure_running()
        wire = self._wire(name)
        route = await self._routes.fetch(wire)
        found = {}
        for broker in route.brokers:
            address = route.address(broker)
            if address is not None:
                found[broker] = await self._api.json(address, GetTopicConfig(topic=wire))
        return found

    async def groups_of(self, name: str) -> list[str]:
        """The groups that have offsets of a topic, or members that subscribe to it.

        Raises:
            NoRoute: there is no such topic.
        """
        self._ensure_running()
        wire = self._wire(name)
        groups: set[str] = set()
        route = await self._routes.fetch(wire)
        for broker in route.brokers:
            address = route.address(broker)
            if address is not None:
                body = await self._api.json(address, QueryGroups(topic=wire))
                groups.update(body.get("groupList") or [])
        return sorted(groups)

    async def update_broker_config(self, broker: str, settings: Mapping[str, str]) -> None:
        """Change settings of a running broker, by RocketMQ's names.

        Raises:
            NoSuchBroker: there is none of that name.
            UnexpectedAnswer: it refused.
        """
        self._ensure_running()
        body = "".join(f"{name}={value}\n" for name, value in settings.items()).encode()
        await self._api.call((await self._masters([broker]))[broker], RequestCode.UPDATE_BROKER_CONFIG, body=body)

    async def replicas(self, broker: str) -> dict[str, Any] | None:
        """What the master says of the replicas of a broker that chooses its master itself; ``None`` if it does not.

        Raises:
            NoSuchBroker: no name server knows a master of that name.
            UnexpectedAnswer: it refuses to say.
        """
        self._ensure_running()
        try:
            return dict(await self._api.json((await self._masters([broker]))[broker], RequestCode.GET_REPLICAS))
        except UnexpectedAnswer as error:
            if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                return None
            raise

    async def switch_master(self, broker: str, replica: int) -> None:
        """Make another replica the master; sends wait for it.

        Raises:
            NoSuchBroker: no name server knows a master of that name.
            UnexpectedAnswer: the replica is not in sync.
        """
        self._ensure_running()
        address = (await self._masters([broker]))[broker]
        await self._api.ask(address, SwitchMaster(replica=replica), SWITCH_SECONDS)

    async def set_write_permission(self, broker: str, may_write: bool) -> int:
        """Tell all name servers whether a broker's topics may be sent to; producers go elsewhere once they ask again.

        Says how many topics that are.

        Raises:
            UnexpectedAnswer: a name server refused.
        """
        self._ensure_running()
        code = RequestCode.ADD_WRITE_PERM_OF_BROKER if may_write else RequestCode.WIPE_WRITE_PERM_OF_BROKER
        counts = []
        for address in self.options.namesrv:
            answer = await self._api.call(address, code, SetWritePermission(name=broker).ext())
            counts.append(answer.integer("addTopicCount" if may_write else "wipeTopicCount", 0))
        return max(counts)
