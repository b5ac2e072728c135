"""Every request that a broker serves, about what is one's own, another's and the broker's, signed and not.

The codes are those that the broker serves: one that is not in ``TAKES`` fails. What a request takes is written down
here by hand, so that a class which declares too little fails too.
"""

from __future__ import annotations

import base64
import importlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import orjson
import pytest

from tests.plugins.acl.test_acl import signed
from verniermq.kernel import (
    Broker,
    Command,
    Connection,
    ResponseCode,
    connect,
    format_properties,
    parse_offset_message_id,
    request_name,
    requests,
)
from verniermq.kernel import RequestCode as R
from verniermq.kernel.host.builtin import BROKER_PLUGINS
from verniermq.plugins.namesrv.server import NameServer
from verniermq.testing import running_broker

pytestmark = pytest.mark.anyio

SECRET: Final = "a-long-secret"
HALF: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
REPLY: Final = "DefaultCluster_REPLY_TOPIC"
ACCOUNTS: dict[str, Any] = {
    "pub": {"secret": SECRET, "topics": {"mine": "PUB", REPLY: "PUB"}, "groups": {"mineG": "PUB"}},
    "sub": {"secret": SECRET, "topics": {"mine": "SUB"}, "groups": {"mineG": "SUB"}},
    "topic": {"secret": SECRET, "topics": {"mine": "PUB|SUB"}},
    "group": {"secret": SECRET, "groups": {"mineG": "PUB|SUB"}},
    "none": {"secret": SECRET},
    "root": {"secret": SECRET, "admin": True},
}

