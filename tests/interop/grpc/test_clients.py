"""The official clients of RocketMQ 5 against a broker with the plugin ``grpc``."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop.drivers import Driver
from tests.interop.grpc.clients import GRPC_CLIENTS, grpc_driver
from tests.interop.processes import LOOPBACK, free_ports
from tests.interop.verniermq_process import VernierMQBroker
from tests.interop.wire import SUCCESS, request
from verniermq.client.errors import NoRoute
from verniermq.client.sync import Admin

pytestmark = pytest.mark.timeout(300)

MANY = 1000
UPDATE_GROUP = 200

SETTINGS = """
[plugins]
enable = ["default", {more}"grpc"]
[plugins.grpc]
port = {port}
[plugins.txn]
timeout = "1s"
check_interval = "1s"
{tables}
"""
ACCOUNTS = """
[plugins.acl.accounts.shop]
secret = "shop-secret"
topics = { orders = "PUB|SUB" }
groups = { billing = "SUB" }
[plugins.acl.accounts.root]
secret = "root-secret"
admin = true
"""
SPEAKS_TLS = ("java", "go")
"""Unless told otherwise."""


@pytest.fixture(params=GRPC_CLIENTS)
def driver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Driver]:
    driver = Driver(request.param, grpc_driver(request.param), tmp_path)
    yield driver
    driver.close()


class GrpcBroker(VernierMQBroker):
    """A broker whose gRPC port is known beforehand."""

    def __init__(self, folder: Path, more: str = "", tables: str = "") -> None:
        port = free_ports()
        config = folder / "broker.toml"
        config.write_text(SETTINGS.format(port=port, more=more, tables=tables))
        super().__init__(folder, config=config)
        self.endpoint = f"{LOOPBACK}:{port}"

    def make_group(self, name: str, **members: Any) -> None:
        answer = request(self.broker, UPDATE_GROUP, body=json.dumps({"groupName": name, **members}).encode())
        assert answer.code == SUCCESS, answer


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[GrpcBroker]:
    with GrpcBroker(tmp_path) as broker:
        yield broker


def bodies(run: Any, event: str = "received") -> list[str]:
    return [line["body"] for line in run.events(event)]


def numbered(prefix: str, count: int) -> list[str]:
    return [f"{prefix}-{number}" for number in range(count)]


def test_a_thousand_messages_reach_a_simple_and_a_push_consumer(driver: Driver, broker: GrpcBroker) -> None:
    where = {"endpoint": broker.endpoint, "topic": "many", "tls": str(driver.client in SPEAKS_TLS).lower()}
    driver.run("send", count=MANY, **where)
    push = driver.start("push", group="pushed", count=MANY, timeout=120, **where)
    simple = driver.start("simple", group="taken", count=MANY, timeout=120, **where)

    assert sorted(bodies(simple.finish())) == sorted(numbered("m", MANY))
    assert sorted(set(bodies(push.finish()))) == sorted(numbered("m", MANY))
    assert all(line["properties"]["n"] in line["body"] for line in simple.events("received"))


def test_order_delay_transactions_recall_and_sql(driver: Driver, broker: GrpcBroker) -> None:
    broker.make_group("in-order", consumeMessageOrderly=True)
    where = {"endpoint": broker.endpoint}
    driver.run("send", topic="fifo", kind="fifo", count=30, prefix="f", **where)
    driver.run("send", topic="mixed", kind="delay", count=2, prefix="late", **where)
    driver.run("send", topic="mixed", kind="recall", count=2, prefix="gone", delay_ms=20_000, **where)
    driver.run("send", topic="mixed", kind="commit", count=2, prefix="committed", **where)
    driver.run("send", topic="mixed", kind="rollback", count=2, prefix="rolled", **where)
    driver.run("send", topic="sql", count=10, prefix="s", **where)

    in_order = driver.start("push", topic="fifo", group="in-order", count=30, **where)
    mixed = driver.start("simple", topic="mixed", group="g", count=4, **where)
    chosen = driver.start("simple", topic="sql", group="g", count=3, sql="n > 6", **where)

    lines = in_order.finish().events("received")
    for group in range(3):
        of_group = [line["body"] for line in lines if line["group"] == f"group-{group}"]
        assert list(dict.fromkeys(of_group)) == [f"f-{number}" for number in range(group, 30, 3)]
    assert sorted(bodies(mixed.finish())) == ["committed-0", "committed-1", "late-0", "late-1"]
    assert sorted(bodies(chosen.finish())) == ["s-7", "s-8", "s-9"]


def test_another_producer_is_asked_about_what_a_killed_one_left_open(driver: Driver, broker: GrpcBroker) -> None:
    where = {"endpoint": broker.endpoint, "topic": "orphans"}
    driver.run("send", kind="orphan", count=2, prefix="orphan", **where)
    asked = driver.start("check", timeout=60, **where)
    found = driver.run("simple", count=2, timeout=60, **where)

    assert sorted(bodies(found)) == ["orphan-0", "orphan-1"]
    assert set(bodies(asked, "checked")) == {"orphan-0", "orphan-1"}


def test_what_fails_is_tried_again_and_becomes_a_dead_letter(driver: Driver, broker: GrpcBroker) -> None:
    broker.make_group("failing", retryMaxTimes=1)
    where = {"endpoint": broker.endpoint, "topic": "poison"}
    driver.run("send", count=2, prefix="bad", **where)
    failing = driver.run("push", group="failing", count=4, fail="bad-1", timeout=60, **where)
    attempts = [(line["body"], line["attempt"]) for line in failing.events("received")]

    assert [attempt for body, attempt in attempts if body == "bad-0"] == [1]
    assert [attempt for body, attempt in attempts if body == "bad-1"][:2] == [1, 2]
    dead = driver.start("push", group="failing", count=1, timeout=30, **where)
    found = dead_letters(broker.namesrv, "failing")
    dead.kill()
    assert found == [b"bad-1"]


def dead_letters(namesrv: str, group: str) -> list[bytes]:
    deadline = time.monotonic() + 60
    with Admin(namesrv=namesrv) as admin:
        while time.monotonic() < deadline:
            try:
                if found := admin.dead_letters(group):
                    return [message.body for message in found]
            except NoRoute:
                pass  # none yet
            time.sleep(0.5)
    return []


def test_a_consumer_goes_on_after_a_restart_of_the_broker(driver: Driver, broker: GrpcBroker) -> None:
    where = {"endpoint": broker.endpoint, "topic": "restart"}
    driver.run("send", count=20, prefix="before", **where)
    push = driver.start("push", group="staying", count=40, timeout=120, **where)
    push.wait_for("received", 60)
    broker.restart()
    driver.run("send", count=20, prefix="after", **where)

    wanted = {*numbered("before", 20), *numbered("after", 20)}
    assert set(bodies(push.finish())) == wanted


def test_tls_and_credentials(driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with GrpcBroker(tmp_path, '"acl", ', ACCOUNTS) as broker:
        certificate = str(broker.store / "config" / "grpcCertificate.pem")
        monkeypatch.setenv("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", certificate)
        monkeypatch.setenv("NODE_EXTRA_CA_CERTS", certificate)
        where = {"endpoint": broker.endpoint, "topic": "orders", "tls": "true"}
        right = {"key": "shop", "secret": "shop-secret"}
        driver.run("send", count=3, **right, **where)
        received = driver.run("simple", group="billing", count=3, **right, **where)
        refused = driver.start("send", count=1, prefix="x", key="shop", secret="wrong", **where)
        without = driver.start("send", count=1, prefix="x", **where)
        refused.end()
        without.end()

    assert sorted(bodies(received)) == numbered("m", 3)
    assert not refused.events("sent")
    assert not without.events("sent")
