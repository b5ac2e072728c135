"""Access control over a real socket: who is let in, who is not, and what those are told."""

from __future__ import annotations

import base64
import logging
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import orjson
import pytest
from click.testing import CliRunner

from tests.plugins.documented import blocks
from verniermq.cli import main
from verniermq.cli.render import render_effective
from verniermq.kernel import (
    Broker,
    Command,
    ConfigError,
    Connection,
    RequestCode,
    ResponseCode,
    connect,
)
from verniermq.kernel.config import load
from verniermq.kernel.config.structure import structure
from verniermq.kernel.config.toml import toml_value
from verniermq.kernel.remoting.signature import digest, is_signed_with
from verniermq.kernel.requests import EITHER, PUB, SUB, Undeclared
from verniermq.plugins.acl import Config
from verniermq.plugins.acl.accounts import Rights, any_of
from verniermq.testing import running_broker

pytestmark = pytest.mark.anyio

SECRET = "a-long-secret"
ACCOUNTS: dict[str, Any] = {
    "shop": {"secret": SECRET, "topics": {"orders": "PUB", "logs-*": "PUB|SUB", "logs-secret": "DENY"}},
    "billing": {"secret": "b-long-secret", "topics": {"orders": "SUB"}, "groups": {"billing": "SUB"}},
    "root": {"secret": "r-long-secret", "admin": True},
    "near": {"secret": "n-long-secret", "whitelist": ["127.0.0.1"], "default_topic": "PUB"},
}
SECRETS = {name: account["secret"] for name, account in ACCOUNTS.items()}


def signed(command: Command, key: str, secret: str) -> Command:
    command.ext["AccessKey"] = key
    fields = {name: value for name, value in command.ext.items() if name != "Signature"}
    command.ext["Signature"] = base64.b64encode(digest(secret.encode(), fields, command.body)).decode()
    return command


def send(topic: str, body: bytes = b"hello") -> Command:
    fields = {"a": "p", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "i": "", "j": "0"}
    return Command.request(RequestCode.SEND_MESSAGE_V2, fields, body)


def pull(topic: str, group: str) -> Command:
    fields = {
        "consumerGroup": group, "topic": topic, "queueId": "0", "queueOffset": "0", "maxMsgNums": "1", "sysFlag": "4",
        "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
    }  # fmt: skip
    return Command.request(RequestCode.PULL_MESSAGE, fields)


@asynccontextmanager
async def guarded(**settings: Any) -> AsyncIterator[tuple[Broker, Connection]]:
    settings = {"plugins__acl__accounts": ACCOUNTS, **settings}
    async with running_broker(plugins__enable=["default", "acl"], **settings) as broker:
        connection = await connect(broker.address)
        try:
            yield broker, connection
        finally:
            connection.close()


async def answer(connection: Connection, command: Command, key: str = "") -> tuple[int, str]:
    answered = await connection.request(signed(command, key, SECRETS[key]) if key else command, 10)
    return answered.code, answered.remark


# --- who asks --------------------------------------------------------------------------------


async def test_a_request_that_is_not_signed_is_refused_and_says_what_to_do() -> None:
    async with guarded() as (_, connection):
        code, remark = await answer(connection, send("orders"))

    assert code == ResponseCode.NO_PERMISSION
    assert "SEND_MESSAGE_V2 (310)" in remark
    assert "is not signed; give the client its access key and secret, or put 127.0.0.1 into whitelist" in remark


async def test_a_broker_that_lets_nobody_in_says_so_at_its_start_and_so_does_the_check(
    caplog: pytest.LogCaptureFixture,
) -> None:
    says = "[plugins.acl] has neither accounts nor a whitelist: every request is refused"
    checked = await anyio.to_thread.run_sync(
        lambda: CliRunner().invoke(main, ["config", "check", "--set", "plugins.enable=default,acl"])
    )
    async with running_broker(plugins__enable=["default", "acl"]):
        pass
    told = [record.getMessage() for record in caplog.records if says in record.getMessage()]
    caplog.clear()
    async with guarded():
        pass

    assert f"note: {says}" in checked.output
    assert len(told) == 1
    assert says not in caplog.text


