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

    sent = java.run(
        "produce", **where, group="senders", count=COUNT, access_key="shop", secret_key="shop-secret"
    )
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
    "innerClientAuthenticationCredentials": json.dumps(
        {"accessKey": ROOT.access_key, "secretKey": ROOT.secret_key}
    ),
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