PLUGINS: Final = ["default", "acl", "ha", "spark"]
"""All that serve requests."""
TAKES: Final[dict[int, tuple[str, ...]]] = {
    # the accounts of those above that may do it with what is their own
    **dict.fromkeys(
        (R.SEND_MESSAGE, R.SEND_MESSAGE_V2, R.SEND_BATCH_MESSAGE, R.RECALL_MESSAGE, R.SEND_ROWS), ("pub", "topic")
    ),
    **dict.fromkeys((R.SEND_REPLY_MESSAGE, R.SEND_REPLY_MESSAGE_V2), ("pub",)),
    **dict.fromkeys(
        (
            R.PULL_MESSAGE, R.LITE_PULL_MESSAGE, R.POP_MESSAGE, R.PEEK_MESSAGE, R.NOTIFICATION, R.POLLING_INFO,
            R.ACK_MESSAGE, R.BATCH_ACK_MESSAGE, R.CHANGE_MESSAGE_INVISIBLETIME, R.QUERY_CONSUMER_OFFSET,
            R.UPDATE_CONSUMER_OFFSET, R.QUERY_ASSIGNMENT, R.CHECK_CLIENT_CONFIG, R.LOCK_BATCH_MQ, R.UNLOCK_BATCH_MQ,
            R.CONSUMER_SEND_MSG_BACK, R.HEART_BEAT,
        ),
        ("sub",),
    ),
    **dict.fromkeys(
        (R.GET_CONSUMER_LIST_BY_GROUP, R.GET_CONSUMER_CONNECTION_LIST, R.REPORT_STREAM), ("sub", "group")
    ),
    **dict.fromkeys(
        (R.QUERY_MESSAGE, R.VIEW_MESSAGE_BY_ID, R.READ_QUEUE_RANGE, R.GET_QUEUE_RANGES), ("sub", "topic")
    ),
    **dict.fromkeys(
        (R.GET_MAX_OFFSET, R.GET_MIN_OFFSET, R.SEARCH_OFFSET_BY_TIMESTAMP, R.GET_EARLIEST_MSG_STORETIME),
        ("pub", "sub", "topic"),
    ),
    R.END_TRANSACTION: ("pub",),
    R.UNREGISTER_CLIENT: ("pub", "sub", "topic", "group", "none"),
    **dict.fromkeys(
        (
            R.UPDATE_AND_CREATE_TOPIC, R.UPDATE_AND_CREATE_TOPIC_LIST, R.DELETE_TOPIC_IN_BROKER, R.GET_TOPIC_CONFIG,
            R.GET_ALL_TOPIC_CONFIG, R.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
            R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, R.DELETE_SUBSCRIPTIONGROUP, R.GET_SUBSCRIPTIONGROUP_CONFIG,
            R.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, R.SET_MESSAGE_REQUEST_MODE, R.GET_ALL_MESSAGE_REQUEST_MODE,
            R.POP_ROLLBACK, R.GET_BROKER_RUNTIME_INFO, R.VIEW_BROKER_STATS_DATA, R.GET_BROKER_CONFIG,
            R.UPDATE_BROKER_CONFIG, R.GET_BROKER_HA_STATUS, R.CLEAN_UNUSED_TOPIC, R.GET_TOPIC_STATS_INFO,
            R.GET_CONSUME_STATS, R.GET_BROKER_CONSUME_STATS, R.QUERY_CONSUME_TIME_SPAN, R.GET_ALL_CONSUMER_OFFSET,
            R.GET_PRODUCER_CONNECTION_LIST, R.GET_ALL_PRODUCER_INFO, R.QUERY_TOPIC_CONSUME_BY_WHO,
            R.QUERY_TOPICS_BY_CONSUMER, R.QUERY_SUBSCRIPTION_BY_CONSUMER, R.GET_CONSUMER_RUNNING_INFO,
            R.CONSUME_MESSAGE_DIRECTLY, R.INVOKE_BROKER_TO_RESET_OFFSET, R.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
            R.CLONE_GROUP_OFFSET, R.RESUME_CHECK_HALF_MESSAGE, R.GET_ALL_DELAY_OFFSET, R.DELETE_EXPIRED_COMMITLOG,
            R.GET_TIMER_CHECK_POINT, R.GET_TIMER_METRICS,
            R.CLEAN_EXPIRED_CONSUMEQUEUE, R.GET_FLOW_FIGURES, R.UPDATE_AND_CREATE_STATIC_TOPIC,
            R.AUTH_CREATE_USER, R.AUTH_UPDATE_USER, R.AUTH_DELETE_USER, R.AUTH_GET_USER,
            R.AUTH_LIST_USER, R.AUTH_CREATE_ACL, R.AUTH_UPDATE_ACL, R.AUTH_DELETE_ACL, R.AUTH_GET_ACL, R.AUTH_LIST_ACL,
            R.UPDATE_AND_CREATE_ACL_CONFIG, R.DELETE_ACL_CONFIG, R.GET_BROKER_CLUSTER_ACL_INFO,
            R.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, R.GET_BROKER_CLUSTER_ACL_CONFIG, R.SWITCH_TIMER_ENGINE,
            R.QUERY_CONSUME_QUEUE, R.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, R.REMOVE_COLD_DATA_FLOW_CTR_CONFIG,
            R.GET_COLD_DATA_FLOW_CTR_INFO, R.SET_COMMITLOG_READ_MODE, R.CHECK_ROCKSDB_CQ_WRITE_PROGRESS,
            R.EXPORT_ROCKSDB_CONFIG_TO_JSON, R.GET_BROKER_EPOCH_CACHE, R.RESET_MASTER_FLUSH_OFFSET, R.GET_PLUGINS,
            R.GET_PLUGIN_PAGE, R.GET_REPLICAS, R.SWITCH_MASTER, R.FORCE_MASTER, R.NOTIFY_BROKER_ROLE_CHANGED,
        ),
        (),
    ),
}  # fmt: skip