async def test_a_wrong_secret_and_an_unknown_account_are_refused() -> None:
    async with guarded() as (_, connection):
        wrong = await connection.request(signed(send("orders"), "shop", "not-the-secret"))
        unknown = await connection.request(signed(send("orders"), "nobody", SECRET))

    assert (wrong.code, unknown.code) == (ResponseCode.NO_PERMISSION, ResponseCode.NO_PERMISSION)
    assert "the signature of access key 'shop' is wrong; check the client's secret key" in wrong.remark
    assert "access key 'nobody' is not known here" in unknown.remark


async def test_a_signed_request_that_was_changed_on_its_way_is_refused() -> None:
    async with guarded() as (_, connection):
        body = signed(send("orders"), "shop", SECRET)
        body.body = b"other"
        field = signed(send("orders"), "shop", SECRET)
        field.ext["e"] = "1"
        added = signed(send("orders"), "shop", SECRET)
        added.ext["l"] = "3"
        codes = [(await connection.request(command)).code for command in (body, field, added)]

    assert codes == [ResponseCode.NO_PERMISSION] * 3


async def test_requests_that_nobody_can_look_through_are_refused_and_do_not_stop_the_broker() -> None:
    """Ten failures of the plugin in a row would: no account may bring them about."""
    async with guarded() as (broker, connection):
        for _ in range(12):
            body = b'{"clientID":"c","consumerDataSet":[{"groupName":' + b"[" * 990 + b"]" * 990 + b"}]}"
            code, remark = await answer(connection, Command.request(RequestCode.HEART_BEAT, {}, body), "shop")
            assert code == ResponseCode.INVALID_PARAMETER
            assert "nested more than 32 levels deep" in remark

        assert not broker.stop_requested.is_set()


@pytest.mark.parametrize("signature", ["", "?", "AAAA", "é", "AA=="], ids=str)
async def test_a_signature_that_is_none_is_refused(signature: str) -> None:
    command = signed(send("orders"), "shop", SECRET)
    command.ext["Signature"] = signature

    assert not is_signed_with(SECRET.encode(), command)


def test_a_signature_is_checked_as_rocketmq_makes_it() -> None:
    ext = {"AccessKey": "ak1", "bname": "b-0", "queueId": "0", "topic": "T"}
    command = Command.request(30, {**ext, "Signature": "IO1tZw5ctrc8A8vKrZvbq65LDV8="})
    assert is_signed_with(b"sk-secret", command)

    # Zones are added after signing; Go does not sign its token; Java 4.9.3 and older, not this field.
    command.ext["__ZONE_NAME"] = "z"
    command.ext["SecurityToken"] = "token"
    assert is_signed_with(b"sk-secret", command)
    command.ext["_UNIQUE_KEY_QUERY"] = "true"
    assert not is_signed_with(b"sk-secret", command)
    command.version = 399
    assert is_signed_with(b"sk-secret", command)


# --- what they may do ------------------------------------------------------------------------


async def test_an_account_may_do_what_its_table_says_and_nothing_else() -> None:
    async with guarded() as (_, connection):
        assert (await answer(connection, send("orders"), "shop"))[0] == ResponseCode.SUCCESS
        assert (await answer(connection, send("logs-web"), "shop"))[0] == ResponseCode.SUCCESS
        denied = await answer(connection, send("logs-secret"), "shop")
        other = await answer(connection, send("payments"), "shop")
        read = await answer(connection, pull("orders", "billing"), "shop")

    assert denied[0] == other[0] == read[0] == ResponseCode.NO_PERMISSION
    assert "account 'shop' may not PUB with topic 'logs-secret'" in denied[1]
    assert "allow it under topics in [plugins.acl.accounts.shop]" in other[1]
    assert "may not SUB with topic 'orders'" in read[1]


