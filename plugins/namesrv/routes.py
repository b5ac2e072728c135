"""What a name server knows: brokers, their topics, and who is alive (RocketMQ: ``RouteInfoManager``).

No sockets here. A route is made when somebody asks for it; the tables are arranged so that asking, registering
and forgetting cost what they touch, not what there is.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import attrs

from verniermq.kernel import Connection, NoPermission, Perm, RequestRefused, TopicConfig
from verniermq.plugins.namesrv.keyvalues import KeyValueTable
from verniermq.plugins.namesrv.registration import Mappings

logger = logging.getLogger(__name__)

MASTER: Final = 0
NO_MAPPINGS: Final[Mappings] = {}
NEVER: Final = math.inf


@attrs.frozen
class QueueData:
    """A topic's queues on one broker."""

    read_queues: int
    write_queues: int
    perm: int
    sys_flag: int = 0
    mapping: Mapping[str, Any] | None = None
    """Of a static topic: the logical queues that the broker leads."""

    @classmethod
    def of(cls, topic: TopicConfig, mapping: Mapping[str, Any] | None) -> QueueData:
        return cls(topic.read_queues, topic.write_queues, topic.perm, topic.sys_flag, mapping)

    def as_json(self, broker_name: str) -> dict[str, Any]:
        return {
            "brokerName": broker_name,
            "perm": self.perm,
            "readQueueNums": self.read_queues,
            "topicSysFlag": self.sys_flag,
            "writeQueueNums": self.write_queues,
        }


@attrs.define(eq=False)
class LiveBroker:
    """One broker process: a master or a slave under a broker name."""

    cluster: str
    name: str
    broker_id: int
    address: str
    ha_address: str
    timeout_seconds: float
    last_update: float
    version: Mapping[str, int]
    connection: Connection | None = None

    @property
    def silent_since(self) -> float:
        return self.last_update + self.timeout_seconds

    def is_taken_by(self, other: LiveBroker) -> bool:
        """Whether another one of its name would take its place: under its id, or by its address under another."""
        return other.broker_id == self.broker_id or other.address == self.address

    def is_as(self, other: LiveBroker) -> bool:
        """Whether nothing that is told of them differs."""
        return (self.broker_id, self.address, self.ha_address) == (other.broker_id, other.address, other.ha_address)

    @property
    def term(self) -> int:
        """How often its name has had a new master; a version without it counts as the first (``stateVersion``)."""
        term = self.version.get("stateVersion")
        return term if isinstance(term, int) else 0


