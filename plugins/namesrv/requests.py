"""What a name server is asked, and its answers (RocketMQ: ``DefaultRequestProcessor`` of the name server)."""

from __future__ import annotations

from typing import Any, Final

import orjson

from verniermq.kernel import (
    Command,
    Connection,
    Handler,
    InvalidParameter,
    RequestCode,
    RequestRefused,
    ResponseCode,
    TopicNotFound,
)
from verniermq.plugins.namesrv import registration
from verniermq.plugins.namesrv.routes import LiveBroker, RouteTable

DEFAULT_TIMEOUT_MS: Final = 120_000
ORDER_TOPICS: Final = "ORDER_TOPIC_CONFIG"


def _answer(request: Command, data: Any) -> Command:
    return request.reply(body=orjson.dumps(data))


class NameServerRequests:
    def __init__(self, table: RouteTable, now: Any) -> None:
        self._table = table
        self._now = now

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.REGISTER_BROKER: self.register_broker,
            RequestCode.UNREGISTER_BROKER: self.unregister_broker,
            RequestCode.BROKER_HEARTBEAT: self.broker_heartbeat,
            RequestCode.QUERY_DATA_VERSION: self.query_data_version,
            RequestCode.GET_BROKER_MEMBER_GROUP: self.member_group,
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self.route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self.cluster_info,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self.all_topics,
            RequestCode.GET_TOPICS_BY_CLUSTER: self.topics_by_cluster,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self.system_topics,
            RequestCode.GET_UNIT_TOPIC_LIST: self.no_topics,
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: self.no_topics,
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self.no_topics,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self.delete_topic,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self.wipe_write_permission,
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self.add_write_permission,
            RequestCode.PUT_KV_CONFIG: self.put_config,
            RequestCode.GET_KV_CONFIG: self.get_config,
            RequestCode.DELETE_KV_CONFIG: self.delete_config,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self.list_config,
        }

    # --- brokers ---------------------------------------------------------------------------

    def register_broker(self, request: Command, connection: Connection) -> Command:
        version, topics = registration.decode(
            request.body, compressed=request.boolean("compressed", False), crc=request.integer("bodyCrc32", 0)
        )
        broker = LiveBroker(
            cluster=request.text("clusterName"),
            name=request.text("brokerName"),
            broker_id=request.integer("brokerId"),
            address=request.text("brokerAddr"),
            ha_address=request.text("haServerAddr", ""),
            timeout_seconds=request.integer("heartbeatTimeoutMillis", DEFAULT_TIMEOUT_MS) / 1000,
            last_update=self._now(),
            version=version,
            connection=connection,
        )
        master = self._table.register(broker, topics)
        ext = {} if master is None else {"masterAddr": master.address, "haServerAddr": master.ha_address}
        orders = self._table.config.get(ORDER_TOPICS)
        return request.reply(ext=ext, body=orjson.dumps({"table": orders}) if orders else b"")

    def unregister_broker(self, request: Command, connection: Connection) -> Command:
        self._table.unregister(request.text("brokerName"), request.integer("brokerId"), request.text("brokerAddr"))
        return request.reply()

    def broker_heartbeat(self, request: Command, connection: Connection) -> Command:
        self._table.touch(request.text("brokerAddr"), request.text("brokerName"))
        return request.reply()

    def query_data_version(self, request: Command, connection: Connection) -> Command:
        """A broker asks whether its topics are known as they are now, before it sends them all."""
        broker = self._table.touch(request.text("brokerAddr"), request.text("brokerName"))
        try:
            theirs = orjson.loads(request.body) if request.body else None
        except orjson.JSONDecodeError as error:
            raise InvalidParameter(f"the data version is no JSON: {error}") from error
        known = dict(broker.version) if broker is not None else None
        same = known is not None and theirs == known
        return request.reply(
            ext={"changed": "false" if same else "true"}, body=orjson.dumps(known) if known is not None else b""
        )

    def member_group(self, request: Command, connection: Connection) -> Command:
        name = request.text("brokerName")
        members = {str(i): broker.address for i, broker in self._table.members(name).items()}
        group = {"brokerAddrs": members, "brokerName": name, "cluster": request.text("clusterName", "")}
        return _answer(request, {"brokerMemberGroup": group})

    # --- routes and lists ------------------------------------------------------------------

    def route(self, request: Command, connection: Connection) -> Command:
        topic = request.text("topic")
        route = self._table.route(topic)
        if route is None:
            names = self._table.broker_names()
            why = "no broker has registered here" if not names else f"no broker here has it ({', '.join(names[:8])})"
            raise TopicNotFound(topic, f"{why}; create it with: verniermq topic create {topic}")
        orders = self._table.config.get(ORDER_TOPICS, {})
        if topic in orders:
            route["orderTopicConf"] = orders[topic]
        return _answer(request, route)

    def cluster_info(self, request: Command, connection: Connection) -> Command:
        return _answer(request, self._table.cluster_info())

    def all_topics(self, request: Command, connection: Connection) -> Command:
        return _answer(request, {"topicList": self._table.topics()})

    def topics_by_cluster(self, request: Command, connection: Connection) -> Command:
        return _answer(request, {"topicList": self._table.topics(request.text("cluster"))})

    def system_topics(self, request: Command, connection: Connection) -> Command:
        """Cluster and broker names count as topics; the broker given is asked for its own system topics next."""
        info = self._table.cluster_info()
        names = [*info["clusterAddrTable"], *info["brokerAddrTable"]]
        addresses = [address for data in info["brokerAddrTable"].values() for address in data["brokerAddrs"].values()]
        return _answer(request, {"topicList": names, **({"brokerAddr": addresses[0]} if addresses else {})})

    def no_topics(self, request: Command, connection: Connection) -> Command:
        """Units (several data centres under one name) are not something we have."""
        return _answer(request, {"topicList": []})

    def delete_topic(self, request: Command, connection: Connection) -> Command:
        cluster = request.text("clusterName", None)
        names = None if not cluster else self._table.cluster_info()["clusterAddrTable"].get(cluster, [])
        self._table.drop_topic(request.text("topic"), names)
        return request.reply()

    # --- permissions and key-value configuration -------------------------------------------

    def wipe_write_permission(self, request: Command, connection: Connection) -> Command:
        count = self._table.set_write_permission(request.text("brokerName"), may_write=False)
        return request.reply(ext={"wipeTopicCount": str(count)})

    def add_write_permission(self, request: Command, connection: Connection) -> Command:
        count = self._table.set_write_permission(request.text("brokerName"), may_write=True)
        return request.reply(ext={"addTopicCount": str(count)})

    def put_config(self, request: Command, connection: Connection) -> Command:
        namespace = self._table.config.setdefault(request.text("namespace"), {})
        namespace[request.text("key")] = request.text("value")
        return request.reply()

    def get_config(self, request: Command, connection: Connection) -> Command:
        namespace, key = request.text("namespace"), request.text("key")
        value = self._table.config.get(namespace, {}).get(key)
        if value is None:
            raise RequestRefused(f"there is no {key!r} in namespace {namespace!r}", ResponseCode.QUERY_NOT_FOUND)
        return request.reply(ext={"value": value})

    def delete_config(self, request: Command, connection: Connection) -> Command:
        self._table.config.get(request.text("namespace"), {}).pop(request.text("key"), None)
        return request.reply()

    def list_config(self, request: Command, connection: Connection) -> Command:
        namespace = request.text("namespace")
        if namespace not in self._table.config:
            raise RequestRefused(f"there is no namespace {namespace!r}", ResponseCode.QUERY_NOT_FOUND)
        return _answer(request, {"table": self._table.config[namespace]})