async def test_reading_takes_the_topic_and_the_group() -> None:
    async with guarded() as (_, connection):
        await answer(connection, send("orders"), "shop")
        right = await answer(connection, pull("orders", "billing"), "billing")
        wrong_group = await answer(connection, pull("orders", "others"), "billing")
        wrong_topic = await answer(connection, pull("payments", "billing"), "billing")
        retries = await answer(connection, pull("%RETRY%billing", "billing"), "billing")
        others_retries = await answer(connection, pull("%RETRY%others", "billing"), "billing")
        dead_letters = await answer(connection, pull("%DLQ%others", "billing"), "billing")

    assert right[0] != ResponseCode.NO_PERMISSION
    assert retries[0] != ResponseCode.NO_PERMISSION
    assert "group 'others'" in wrong_group[1]
    assert "topic 'payments'" in wrong_topic[1]
    assert others_retries[0] == dead_letters[0] == ResponseCode.NO_PERMISSION


async def test_a_heartbeat_may_name_only_what_the_account_may_read() -> None:
    def heartbeat(group: str, *topics: str) -> Command:
        consumer = {
            "groupName": group, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "subscriptionDataSet": [{"topic": topic, "subString": "*", "subVersion": 1} for topic in topics],
        }  # fmt: skip
        body = {"clientID": "c", "consumerDataSet": [consumer], "producerDataSet": []}
        return Command.request(RequestCode.HEART_BEAT, {}, orjson.dumps(body))

    async with guarded() as (_, connection):
        good = await answer(connection, heartbeat("billing", "orders", "%RETRY%billing"), "billing")
        group = await answer(connection, heartbeat("others", "orders"), "billing")
        topic = await answer(connection, heartbeat("billing", "orders", "payments"), "billing")

    assert good == (ResponseCode.SUCCESS, "")
    assert group[0] == topic[0] == ResponseCode.NO_PERMISSION


async def test_administration_takes_an_administrator() -> None:
    def create() -> Command:
        fields = {
            "topic": "new", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6",
            "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
        }  # fmt: skip
        return Command.request(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)

    async with guarded() as (broker, connection):
        refused = await answer(connection, create(), "shop")
        created = await answer(connection, create(), "root")

        assert "UPDATE_AND_CREATE_TOPIC (17) for 'new' takes an administrator, and account 'shop' is none" in refused[1]
        assert created[0] == ResponseCode.SUCCESS
        assert "new" in broker.topics


async def test_a_request_that_declares_nothing_takes_an_administrator() -> None:
    async with guarded() as (broker, connection):
        undeclared = [code for code in broker.handlers if broker.table.request_class(code) is Undeclared]
        codes = {(await answer(connection, Command.request(code), "shop"))[0] for code in (*undeclared, 31999)}

    assert codes == {ResponseCode.NO_PERMISSION}


async def test_an_address_of_a_whitelist_need_not_sign() -> None:
    async with guarded() as (_, connection):
        of_account = send("anything")
        of_account.ext["AccessKey"] = "near"
        assert (await answer(connection, of_account))[0] == ResponseCode.SUCCESS
        # It may still do no more than the account.
        pulled = pull("anything", "g")
        pulled.ext["AccessKey"] = "near"
        assert (await answer(connection, pulled))[0] == ResponseCode.NO_PERMISSION
    async with guarded(plugins__acl__whitelist=["10.0.0.1", "127.0.*.*"]) as (_, connection):
        assert (await answer(connection, send("anything")))[0] == ResponseCode.SUCCESS


async def test_a_name_server_answers_everybody() -> None:
    async with guarded() as (broker, _):
        connection = await connect(broker.name_servers[0])
        route = Command.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "TBW102"})
        assert (await answer(connection, route))[0] == ResponseCode.SUCCESS
        connection.close()


def test_the_longest_name_that_fits_decides() -> None:
    rights = Rights({"a": "PUB", "a*": "SUB", "ab*": "DENY", "*": "PUB|SUB"}, "DENY")

    assert rights.of("a") == PUB
    assert rights.of("ax") == SUB
    assert rights.of("abc") == frozenset()
    assert rights.of("z") == EITHER
    assert Rights({}, "SUB").of("z") == SUB


