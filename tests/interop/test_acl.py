"""Access control: Apache's Java client against our plugin, and our client against Apache's broker of 5.x."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from verniermq.client import Admin, Credentials, Producer, PushConsumer
from verniermq.client.errors import SendFailed
from verniermq.kernel import Command, UnexpectedAnswer

from . import sample
from .apache import ApacheBroker
from .jvm import java_with
from .test_mqadmin import MqAdmin
from .verniermq_process import VernierMQBroker

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

COUNT = 50
AUTH_CREATE_USER, AUTH_CREATE_ACL = 3001, 3006

ACCOUNTS = """
[plugins]
enable = ["default", "acl"]
[plugins.acl.accounts.shop]
secret = "shop-secret"
topics = { orders = "PUB" }
default_group = "PUB"
[plugins.acl.accounts.billing]
secret = "billing-secret"
topics = { orders = "SUB" }
groups = { billing = "SUB" }
"""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VernierMQBroker]:
    """Our broker with accounts."""
    folder = tmp_path_factory.mktemp("guarded")
    config = folder / "broker.toml"
    config.write_text(ACCOUNTS)
    with VernierMQBroker(folder, config=config) as running:
        yield running


def test_the_java_client_signs_as_we_check(guarded: VernierMQBroker, tmp_path: Path) -> None:
    java = java_with(tmp_path)
    where = {"namesrv": guarded.namesrv, "topic": "orders"}

    sent = java.run("produce", **where, group="senders", count=COUNT, access_key="shop", secret_key="shop-secret")
    received = java.run(
        "consume", **where, group="billing", expect=COUNT, timeout=60, access_key="billing", secret_key="billing-secret"
    )

    assert len(sent.events("sent")) == COUNT
    assert sorted(event["index"] for event in received.events("received")) == list(range(COUNT))


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        ({}, "is not signed"),
        ({"access_key": "shop", "secret_key": "wrong-secret"}, "the signature of access key 'shop' is wrong"),
        ({"access_key": "billing", "secret_key": "billing-secret"}, "account 'billing' may not PUB"),
    ],
    ids=["unsigned", "wrong secret", "no right"],
)
def test_the_java_client_is_told_why_it_is_refused(
    keys: dict[str, str], complaint: str, guarded: VernierMQBroker, tmp_path: Path
) -> None:
    run = java_with(tmp_path).start(
        "produce", namesrv=guarded.namesrv, topic="orders", group="senders", count=1, **keys
    )

    assert run.end(120) != 0
    (failed,) = run.events("failed")
    assert complaint in failed["cause"]


# --- Apache's broker -------------------------------------------------------------------------

ROOT = Credentials("root", "root-secret")
_PACKAGE = "org.apache.rocketmq.auth"
AUTH = {
    "authenticationEnabled": "true",
    "authenticationProvider": f"{_PACKAGE}.authentication.provider.DefaultAuthenticationProvider",
    "authenticationMetadataProvider": f"{_PACKAGE}.authentication.provider.LocalAuthenticationMetadataProvider",
    "authorizationEnabled": "true",
    "authorizationProvider": f"{_PACKAGE}.authorization.provider.DefaultAuthorizationProvider",
    "authorizationMetadataProvider": f"{_PACKAGE}.authorization.provider.LocalAuthorizationMetadataProvider",
    "initAuthenticationUser": json.dumps({"username": ROOT.access_key, "password": ROOT.secret_key}),
    "innerClientAuthenticationCredentials": json.dumps({"accessKey": ROOT.access_key, "secretKey": ROOT.secret_key}),
}


@pytest.fixture(scope="module")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheBroker]:
    """Apache's broker with its authentication and authorization switched on."""
    with ApacheBroker(tmp_path_factory.mktemp("apache"), properties=AUTH) as running:
        yield running


async def test_apaches_broker_takes_our_signatures(apache: ApacheBroker) -> None:
    got: set[bytes] = set()
    async with Admin(namesrv=apache.namesrv, credentials=ROOT) as admin:
        await admin.create_topic("orders", queues=4)
    async with Producer("senders", namesrv=apache.namesrv, credentials=ROOT, send_timeout=10) as producer:
        for index in range(COUNT):
            await producer.send(sample.message("orders", index))
        futures = [await producer.submit(sample.message("orders", index)) for index in range(COUNT, 2 * COUNT)]
        for future in futures:
            await future
    consumer = PushConsumer("billing", namesrv=apache.namesrv, credentials=ROOT, start="first")
    consumer.subscribe("orders")
    async with consumer:
        async for message in consumer:
            got.add(message.body)
            if len(got) == 2 * COUNT:
                break

    assert got == {sample.body(index) for index in range(2 * COUNT)}


