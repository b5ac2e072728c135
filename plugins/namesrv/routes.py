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

from verniermq.kernel import Connection, Perm, TopicConfig

logger = logging.getLogger(__name__)

MASTER: Final = 0
NEVER: Final = math.inf


@attrs.frozen
class QueueData:
    """A topic's queues on one broker."""

    read_queues: int
    write_queues: int
    perm: int
    sys_flag: int = 0

    @classmethod
    def of(cls, topic: TopicConfig) -> QueueData:
        return cls(topic.read_queues, topic.write_queues, topic.perm, topic.sys_flag)

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


class RouteTable:
    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._brokers: dict[str, dict[int, LiveBroker]] = {}
        """Broker name → id → process."""
        self._topics: dict[str, dict[str, QueueData]] = {}
        """Topic → broker name → queues."""
        self._topics_of: dict[str, set[str]] = {}
        """Broker name → its topics, so that a broker that goes takes out its own only."""
        self.config: dict[str, dict[str, str]] = {}
        """Namespace → key → value."""

    # --- brokers come and go ---------------------------------------------------------------

    def register(self, broker: LiveBroker, topics: Iterable[TopicConfig] | None) -> LiveBroker | None:
        """Take in a broker and its topics; the master of its name, if that is another one, is returned."""
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
            self.put_topics(broker.name, topics)
        master = ids.get(MASTER)
        return master if master is not None and broker.broker_id != MASTER else None

    def put_topics(self, broker_name: str, topics: Iterable[TopicConfig]) -> None:
        for topic in topics:
            self._topics.setdefault(topic.name, {})[broker_name] = QueueData.of(topic)
            self._topics_of.setdefault(broker_name, set()).add(topic.name)

    def drop_topic(self, topic: str, broker_names: Iterable[str] | None = None) -> None:
        brokers = self._topics.get(topic)
        if brokers is None:
            return
        for name in list(brokers if broker_names is None else broker_names):
            brokers.pop(name, None)
            self._topics_of.get(name, set()).discard(topic)
        if not brokers:
            del self._topics[topic]

    def touch(self, address: str, broker_name: str) -> LiveBroker | None:
        """A sign of life."""
        for broker in self._brokers.get(broker_name, {}).values():
            if broker.address == address:
                broker.last_update = self._now()
                return broker
        return None

    def unregister(self, broker_name: str, broker_id: int, address: str) -> None:
        """Forget a broker, unless another process has taken its place since."""
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
        return {
            "brokerDatas": [self._broker_data(name) for name in queues],
            "filterServerTable": {},
            "queueDatas": [data.as_json(name) for name, data in queues.items()],
        }

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
