"""The requests to a name server: of brokers, of clients, and of operators."""

from __future__ import annotations

from collections.abc import Iterator

from verniermq.kernel import RequestCode
from verniermq.kernel.requests import (
    EITHER,
    GET,
    Access,
    Finder,
    Request,
    boolean,
    in_body,
    integer,
    request,
    text,
    topic_access,
)

# --- of brokers ----------------------------------------------------------------------------


@request
class BrokerHeartbeat(Request):
    code = RequestCode.BROKER_HEARTBEAT
    name: str = text("brokerName")
    address: str = text("brokerAddr")


@request
class QueryDataVersion(BrokerHeartbeat):
    """Whether the broker's topics are known as they are now."""

    code = RequestCode.QUERY_DATA_VERSION
    version: bytes = in_body(default=b"")
    """As JSON."""

    def take_body(self, body: bytes) -> None:
        self.version = body

    def body(self) -> bytes:
        return self.version


@request
class UnregisterBroker(BrokerHeartbeat):
    code = RequestCode.UNREGISTER_BROKER
    broker_id: int = integer("brokerId", at_least=0)
    """0 for a master, more for its slaves."""
    cluster: str = text("clusterName", default="")


@request
class RegisterBroker(BrokerHeartbeat):
    code = RequestCode.REGISTER_BROKER
    cluster: str = text("clusterName")
    broker_id: int = integer("brokerId", at_least=0)
    ha_address: str = text("haServerAddr", default="")
    timeout_ms: int | None = integer("heartbeatTimeoutMillis", default=None)
    compressed: bool = boolean("compressed", default=False)
    crc: int = integer("bodyCrc32", default=0)
    registration: bytes = in_body(default=b"")
    """The topics; the name server's own part reads them."""

    def take_body(self, body: bytes) -> None:
        self.registration = body

    def body(self) -> bytes:
        return self.registration


@request
class GetBrokerMemberGroup(Request):
    """Who else has the broker's name."""

    code = RequestCode.GET_BROKER_MEMBER_GROUP
    name: str = text("brokerName")
    cluster: str = text("clusterName", default="")


# --- of clients ----------------------------------------------------------------------------


@request
class GetRouteInfo(Request):
    code = RequestCode.GET_ROUTEINFO_BY_TOPIC
    topic: str = text("topic")
    standard_json: bool | None = boolean("acceptStandardJsonOnly", default=None)
    """Whether the answer must be without fastjson's dialect; ours is always."""

    def touches(self, finder: Finder) -> Iterator[Access]:
        yield topic_access(self.topic, EITHER | GET)


# --- of operators --------------------------------------------------------------------------


@request
class GetTopicsByCluster(Request):
    code = RequestCode.GET_TOPICS_BY_CLUSTER
    cluster: str = text("cluster")


@request
class DeleteTopicInNamesrv(Request):
    code = RequestCode.DELETE_TOPIC_IN_NAMESRV
    topic: str = text("topic")
    cluster: str | None = text("clusterName", default=None)


@request
class RegisterTopicInNamesrv(Request):
    """Give a topic routes before its brokers have it."""

    code = RequestCode.REGISTER_TOPIC_IN_NAMESRV
    topic: str = text("topic")
    route: bytes = in_body(default=b"")
    """As JSON, with ``queueDatas``."""

    def take_body(self, body: bytes) -> None:
        self.route = body

    def body(self) -> bytes:
        return self.route


@request
class SetWritePermission(Request):
    """WIPE_WRITE_PERM_OF_BROKER and ADD_WRITE_PERM_OF_BROKER."""

    code = RequestCode.WIPE_WRITE_PERM_OF_BROKER
    name: str = text("brokerName")


@request
class GetKVConfig(Request):
    """GET_KV_CONFIG and DELETE_KV_CONFIG."""

    code = RequestCode.GET_KV_CONFIG
    namespace: str = text("namespace")
    key: str = text("key")


@request
class PutKVConfig(GetKVConfig):
    code = RequestCode.PUT_KV_CONFIG
    value: str = text("value")


@request
class GetKVList(Request):
    code = RequestCode.GET_KVLIST_BY_NAMESPACE
    namespace: str = text("namespace")
