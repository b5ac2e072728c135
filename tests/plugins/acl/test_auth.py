"""Users and rights made by request, as RocketMQ 5's tools make them, and what they let pass."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import orjson
import pytest

from tests.plugins.acl.test_acl import ACCOUNTS, SECRETS, pull, send, signed
from verniermq.kernel import Broker, Command, Connection, RequestCode, ResponseCode, connect
from verniermq.plugins.acl.policies import MOST_ENTRIES
from verniermq.testing import running_broker

pytestmark = pytest.mark.anyio

R = RequestCode
MANY_TOPICS = ",".join(f"t{number}=PUB" for number in range(MOST_ENTRIES + 1))
PASSWORDS = {**SECRETS, "ann": "ann-password", "bob": "bob-password"}


@attrs.frozen
class Guarded:
    broker: Broker
    connection: Connection

    async def ask(self, command: Command, key: str = "root", password: str | None = None) -> Command:
        secret = PASSWORDS[key] if password is None else password
        return await self.connection.request(signed(command, key, secret), 20)

    async def call(self, code: RequestCode, body: object = None, key: str = "root", **fields: object) -> Command:
        ext = {name: str(value) for name, value in fields.items()}
        return await self.ask(Command.request(code, ext, b"" if body is None else orjson.dumps(body)), key)

    async def done(self, code: RequestCode, body: object = None, key: str = "root", **fields: object) -> Any:
        answer = await self.call(code, body, key, **fields)
        assert answer.code == 0, answer.remark
        return orjson.loads(answer.body) if answer.body else None

    async def user(self, name: str = "bob", **members: str) -> None:
        await self.done(R.AUTH_CREATE_USER, {"username": name, "password": PASSWORDS[name], **members}, username=name)

    async def allow(self, *resources: str, actions: str = "Pub,Sub", decision: str = "Allow", ips: str = "") -> None:
        entries = [
            {
                "resource": resource, "actions": actions.split(","), "decision": decision,
                "sourceIps": ips.split(",") if ips else None,
            }
            for resource in resources
        ]  # fmt: skip
        await self.done(R.AUTH_CREATE_ACL, {"policies": [{"entries": entries}]}, subject="User:bob")


@asynccontextmanager
async def guarded(store: Path | None = None, **settings: Any) -> AsyncIterator[Guarded]:
    settings = {"plugins__acl__accounts": ACCOUNTS, **settings}
    async with running_broker(store, plugins__enable=["default", "acl"], **settings) as broker:
        connection = await connect(broker.address)
        try:
            yield Guarded(broker, connection)
        finally:
            connection.close()


# --- users ---------------------------------------------------------------------------------


async def test_a_user_is_made_shown_changed_and_deleted() -> None:
    async with guarded() as it:
        await it.user()
        assert await it.done(R.AUTH_GET_USER, username="bob") == {
            "userStatus": "enable", "userType": "Normal", "username": "bob",
        }  # fmt: skip
        await it.done(R.AUTH_UPDATE_USER, {"userType": "Super", "userStatus": "disable"}, username="bob")
        assert (await it.done(R.AUTH_LIST_USER, filter="bo"))[0]["userStatus"] == "disable"

        await it.done(R.AUTH_DELETE_USER, username="bob")
        assert await it.done(R.AUTH_GET_USER, username="bob") is None
        assert await it.done(R.AUTH_LIST_USER, filter="bob") is None


async def test_a_user_signs_with_its_password_from_the_first_moment_on_and_until_it_is_disabled() -> None:
    async with guarded() as it:
        unknown = await it.ask(send("orders"), "bob")
        await it.user()
        await it.allow("Topic:orders")
        good, wrong = await it.ask(send("orders"), "bob"), await it.ask(send("orders"), "bob", "another")
        await it.done(R.AUTH_UPDATE_USER, {"password": "another"}, username="bob")
        after = await it.ask(send("orders"), "bob", "another")
        await it.done(R.AUTH_UPDATE_USER, {"userStatus": "disable"}, username="bob")
        disabled = await it.ask(send("orders"), "bob", "another")

        assert [good.code, after.code] == [0, 0]
        assert {unknown.code, wrong.code, disabled.code} == {ResponseCode.NO_PERMISSION}
        assert "'bob' is not known here, or disabled" in (disabled.remark or "")


async def test_users_and_rights_are_there_after_a_restart(tmp_path: Path) -> None:
    async with guarded(tmp_path) as it:
        await it.user()
        await it.allow("Topic:orders")
        assert (tmp_path / "config" / "acl.json").stat().st_mode & 0o777 == 0o600

    async with guarded(tmp_path) as it:
        assert (await it.ask(send("orders"), "bob")).code == 0


async def test_an_account_in_the_file_wins_and_is_shown_as_such() -> None:
    async with guarded() as it:
        for code in (R.AUTH_CREATE_USER, R.AUTH_UPDATE_USER, R.AUTH_DELETE_USER):
            answer = await it.call(code, {"password": "mine-now"}, username="shop")
            assert answer.code == ResponseCode.INVALID_PARAMETER
            assert answer.remark == "account 'shop' is in broker.toml, which wins; change it there"
        assert (await it.ask(send("orders"), "shop")).code == 0

        users = {user["username"]: user["userType"] for user in await it.done(R.AUTH_LIST_USER)}
        rights = await it.done(R.AUTH_GET_ACL, subject="User:billing")

        assert users["shop"] == "Normal (broker.toml)"
        assert users["root"] == "Super (broker.toml)"
        assert rights["policies"][0]["policyType"] == "broker.toml"
        assert rights["policies"][0]["entries"][0] == {
            "actions": ["Sub"], "decision": "Allow", "resource": "Topic:orders", "sourceIps": [],
        }  # fmt: skip


async def test_no_password_leaves_the_broker_or_its_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with guarded() as it:
        await it.user()
        await it.allow("*")
        answers = [
            await it.call(code, **fields)
            for code, fields in (
                (R.AUTH_GET_USER, {"username": "bob"}), (R.AUTH_LIST_USER, {}),
                (R.AUTH_GET_ACL, {"subject": "User:bob"}),
                (R.AUTH_LIST_ACL, {}), (R.GET_BROKER_CLUSTER_ACL_CONFIG, {}),
            )
        ]  # fmt: skip
        again = await it.call(R.AUTH_CREATE_USER, {"password": PASSWORDS["bob"]}, username="bob")

    said = caplog.text + "".join(f"{answer.body!r} {answer.remark}" for answer in [*answers, again])
    assert not [secret for secret in PASSWORDS.values() if secret in said]
    assert "access control: created user bob by='root' peer=127.0.0.1:" in caplog.text


# --- who may make them ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "code", [code for code in R if 3001 <= code <= 3010 or 50 <= code <= 54], ids=lambda code: code.name
)
async def test_only_an_administrator_may(code: RequestCode) -> None:
    fields = {"username": "eve", "subject": "User:bob", "accessKey": "eve", "secretKey": "eve-password"}
    async with guarded() as it:
        await it.user()
        await it.allow("*", actions="All")
        answer = await it.call(code, {"password": "eve-password", "userType": "Super"}, "bob", **fields)

        assert answer.code == ResponseCode.NO_PERMISSION
        assert len(it.broker.host.active["acl"].instance._users) == 1


async def test_a_super_user_is_an_administrator_and_a_trusted_address_too() -> None:
    async with guarded() as it:
        await it.user("ann", userType="Super")
        await it.done(R.AUTH_CREATE_USER, {"password": PASSWORDS["bob"]}, key="ann", username="bob")
        assert (await it.ask(send("anything"), "ann")).code == 0

    async with guarded(plugins__acl__whitelist=["127.0.0.1"]) as it:
        body = orjson.dumps({"password": "bob-password"})
        answer = await it.connection.request(Command.request(R.AUTH_CREATE_USER, {"username": "bob"}, body))
        assert answer.code == 0


# --- rights --------------------------------------------------------------------------------


async def test_rights_decide_what_passes() -> None:
    async with guarded() as it:
        await it.user()
        await it.allow("Topic:logs-*", "Group:readers")
        await it.allow("Topic:logs-secret", decision="Deny")
        allowed = [send("logs-a"), pull("logs-a", "readers"), send("%RETRY%readers")]
        denied = [send("logs-secret"), send("orders"), pull("logs-a", "others"), send("%RETRY%others")]

        assert [(await it.ask(command, "bob")).code for command in allowed] == [0, 0, 0]
        refused = [await it.ask(command, "bob") for command in denied]

        assert {answer.code for answer in refused} == {ResponseCode.NO_PERMISSION}
        assert "its right to Topic:logs-secret says Deny; change it with: mqadmin updateAcl" in (
            refused[0].remark or ""
        )
        assert (refused[1].remark or "").endswith(
            "allow it with: mqadmin createAcl -s User:bob -r Topic:orders -a Pub -d Allow"
        )


async def test_an_operators_rights_are_to_topics_groups_and_the_cluster() -> None:
    topic = {"topic": "made", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
    async with guarded() as it:
        await it.user()
        asked = [(R.UPDATE_AND_CREATE_TOPIC, topic), (R.GET_ALL_TOPIC_CONFIG, {}), (R.DELETE_TOPIC_IN_BROKER, topic)]
        nothing = [(await it.call(code, None, "bob", **fields)).code for code, fields in asked]
        await it.allow("Topic:made", actions="Create,Get")
        creates = [(await it.call(code, None, "bob", **fields)).code for code, fields in asked]
        await it.allow("Cluster:DefaultCluster", actions="List,Get")
        lists = [(await it.call(code, None, "bob", **fields)).code for code, fields in asked]

        assert nothing == [16, 16, 16]
        assert creates == [0, 16, 16]
        assert lists == [0, 0, 16]


async def test_rights_may_be_for_some_addresses_only() -> None:
    async with guarded() as it:
        await it.user()
        await it.allow("Topic:orders", ips="10.0.0.0/8")
        elsewhere = await it.ask(send("orders"), "bob")
        await it.allow("Topic:orders", ips="10.0.0.0/8,127.0.0.1")
        here = await it.ask(send("orders"), "bob")

        assert (elsewhere.code, here.code) == (ResponseCode.NO_PERMISSION, 0)


async def test_rights_are_shown_changed_and_taken_away() -> None:
    async with guarded() as it:
        await it.user()
        await it.allow("Topic:a", "Topic:b", actions="Pub")
        await it.done(
            R.AUTH_UPDATE_ACL,
            {
                "policies": [
                    {
                        "policyType": "Custom",
                        "entries": [{"resource": "Topic:b", "actions": ["Sub"], "decision": "Deny"}],
                    }
                ]
            },
            subject="User:bob",
        )
        shown = await it.done(R.AUTH_GET_ACL, subject="User:bob")
        listed = await it.done(R.AUTH_LIST_ACL, subjectFilter="bob", resourceFilter="Topic:b")

        assert shown["subject"] == "User:bob"
        assert {e["resource"]: e["decision"] for e in shown["policies"][0]["entries"]} == {
            "Topic:a": "Allow",
            "Topic:b": "Deny",
        }
        assert [entry["resource"] for entry in listed[0]["policies"][0]["entries"]] == ["Topic:b"]

        await it.done(R.AUTH_DELETE_ACL, subject="User:bob", resource="Topic:a")
        assert (await it.ask(send("a"), "bob")).code == ResponseCode.NO_PERMISSION
        await it.done(R.AUTH_DELETE_ACL, subject="User:bob")
        assert await it.done(R.AUTH_GET_ACL, subject="User:bob") is None


@pytest.mark.parametrize(
    ("code", "body", "fields"),
    [
        (R.AUTH_CREATE_USER, {"password": "x"}, {"username": ""}), (R.AUTH_CREATE_USER, {}, {"username": "carl"}),
        (R.AUTH_CREATE_USER, [1], {"username": "carl"}), (R.AUTH_CREATE_USER, None, {"username": "carl"}),
        (R.AUTH_UPDATE_USER, {}, {"username": "carl"}), (R.AUTH_CREATE_ACL, {}, {"subject": "User:bob"}),
        (R.AUTH_CREATE_ACL, {"policies": [{"entries": [{}]}]}, {"subject": "User:bob"}),
        (R.AUTH_CREATE_ACL, {"policies": []}, {"subject": "Role:bob"}),
        (R.AUTH_GET_ACL, None, {"subject": "User:carl"}),
        (R.AUTH_DELETE_ACL, None, {"subject": "User:bob"}),
        (R.AUTH_DELETE_ACL, None, {"subject": "User:bob", "policyType": "x", "resource": "*"}),
        (R.UPDATE_AND_CREATE_ACL_CONFIG, None, {"accessKey": "carl", "secretKey": "carl-key", "topicPerms": "a=x"}),
        (R.UPDATE_AND_CREATE_ACL_CONFIG, None, {"accessKey": "carl", "secretKey": "carl-key", "topicPerms": "a*b=PUB"}),
        (R.UPDATE_AND_CREATE_ACL_CONFIG, None, {"accessKey": "bob", "secretKey": "other", "topicPerms": "a*b=PUB"}),
        (R.UPDATE_AND_CREATE_ACL_CONFIG, None, {"accessKey": "bob", "secretKey": "other", "topicPerms": MANY_TOPICS}),
        (R.UPDATE_AND_CREATE_ACL_CONFIG, None, {"accessKey": "carl"}),
        (R.UPDATE_AND_CREATE_ACL_CONFIG, None, {"accessKey": "carl", "whiteRemoteAddress": "*"}),
    ],
)  # fmt: skip
async def test_what_makes_no_sense_is_refused_and_changes_nothing(
    code: R, body: object, fields: dict[str, str]
) -> None:
    async with guarded() as it:
        await it.user()
        before = it.broker.host.active["acl"].instance._users.as_json()
        answer = await it.call(code, body, **fields)

        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert it.broker.host.active["acl"].instance._users.as_json() == before


# --- as RocketMQ 4 does it -----------------------------------------------------------------


async def test_an_account_of_rocketmq_4_is_made_and_deleted() -> None:
    async with guarded() as it:
        await it.done(
            R.UPDATE_AND_CREATE_ACL_CONFIG, accessKey="bob", secretKey=PASSWORDS["bob"], admin="false",
            defaultTopicPerm="DENY", defaultGroupPerm="SUB", topicPerms="orders=PUB|SUB,logs=DENY",
            groupPerms="mine=DENY",
        )  # fmt: skip
        commands = [send("orders"), send("logs"), send("x"), pull("orders", "any"), pull("orders", "mine")]
        codes = [(await it.ask(command, "bob")).code for command in commands]
        shown = await it.done(R.GET_BROKER_CLUSTER_ACL_CONFIG)
        version = await it.call(R.GET_BROKER_CLUSTER_ACL_INFO)
        whitelist = await it.call(R.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, globalWhiteAddrs="*")
        await it.done(R.DELETE_ACL_CONFIG, accessKey="bob")

        assert codes == [0, 16, 16, 0, 16]
        assert {"accessKey": "bob", "admin": False} in shown["plainAccessConfigs"]
        assert version.ext["clusterName"] == "DefaultCluster"
        assert (whitelist.code, "broker.toml" in (whitelist.remark or "")) == (3, True)
        assert (await it.ask(send("orders"), "bob")).code == 16


async def test_a_broker_without_the_plugin_says_which_one_it_takes() -> None:
    async with running_broker() as broker:
        connection = await connect(broker.address)
        answer = await connection.request(Command.request(R.AUTH_LIST_USER, {}))
        connection.close()
        assert (answer.code, "'acl'" in (answer.remark or "")) == (3, True)
