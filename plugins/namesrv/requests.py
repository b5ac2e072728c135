"""What a name server is asked, and its answers (RocketMQ: ``DefaultRequestProcessor`` of the name server)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeAlias

import orjson

from verniermq.kernel import (
    Answer,
    Command,
    Connection,
    Guard,
    Handler,
    InvalidParameter,
    RequestCode,
    RequestRefused,
    ResponseCode,
    TopicConfig,
    TopicNotFound,
    Work,
    parse_json,
)
from verniermq.plugins.namesrv import registration
from verniermq.plugins.namesrv.admission import BrokerAdmission
from verniermq.plugins.namesrv.routes import LiveBroker, RouteTable
from verniermq.plugins.namesrv.switches import Switches
from verniermq.protocol.nameserver import (
    BrokerHeartbeat,
    DeleteTopicInNamesrv,
    GetBrokerMemberGroup,
    GetKVConfig,
    GetKVList,
    GetRouteInfo,
    GetTopicsByCluster,
    PutKVConfig,
    QueryDataVersion,
    RegisterBroker,
    RegisterTopicInNamesrv,
    SetWritePermission,
    UnregisterBroker,
)

DEFAULT_TIMEOUT_MS: Final = 120_000
ORDER_TOPICS: Final = "ORDER_TOPIC_CONFIG"


Serve: TypeAlias = Callable[[Command, Connection], Command]


def _answer(request: Command, data: Any) -> Command:
    return request.reply(body=orjson.dumps(data))


class NameServerRequests:
    """``peers`` says which brokers are taken; ``guard`` is asked before anything else is changed."""

    def __init__(
        self, table: RouteTable, now: Callable[[], float], peers: Callable[[], BrokerAdmission], guard: Guard
    ) -> None:
        self._table = table
        self._now = now
        self._peers = peers
        self._guard = guard
        self._switches = Switches()

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.REGISTER_BROKER: self._from_broker(self.register_broker),
            RequestCode.UNREGISTER_BROKER: self._from_broker(self.unregister_broker),
            RequestCode.BROKER_HEARTBEAT: self._from_broker(self.broker_heartbeat),
            RequestCode.QUERY_DATA_VERSION: self._from_broker(self.query_data_version),
            RequestCode.GET_BROKER_MEMBER_GROUP: self.member_group,
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self.route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self.cluster_info,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self.all_topics,
            RequestCode.GET_TOPICS_BY_CLUSTER: self.topics_by_cluster,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self.system_topics,
            RequestCode.GET_UNIT_TOPIC_LIST: self.no_topics,
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: self.no_topics,
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self.no_topics,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self._guarded(self.delete_topic),
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self._guarded(self.wipe_write_permission),
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self._guarded(self.add_write_permission),
            RequestCode.REGISTER_TOPIC_IN_NAMESRV: self._guarded(self.register_topic),
            RequestCode.GET_NAMESRV_CONFIG: self.show_settings,
            RequestCode.UPDATE_NAMESRV_CONFIG: self._guarded(self.change_settings),
            RequestCode.PUT_KV_CONFIG: self._guarded(self.put_config),
            RequestCode.GET_KV_CONFIG: self.get_config,
            RequestCode.DELETE_KV_CONFIG: self._guarded(self.delete_config),
            RequestCode.GET_KVLIST_BY_NAMESPACE: self.list_config,
        }

    # --- who may -----------------------------------------------------------------------------

    def _guarded(self, serve: Serve) -> Handler:
        """For administrators, where accounts tell who is one."""

        def handler(request: Command, connection: Connection) -> Command | Coroutine[Any, Any, Command]:
            waiting = self._guard(request, connection)
            return serve(request, connection) if waiting is None else after(waiting, request, connection)

        async def after(waiting: Awaitable[None], request: Command, connection: Connection) -> Command:
            await waiting
            return serve(request, connection)

        return handler

    def _from_broker(self, serve: Serve) -> Handler:
        """For brokers: known ones need no account; one that is only near has to have one, where there are any."""
        guarded = self._guarded(serve)

        def handler(request: Command, connection: Connection) -> Answer | Work:
            if self._peers().know(request, connection.peer_address.rpartition(":")[0].strip("[]")):
                return serve(request, connection)
            return guarded(request, connection)

        return handler

    # --- brokers ---------------------------------------------------------------------------

    def register_broker(self, request: Command, connection: Connection) -> Command:
        asked = RegisterBroker.of(request)
        version, topics, mappings = registration.decode(asked.registration, compressed=asked.compressed, crc=asked.crc)
        broker = LiveBroker(
            cluster=asked.cluster,
            name=asked.name,
            broker_id=asked.broker_id,
            address=asked.address,
            ha_address=asked.ha_address,
            timeout_seconds=(DEFAULT_TIMEOUT_MS if asked.timeout_ms is None else asked.timeout_ms) / 1000,
            last_update=self._now(),
            version=version,
            connection=connection,
        )
        master = self._table.register(broker, topics, mappings)
        ext = {} if master is None else {"masterAddr": master.address, "haServerAddr": master.ha_address}
        orders = (
            self._table.config.namespace(ORDER_TOPICS) if self._switches["returnOrderTopicConfigToBroker"] else None
        )
        return request.reply(ext=ext, body=orjson.dumps({"table": orders}) if orders else b"")

    def unregister_broker(self, request: Command, connection: Connection) -> Command:
        asked = UnregisterBroker.of(request)
        self._table.unregister(asked.name, asked.broker_id, asked.address)
        return request.reply()

    def broker_heartbeat(self, request: Command, connection: Connection) -> Command:
        asked = BrokerHeartbeat.of(request)
        self._table.touch(asked.address, asked.name)
        return request.reply()

    def query_data_version(self, request: Command, connection: Connection) -> Command:
        """A broker asks whether its topics are known as they are now, before it sends them all."""
        asked = QueryDataVersion.of(request)
        broker = self._table.touch(asked.address, asked.name)
        try:
            theirs = parse_json(asked.version) if asked.version else None
        except ValueError as error:
            raise InvalidParameter(f"the data version is no JSON that can be used: {error}") from error
        known = dict(broker.version) if broker is not None else None
        same = known is not None and theirs == known
        return request.reply(
            ext={"changed": "false" if same else "true"}, body=orjson.dumps(known) if known is not None else b""
        )

    def member_group(self, request: Command, connection: Connection) -> Command:
        asked = GetBrokerMemberGroup.of(request)
        members = {str(i): broker.address for i, broker in self._table.members(asked.name).items()}
        group = {"brokerAddrs": members, "brokerName": asked.name, "cluster": asked.cluster}
        return _answer(request, {"brokerMemberGroup": group})

    # --- routes and lists ------------------------------------------------------------------

    def route(self, request: Command, connection: Connection) -> Command:
        topic = GetRouteInfo.of(request).topic
        route = self._table.route(topic)
        if route is None:
            names = self._table.broker_names()
            why = "no broker has registered here" if not names else f"no broker here has it ({', '.join(names[:8])})"
            raise TopicNotFound(topic, f"{why}; create it with: verniermq topic create {topic}")
        order = self._table.config.get(ORDER_TOPICS, topic)
        if order is not None and self._switches["orderMessageEnable"]:
            route["orderTopicConf"] = order
        return _answer(request, route)

    def cluster_info(self, request: Command, connection: Connection) -> Command:
        return _answer(request, self._table.cluster_info())

    def all_topics(self, request: Command, connection: Connection) -> Command:
        self._switches.insist("enableAllTopicList")
        return _answer(request, {"topicList": self._table.topics()})

    def topics_by_cluster(self, request: Command, connection: Connection) -> Command:
        self._switches.insist("enableTopicList")
        return _answer(request, {"topicList": self._table.topics(GetTopicsByCluster.of(request).cluster)})

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
        asked = DeleteTopicInNamesrv.of(request)
        names = None
        if asked.cluster:
            names = self._table.cluster_info()["clusterAddrTable"].get(asked.cluster, [])
        self._table.forget_topic(asked.topic, names)
        return request.reply()

    def register_topic(self, request: Command, connection: Connection) -> Command:
        """Give a topic routes before its brokers have it; the broker that carries this table knows its own."""
        asked = RegisterTopicInNamesrv.of(request)
        try:
            queues = parse_json(asked.route)["queueDatas"]
            found = {
                str(data["brokerName"]): TopicConfig.from_json({**data, "topicName": asked.topic}) for data in queues
            }
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidParameter(f"the body is no route with queueDatas: {error!r:.80}") from error
        for name, config in found.items():
            config.check()
            self._table.offer_topic(name, config)
        return request.reply()

    # --- settings --------------------------------------------------------------------------

    def show_settings(self, request: Command, connection: Connection) -> Command:
        return request.reply(body=self._switches.text().encode())

    def change_settings(self, request: Command, connection: Connection) -> Command:
        self._switches.change(request.body)
        return request.reply()

    # --- permissions and key-value configuration -------------------------------------------

    def wipe_write_permission(self, request: Command, connection: Connection) -> Command:
        count = self._table.set_write_permission(SetWritePermission.of(request).name, may_write=False)
        return request.reply(ext={"wipeTopicCount": str(count)})

    def add_write_permission(self, request: Command, connection: Connection) -> Command:
        count = self._table.set_write_permission(SetWritePermission.of(request).name, may_write=True)
        return request.reply(ext={"addTopicCount": str(count)})

    def put_config(self, request: Command, connection: Connection) -> Command:
        asked = PutKVConfig.of(request)
        self._table.config.put(asked.namespace, asked.key, asked.value)
        return request.reply()

    def get_config(self, request: Command, connection: Connection) -> Command:
        asked = GetKVConfig.of(request)
        value = self._table.config.get(asked.namespace, asked.key)
        if value is None:
            why = f"there is no {asked.key!r} in namespace {asked.namespace!r}"
            raise RequestRefused(why, ResponseCode.QUERY_NOT_FOUND)
        return request.reply(ext={"value": value})

    def delete_config(self, request: Command, connection: Connection) -> Command:
        asked = GetKVConfig.of(request)
        self._table.config.delete(asked.namespace, asked.key)
        return request.reply()

    def list_config(self, request: Command, connection: Connection) -> Command:
        namespace = GetKVList.of(request).namespace
        entries = self._table.config.namespace(namespace)
        if entries is None:
            raise RequestRefused(f"there is no namespace {namespace!r}", ResponseCode.QUERY_NOT_FOUND)
        return _answer(request, {"table": entries})