def test_addresses_are_written_in_several_ways() -> None:
    inside = any_of(["10.0.0.0/8", "192.168.*.7", "172.16.0.1", "2001:db8::/32"])

    assert all(map(inside, ["10.9.8.7", "192.168.3.7", "172.16.0.1", "2001:db8::5"]))
    assert not any(map(inside, ["11.0.0.1", "192.168.3.8", "192.168.3.70", "172.16.0.10", "2001:db9::5", "unix", ""]))
    assert any_of(["*"])("anything")
    assert not any_of([])("10.0.0.1")


# --- settings --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        ({"whitelist": ["10.0.0"]}, "addresses, such as"),
        ({"accounts": {"a": {}}}, "secret"),
        ({"accounts": {"a": {"secret": "short"}}}, "7 characters or more"),
        ({"accounts": {"a": {"secret": SECRET, "topics": {"t": "READ"}}}}, '"PUB|SUB" or "DENY"'),
        ({"accounts": {"a": {"secret": SECRET, "groups": {"*t": "SUB"}}}}, "a star at the end"),
        ({"accounts": {"a": {"secret": SECRET, "default_topic": "sub"}}}, '"PUB|SUB" or "DENY"'),
    ],
    ids=["address", "no secret", "short secret", "permission", "star", "default"],
)
def test_settings_that_make_no_sense_are_refused_and_no_secret_is_shown(table: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        structure(Config, table, "plugins.acl")

    assert complaint in str(caught.value)
    assert SECRET not in str(caught.value)
    assert "short" not in str(caught.value).replace("shorter", "")


def test_secrets_are_not_shown() -> None:
    config = structure(Config, {"accounts": ACCOUNTS}, "plugins.acl")
    configuration = load(None, {"plugins.acl.accounts": ACCOUNTS, "plugins.enable": ["acl"]})

    assert SECRET not in repr(config)
    assert SECRET not in render_effective(configuration, {"acl": config})


def test_the_documented_settings_are_valid() -> None:
    (block,) = blocks("acl", "toml")
    table = tomllib.loads(block)
    config = structure(Config, table["plugins"]["acl"], "plugins.acl")

    assert table["plugins"]["enable"] == ["default", "acl"]
    assert {account.secret for account in config.accounts.values()} == {"change-me-1", "change-me-2", "change-me-3"}


async def test_changed_accounts_apply_without_a_restart(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    file = tmp_path / "broker.toml"

    def write(secret: str) -> None:
        file.write_text(
            f"[broker]\nport = 0\n[plugins.namesrv]\nport = 0\n[store]\npath = {toml_value(str(tmp_path / 'store'))}\n"
            '[plugins]\nenable = ["default", "acl"]\n'
            f'[plugins.acl.accounts.shop]\nsecret = "{secret}"\ndefault_topic = "PUB"\n'
        )

    write("the-first-secret")
    async with Broker(load(file), reread=lambda: load(file)) as broker:
        connection = await connect(broker.address)
        first = await connection.request(signed(send("t"), "shop", "the-first-secret"))
        write("the-second-one")
        with anyio.fail_after(30):
            while "settings changed plugin=acl" not in caplog.text:  # noqa: ASYNC110 - the file is looked at now and then
                await anyio.sleep(0.05)
        old = await connection.request(signed(send("t"), "shop", "the-first-secret"))
        new = await connection.request(signed(send("t"), "shop", "the-second-one"))
        connection.close()

    assert (first.code, old.code, new.code) == (ResponseCode.SUCCESS, ResponseCode.NO_PERMISSION, ResponseCode.SUCCESS)


async def test_a_broker_without_the_plugin_does_not_look() -> None:
    async with running_broker() as broker:
        assert not broker.host.is_active("acl")
        assert list(broker.server.guards) == []