class Matrix:
    """One guarded broker with messages of everybody."""

    def __init__(self, broker: Broker, connection: Connection) -> None:
        self.broker = broker
        self.connection = connection
        self.offsets: dict[str, int] = {}
        self.halves: dict[str, tuple[int, int]] = {}

    async def prepare(self) -> None:
        """Messages and transactions of topic ``mine`` and of ``theirs``."""
        for topic, group in (("mine", "mineG"), ("theirs", "theirG")):
            self.offsets[topic], _ = await self._sent(topic, group, {})
            self.halves[topic] = await self._sent(topic, group, {"TRAN_MSG": "true", "PGROUP": group})
        self.offsets[HALF] = self.halves["mine"][0]
        self.halves[HALF] = (self.offsets["theirs"], 0)

    async def _sent(self, topic: str, group: str, properties: dict[str, str]) -> tuple[int, int]:
        send = requests.SendMessage(
            group=group, topic=topic, queue_id=0, born_timestamp=1, default_topic="TBW102", default_queues=1,
            sys_flag=4 if properties else 0, properties=format_properties(properties),
        ).command()  # fmt: skip
        send.body = b"hello"
        answer = await self.connection.request(signed(send, "root", SECRET), 30)
        assert answer.code == 0, answer.remark
        return parse_offset_message_id(answer.ext["msgId"])[1], int(answer.ext["queueOffset"])

    def command(self, code: int, topic: str, group: str) -> Command:
        """A request about a topic and a group, whichever of them it has."""
        if code in (R.SEND_REPLY_MESSAGE, R.SEND_REPLY_MESSAGE_V2) and topic == "mine":
            topic = REPLY
        if issubclass(kind := self.broker.table.request_class(code), requests.SendMessage):
            send = kind(group=group, topic=topic, queue_id=0, born_timestamp=1, default_topic="TBW102")
            command = send.command(code)
            command.body = b"hello"
            return command
        if kind is requests.PullMessage:
            pull = requests.PullMessage(group=group, topic=topic, queue_id=0, offset=0, max_messages=1, sys_flag=4)
            return pull.command(code)
        values = {
            "topic": topic, "group": group, "consumer_group": group, "producer_group": group, "source": group,
            "target": group, "offset": self.offsets.get(topic, 0) if code in (36, 33) else 0,
            "handle": "0 1 60000 0 0 broker-a 0 0", "log_offset": self.halves.get(topic, (0, 0))[0],
            "half_offset": self.halves.get(topic, (0, 0))[1], "outcome": 8, "max_messages": 1, "invisible_ms": 1000,
            "perm": 6, "read_queues": 1, "write_queues": 1,
        }  # fmt: skip
        ext = {field.wire: str(values.get(field.name, 0)) for field in kind.fields if field.wire}
        return Command.request(code, ext, self._body(code, topic, group))

    def _body(self, code: int, topic: str, group: str) -> bytes:
        bits = base64.b64encode(b"\1").decode()
        subscription = {"topic": topic, "subString": "*", "subVersion": 1}
        bodies: dict[int, Any] = {
            R.HEART_BEAT: {
                "clientID": "c", "consumerDataSet": [{"groupName": group, "subscriptionDataSet": [subscription]}],
            },
            R.LOCK_BATCH_MQ: {
                "consumerGroup": group, "clientId": "c", "mqSet": [{"topic": topic, "brokerName": "b", "queueId": 0}],
            },
            R.BATCH_ACK_MESSAGE: {
                "acks": [{"c": group, "t": topic, "r": "0", "so": 0, "q": 0, "rq": 0, "pt": 1, "it": 1, "b": bits}],
            },
            R.CHECK_CLIENT_CONFIG: {"clientId": "c", "group": group, "subscriptionData": subscription},
            R.GET_QUEUE_RANGES: [topic],
            R.UPDATE_AND_CREATE_TOPIC_LIST: {"topicConfigList": [{"topicName": topic}]},
            R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: {"groupName": group},
            R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: {"groupConfigList": [{"groupName": group}]},
        }  # fmt: skip
        bodies[R.UNLOCK_BATCH_MQ] = bodies[R.LOCK_BATCH_MQ]
        about = {"topic": topic, "consumerGroup": group, "clientId": "c", "messageModel": "CLUSTERING", "mode": "PULL"}
        bodies[R.QUERY_ASSIGNMENT] = bodies[R.SET_MESSAGE_REQUEST_MODE] = about
        return orjson.dumps(bodies[code]) if code in bodies else b""

    async def is_refused(self, command: Command, key: str = "", secret: str = SECRET) -> bool:
        """Whether access control refuses it; what its handler says does not count."""
        answer = await self.connection.request(signed(command, key, secret) if key else command, 30)
        if answer.code != ResponseCode.NO_PERMISSION:
            return False
        return any(word in answer.remark for word in ("account", "is not signed", "signature", "not known here"))


@asynccontextmanager
async def matrix() -> AsyncIterator[Matrix]:
    async with running_broker(plugins__enable=PLUGINS, plugins__acl__accounts=ACCOUNTS) as broker:
        connection = await connect(broker.address)
        try:
            prepared = Matrix(broker, connection)
            await prepared.prepare()
            yield prepared
        finally:
            connection.close()


async def test_every_code_that_a_broker_serves_is_in_the_table() -> None:
    async with matrix() as it:
        missing = [request_name(code) for code in it.broker.handlers if code not in TAKES]
        gone = [request_name(code) for code in TAKES if code not in it.broker.handlers]

    assert missing == [], "say in TAKES who may send it, and declare in touches what it touches"
    assert gone == []


def test_every_plugin_that_serves_requests_is_asked() -> None:
    serving = {
        name
        for name in BROKER_PLUGINS.builtin.keys() - {*BROKER_PLUGINS.defaults, *PLUGINS}
        if load(BROKER_PLUGINS.builtin[name]).declaration.requests
    }

    assert serving == set(), "put it into PLUGINS"