class RouteTable:
    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._brokers: dict[str, dict[int, LiveBroker]] = {}
        """Broker name → id → process."""
        self._topics: dict[str, dict[str, QueueData]] = {}
        """Topic → broker name → queues."""
        self._topics_of: dict[str, set[str]] = {}
        """Broker name → its topics, so that a broker that goes takes out its own only."""
        self.config = KeyValueTable()
        """Namespace → key → value."""
        self._own: LiveBroker | None = None
        """The broker that carries this table: nobody else can be it, remove it, or drop its topics."""

    # --- brokers come and go ---------------------------------------------------------------

    def register_own(self, broker: LiveBroker, topics: Iterable[TopicConfig], mappings: Mappings) -> None:
        """Take in the broker that carries this table. What it has here already is left as it is.

        To be called again from time to time: whatever may have got lost is there again then.
        """
        own = self._own
        if own is not None and self.members(broker.name).get(broker.broker_id) is own and own.is_as(broker):
            broker = own
        else:
            self._own = broker
            self.register(broker, None)
        lost = [topic for topic in topics if broker.name not in self._topics.get(topic.name, ())]
        self.put_topics(broker.name, lost, mappings)

    def register(
        self, broker: LiveBroker, topics: Iterable[TopicConfig] | None, mappings: Mappings = NO_MAPPINGS
    ) -> LiveBroker | None:
        """Take in a broker and its topics; the master of its name, if that is another one, is returned.

        Raises:
            NoPermission: it calls itself what the broker is called that carries this table.
            RequestRefused: a broker of a later term is what it wants to be.
        """
        self._check_place(broker)
        ids = self._brokers.setdefault(broker.name, {})
        for other_id in [i for i, other in ids.items() if other.address == broker.address and i != broker.broker_id]:
            del ids[other_id]  # the same process under another id: a slave that was promoted
        known = ids.get(broker.broker_id)
        ids[broker.broker_id] = broker
        if known is None:
            logger.info(
                "broker registered name=%s id=%d address=%s cluster=%s",
                broker.name, broker.broker_id, broker.address, broker.cluster,
            )  # fmt: skip
        if topics is not None and broker.broker_id == min(ids):
            is_known = known is not None and bool(known.version) and known.version == broker.version
            self.put_topics(broker.name, topics, mappings, keeps_permission=is_known)
        master = ids.get(MASTER)
        return master if master is not None and broker.broker_id != MASTER else None

    def _check_place(self, broker: LiveBroker) -> None:
        own = self._own
        if broker is own:
            return
        if own is not None and broker.name == own.name and own.is_taken_by(broker):
            raise NoPermission(
                f"broker {own.name!r} with id {own.broker_id} at {own.address} carries this name server, and nobody "
                f"else can register as it; give the broker at {broker.address} another name, or another id"
            )
        known = self.members(broker.name).get(broker.broker_id)
        if known is not None and known.address != broker.address and known.term > broker.term:
            raise RequestRefused(
                f"broker {broker.name!r} with id {broker.broker_id} is at {known.address}, of term {known.term} "
                f"(stateVersion); the one at {broker.address}, of term {broker.term}, was replaced by it"
            )

    def put_topics(
        self,
        broker_name: str,
        topics: Iterable[TopicConfig],
        mappings: Mappings = NO_MAPPINGS,
        *,
        keeps_permission: bool = False,
    ) -> None:
        """
        Args:
            keeps_permission: of topics that are here; what an operator took away is not given back by the next
                registration, as long as the broker says nothing new (RocketMQ: ``isBrokerTopicConfigChanged``)
        """
        for topic in topics:
            data = QueueData.of(topic, mappings.get(topic.name))
            there = self._topics.setdefault(topic.name, {})
            if keeps_permission and broker_name in there:
                data = attrs.evolve(data, perm=there[broker_name].perm)
            there[broker_name] = data
            self._topics_of.setdefault(broker_name, set()).add(topic.name)

    def offer_topic(self, broker_name: str, topic: TopicConfig) -> None:
        """A topic of a broker, told by somebody else. What the broker itself said of it stays."""
        own = None if self._own is None else self._own.name
        if broker_name in self._brokers and broker_name != own and broker_name not in self._topics.get(topic.name, {}):
            self.put_topics(broker_name, [topic])

    def drop_topic(self, topic: str, broker_names: Iterable[str] | None = None) -> None:
        brokers = self._topics.get(topic)
        if brokers is None:
            return
        for name in list(brokers if broker_names is None else broker_names):
            brokers.pop(name, None)
            self._topics_of.get(name, set()).discard(topic)
        if not brokers:
            del self._topics[topic]

    def forget_topic(self, topic: str, broker_names: Iterable[str] | None) -> None:
        """Drop a topic because somebody asks for it. Our own broker drops its topics when it deletes them."""
        names = self._topics.get(topic, {}) if broker_names is None else broker_names
        own = None if self._own is None else self._own.name
        self.drop_topic(topic, [name for name in names if name != own])

    def touch(self, address: str, broker_name: str) -> LiveBroker | None:
        """A sign of life."""
        for broker in self._brokers.get(broker_name, {}).values():
            if broker.address == address:
                broker.last_update = self._now()
                return broker
        return None

    def unregister(self, broker_name: str, broker_id: int, address: str) -> None:
        """Forget a broker, unless another process has taken its place since.

        Raises:
            NoPermission: it is the one that carries this table.
        """
        own = self._own
        if own is not None and (broker_name, broker_id) == (own.name, own.broker_id):
            raise NoPermission(f"broker {own.name!r} with id {own.broker_id} carries this name server and stays in it")
        ids = self._brokers.get(broker_name, {})
        known = ids.get(broker_id)
        if known is None or known.address != address:
            return
        del ids[broker_id]
        logger.info("broker left name=%s id=%d", broker_name, broker_id)
        if not ids:
            del self._brokers[broker_name]
            for topic in self._topics_of.pop(broker_name, set()):
                self.drop_topic(topic, [broker_name])

    def connection_closed(self, connection: Connection) -> None:
        self._drop([broker for broker in self._processes() if broker.connection is connection])

    def expire(self) -> None:
        """Forget brokers that were silent for longer than they promised."""
        now = self._now()
        self._drop([broker for broker in self._processes() if broker.silent_since < now])

    def _drop(self, brokers: list[LiveBroker]) -> None:
        for broker in brokers:
            self.unregister(broker.name, broker.broker_id, broker.address)

    def _processes(self) -> list[LiveBroker]:
        return [broker for ids in self._brokers.values() for broker in ids.values()]

    # --- asking ----------------------------------------------------------------------------

    def route(self, topic: str) -> dict[str, Any] | None:
        """Where a topic lives, as clients read it, or ``None``."""
        queues = {name: data for name, data in self._topics.get(topic, {}).items() if name in self._brokers}
        if not queues:
            return None
        route: dict[str, Any] = {
            "brokerDatas": [self._broker_data(name) for name in queues],
            "filterServerTable": {},
            "queueDatas": [data.as_json(name) for name, data in queues.items()],
        }
        mappings = {name: data.mapping for name, data in queues.items() if data.mapping is not None}
        return {**route, "topicQueueMappingByBroker": mappings} if mappings else route

    def _broker_data(self, name: str) -> dict[str, Any]:
        ids = self._brokers[name]
        return {
            # Quoted numbers: valid JSON, and every client reads them.
            "brokerAddrs": {str(broker_id): broker.address for broker_id, broker in sorted(ids.items())},
            "brokerName": name,
            "cluster": next(iter(ids.values())).cluster,
            "enableActingMaster": False,
        }

    def cluster_info(self) -> dict[str, Any]:
        clusters: dict[str, list[str]] = {}
        for name, ids in self._brokers.items():
            clusters.setdefault(next(iter(ids.values())).cluster, []).append(name)
        return {
            "brokerAddrTable": {name: self._broker_data(name) for name in self._brokers},
            "clusterAddrTable": clusters,
        }

    def topics(self, cluster: str | None = None) -> list[str]:
        if cluster is None:
            return list(self._topics)
        names = [name for name, ids in self._brokers.items() if any(b.cluster == cluster for b in ids.values())]
        return sorted(set().union(*[self._topics_of.get(name, set()) for name in names]))

    def broker_names(self) -> list[str]:
        return list(self._brokers)

    def members(self, broker_name: str) -> Mapping[int, LiveBroker]:
        return self._brokers.get(broker_name, {})

    # --- permissions -----------------------------------------------------------------------

    def set_write_permission(self, broker_name: str, may_write: bool) -> int:
        """Take from or give back to all topics of a broker the right to be written to; says how many there are."""
        topics = self._topics_of.get(broker_name, set())
        for topic in topics:
            data = self._topics[topic][broker_name]
            perm = Perm.READ_WRITE if may_write else data.perm & ~Perm.WRITE
            self._topics[topic][broker_name] = attrs.evolve(data, perm=perm)
        return len(topics)