async def test_apaches_broker_refuses_what_is_not_signed_or_not_allowed(apache: ApacheBroker) -> None:
    shop = Credentials("shop", "shop-secret")
    async with Admin(namesrv=apache.namesrv, credentials=ROOT) as admin:
        for topic in ("allowed", "forbidden"):
            await admin.create_topic(topic, queues=1)
        user = {"username": "shop", "password": "shop-secret", "userType": "Normal", "userStatus": "enable"}
        answers = [await ask(admin, apache, AUTH_CREATE_USER, {"username": "shop"}, user)]
        entry = {"resource": "Topic:allowed", "actions": ["Pub"], "sourceIps": [], "decision": "Allow"}
        policy = {"policyType": "Custom", "entries": [entry]}
        rights = {"subject": "User:shop", "policies": [policy]}
        answers.append(await ask(admin, apache, AUTH_CREATE_ACL, {"subject": "User:shop"}, rights))

    async with Producer("senders", namesrv=apache.namesrv, credentials=shop, send_timeout=10) as producer:
        sent = await producer.send(sample.message("allowed", 1))
        with pytest.raises((SendFailed, UnexpectedAnswer), match="NO_PERMISSION"):
            await producer.send(sample.message("forbidden", 1))
    wrong = Credentials("shop", "another-secret")
    for credentials in (None, wrong):
        async with Producer("senders", namesrv=apache.namesrv, credentials=credentials, retries=0) as producer:
            with pytest.raises((SendFailed, UnexpectedAnswer), match="NO_PERMISSION"):
                await producer.send(sample.message("allowed", 1))

    assert [answer.code for answer in answers] == [0, 0]
    assert sent.stored_as_wished


async def ask(admin: Admin, apache: ApacheBroker, code: int, ext: dict[str, str], body: object) -> Command:
    return await admin._pool.request(apache.broker, Command.request(code, ext, orjson.dumps(body)), 10)


# --- users and rights as RocketMQ 5 has them -------------------------------------------------

ADMINISTRATOR = """
[plugins]
enable = ["default", "acl"]
[plugins.acl.accounts.root]
secret = "root-secret"
admin = true
"""


def test_mqadmin_makes_users_and_rights_that_the_java_client_uses(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "tools.yml").write_text("accessKey: root\nsecretKey: root-secret\n")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "broker.toml").write_text(ADMINISTRATOR)
    java = java_with(tmp_path)
    with (
        VernierMQBroker(tmp_path / "a", config=tmp_path / "a" / "broker.toml") as a,
        VernierMQBroker(tmp_path / "b", config=tmp_path / "b" / "broker.toml") as b,
    ):
        mqadmin = MqAdmin(tmp_path, a, "")
        here, there = ("-b", a.broker), ("-b", b.broker)
        rights = ("-s", "User:shop", "-a", "Pub,Sub", "-i", "127.0.0.0/8", "-d", "Allow")

        said = {
            "createUser": mqadmin("createUser", *here, "-u", "shop", "-p", "shop-secret", "-t", "Normal"),
            "updateUser": mqadmin("updateUser", *here, "-u", "shop", "-s", "enable"),
            "createAcl": mqadmin("createAcl", *here, *rights, "-r", "Topic:ord*,Group:billing"),
            "updateAcl": mqadmin("updateAcl", *here, *rights, "-r", "Topic:secret"),
            "deleteAcl": mqadmin("deleteAcl", *here, "-s", "User:shop", "-r", "Topic:secret"),
        }
        where = {"namesrv": a.namesrv, "access_key": "shop", "secret_key": "shop-secret"}
        sent = java.run("produce", **where, topic="orders", group="senders", count=COUNT)
        received = java.run("consume", **where, topic="orders", group="billing", expect=COUNT, timeout=60)
        refused = java.start("produce", **where, topic="secret", group="senders", count=1)
        assert refused.end() == 1
        shown = {
            "getUser": mqadmin("getUser", *here, "-u", "shop"),
            "listUser": mqadmin("listUser", *here),
            "getAcl": mqadmin("getAcl", *here, "-s", "User:shop"),
            "listAcl": mqadmin("listAcl", *here, "-s", "shop"),
        }
        no_password = mqadmin("copyUser", "-f", a.broker, "-t", b.broker, "-u", "shop")
        mqadmin("createUser", *there, "-u", "shop", "-p", "shop-secret", "-t", "Super")
        copied = {
            "copyUser": mqadmin("copyUser", "-f", a.broker, "-t", b.broker, "-u", "shop"),
            "copyAcl": mqadmin("copyAcl", "-f", a.broker, "-t", b.broker, "-s", "User:shop"),
        }
        there_now = mqadmin("getUser", *there, "-u", "shop") + mqadmin("getAcl", *there, "-s", "User:shop")
        said["deleteUser"] = mqadmin("deleteUser", *here, "-u", "shop")
        mqadmin.close()

    assert {name: "success" in text for name, text in said.items()} == dict.fromkeys(said, True), said
    assert {name: "success" in text for name, text in copied.items()} == dict.fromkeys(copied, True), copied
    assert "brokers do not give passwords out" in no_password
    assert len(sent.events("sent")) == COUNT
    assert sorted(event["index"] for event in received.events("received")) == list(range(COUNT))
    assert "user 'shop' may not Pub with topic 'secret' from 127.0.0.1" in refused.events("failed")[0]["cause"]
    assert all("shop" in text for text in shown.values()), shown
    assert "Super (broker.toml)" in shown["listUser"]
    assert "Topic:ord*" in shown["getAcl"]
    assert "127.0.0.0/8" in shown["getAcl"]
    assert "Topic:secret" not in shown["getAcl"] + shown["listAcl"]
    assert "Normal" in there_now
    assert "Topic:ord*" in there_now
    assert "shop-secret" not in "".join([*said.values(), *shown.values(), *copied.values(), no_password, there_now])