def load(target: str) -> Any:
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)


async def test_an_account_may_send_each_request_about_what_is_its_own_and_about_nothing_else() -> None:
    wrong = []
    async with matrix() as it:
        for code, allowed in TAKES.items():
            for key in ACCOUNTS.keys() - {"root"}:
                everything = {"pub", "sub", "topic", "group", "none"} == set(allowed)
                own = await it.is_refused(it.command(code, "mine", "mineG"), key)
                others = [
                    await it.is_refused(it.command(code, topic, group), key)
                    for topic, group in (("theirs", "theirG"), (HALF, "CID_RMQ_SYS_TRANS"))
                ]
                if own != (key not in allowed) or others != [not everything] * 2:
                    wrong.append((request_name(code), key, own, others))

    assert wrong == []


async def test_a_request_about_nothing_is_never_served() -> None:
    """Without fields and without a body: it is refused, or lacks something."""
    served = []
    async with matrix() as it:
        for code, allowed in TAKES.items():
            for key in ("sub", "none"):
                answer = await it.connection.request(signed(Command.request(code), key, SECRET), 30)
                if answer.code == ResponseCode.SUCCESS and "none" not in allowed:
                    served.append((request_name(code), key))

    assert served == []


async def test_no_request_passes_unsigned_or_with_a_wrong_signature_whatever_it_is_about() -> None:
    passed = []
    async with matrix() as it:
        for code in (*TAKES, 31999):
            for topic, group in (("mine", "mineG"), ("theirs", "theirG"), (HALF, "CID_RMQ_SYS_TRANS"), ("", "")):
                for key, secret in (("", ""), ("pub", "wrong-secret"), ("root", "wrong-secret"), ("nobody", SECRET)):
                    if not await it.is_refused(it.command(code, topic, group), key, secret):
                        passed.append((request_name(code), topic, key))

    assert passed == []


async def test_what_its_handler_reads_is_what_was_checked() -> None:
    """A handler that decoded a request another way would raise; here every one is called by an administrator."""
    kinds = {}
    async with matrix() as it:
        seen: list[Command] = []
        handlers = dict(it.broker.handlers)
        for code, handler in handlers.items():
            it.broker.handlers[code] = lambda request, connection, serve=handler: (
                seen.append(request) or serve(request, connection)
            )  # type: ignore[misc, func-returns-value]
        for code in TAKES.keys() - {R.DELETE_TOPIC_IN_BROKER, R.UPDATE_BROKER_CONFIG}:
            answer = await it.connection.request(signed(it.command(code, "mine", "mineG"), "root", SECRET), 30)
            assert "was decoded as" not in answer.remark, answer.remark
            decoded = seen[-1].decoded
            kinds[request_name(code)] = decoded is None or type(decoded) is it.broker.table.request_class(code)

    assert [name for name, right in kinds.items() if not right] == []


# --- the name server -------------------------------------------------------------------------

TOLD_TO_ALL: Final = frozenset(
    {
        R.GET_BROKER_MEMBER_GROUP, R.GET_ROUTEINFO_BY_TOPIC, R.GET_BROKER_CLUSTER_INFO,
        R.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, R.GET_TOPICS_BY_CLUSTER, R.GET_SYSTEM_TOPIC_LIST_FROM_NS,
        R.GET_UNIT_TOPIC_LIST, R.GET_HAS_UNIT_SUB_TOPIC_LIST, R.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, R.GET_KV_CONFIG,
        R.GET_KVLIST_BY_NAMESPACE, R.GET_NAMESRV_CONFIG,
    }
)  # fmt: skip


async def test_a_name_server_is_changed_by_administrators_alone() -> None:
    passed = []
    async with running_broker(plugins__enable=["default", "acl"], plugins__acl__accounts=ACCOUNTS) as broker:
        server = broker.host.active["namesrv"].instance.embedded
        assert isinstance(server, NameServer)
        codes = set(server._server.handlers)
        connection = await connect(broker.name_servers[0])
        asks = Matrix(broker, connection)
        for code in codes - TOLD_TO_ALL:
            for key, secret in (("", ""), ("pub", "wrong-secret"), ("nobody", SECRET), ("pub", SECRET)):
                if not await asks.is_refused(Command.request(code, {"topic": "mine", "brokerName": "b"}), key, secret):
                    passed.append((request_name(code), key))
        connection.close()

    assert passed == []
    assert codes >= TOLD_TO_ALL
