"""The official clients of RocketMQ 5 against a broker with the plugin ``grpc``."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.interop.drivers import PATIENCE, DriverRun
from tests.interop.grpc.broker import GrpcBroker
from tests.interop.grpc.clients import GRPC_CLIENTS
from tests.interop.grpc.stage import AT_ONCE, Act, Stage, beside, selected
from verniermq.client.errors import NoRoute
from verniermq.client.sync import Admin

pytestmark = pytest.mark.timeout(600)

MANY = 1000

ACCOUNTS = "".join(
    f"""
[plugins.acl.accounts.{client}-shop]
secret = "{client}-secret"
topics = {{ {client}-orders = "PUB|SUB" }}
groups = {{ {client}-billing = "SUB" }}
"""
    for client in GRPC_CLIENTS
)
SPEAKS_TLS = ("java", "go")
"""Unless told otherwise."""
SOON = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1000]}}
"""A message that failed is tried again after a second, however often it did."""


@pytest.fixture(scope="module")
def stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("grpc")
    with (
        GrpcBroker(folder / "open") as broker,
        GrpcBroker(folder / "guarded", '"acl", ', ACCOUNTS) as guarded,
        pytest.MonkeyPatch.context() as patch,
        ThreadPoolExecutor(AT_ONCE) as pool,
    ):
        certificate = str(guarded.store / "config" / "grpcCertificate.pem")
        patch.setenv("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", certificate)
        patch.setenv("NODE_EXTRA_CA_CERTS", certificate)
        stage = Stage(folder, broker, guarded, pool)
        stage.start(selected(request))
        yield stage
        pool.shutdown(cancel_futures=True)


def enough(run: DriverRun) -> DriverRun:
    """Wait until a consumer has what it wants. It would close now; all but Python's wait for their last poll then."""
    run.wait_for("summary", PATIENCE)
    run.kill()
    return run


def bodies(run: Any, event: str = "received") -> list[str]:
    return [line["body"] for line in run.events(event)]


def numbered(prefix: str, count: int) -> list[str]:
    return [f"{prefix}-{number}" for number in range(count)]


@beside
def test_a_thousand_messages_reach_a_simple_and_a_push_consumer(act: Act) -> None:
    driver, tls = act.driver, str(act.driver.client in SPEAKS_TLS).lower()
    where = {"endpoint": act.broker.endpoint, "topic": act.name("many"), "tls": tls}
    driver.run("send", count=MANY, **where)
    push = driver.start("push", group=act.name("pushed"), count=MANY, timeout=120, **where)
    simple = driver.start("simple", group=act.name("taken"), count=MANY, timeout=120, **where)

    assert sorted(bodies(simple.finish())) == sorted(numbered("m", MANY))
    assert sorted(set(bodies(push.finish()))) == sorted(numbered("m", MANY))
    assert all(line["properties"]["n"] in line["body"] for line in simple.events("received"))


@beside
def test_messages_of_a_group_come_in_order_and_sql_chooses(act: Act) -> None:
    driver, where = act.driver, {"endpoint": act.broker.endpoint}
    act.broker.make_group(act.name("in-order"), consumeMessageOrderly=True)
    fifo = {"topic": act.name("fifo"), **where}
    sql = {"topic": act.name("sql"), **where}
    sent = driver.start("send", kind="fifo", count=30, prefix="f", **fifo)
    driver.run("send", count=10, prefix="s", **sql)
    sent.finish()

    in_order = driver.start("push", group=act.name("in-order"), count=30, **fifo)
    chosen = driver.start("simple", group=act.name("g"), count=3, sql="n > 6", **sql)

    lines = enough(in_order).events("received")
    for group in range(3):
        of_group = [line["body"] for line in lines if line["group"] == f"group-{group}"]
        assert list(dict.fromkeys(of_group)) == [f"f-{number}" for number in range(group, 30, 3)]
    assert sorted(bodies(chosen.finish())) == ["s-7", "s-8", "s-9"]


@beside
def test_delays_recalls_and_transactions(act: Act) -> None:
    driver, where = act.driver, {"endpoint": act.broker.endpoint, "topic": act.name("mixed")}
    sends = [
        driver.start("send", kind="delay", count=2, prefix="late", **where),
        driver.start("send", kind="recall", count=2, prefix="gone", delay_ms=20_000, **where),
        driver.start("send", kind="commit", count=2, prefix="committed", **where),
        driver.start("send", kind="rollback", count=2, prefix="rolled", **where),
    ]
    for send in sends:
        send.finish()
    mixed = driver.run("simple", group=act.name("g"), count=4, **where)

    assert sorted(bodies(mixed)) == ["committed-0", "committed-1", "late-0", "late-1"]


@beside
def test_another_producer_is_asked_about_what_a_killed_one_left_open(act: Act) -> None:
    driver, where = act.driver, {"endpoint": act.broker.endpoint, "topic": act.name("orphans")}
    driver.run("send", kind="orphan", count=2, prefix="orphan", **where)
    asked = driver.start("check", timeout=120, **where)
    found = driver.run("simple", group=act.name("g"), count=2, timeout=120, **where)

    assert sorted(bodies(found)) == ["orphan-0", "orphan-1"]
    assert set(bodies(asked, "checked")) == {"orphan-0", "orphan-1"}


@beside
def test_what_fails_is_tried_again_and_becomes_a_dead_letter(act: Act) -> None:
    driver, where = act.driver, {"endpoint": act.broker.endpoint, "topic": act.name("poison")}
    group = act.name("failing")
    act.broker.make_group(group, retryMaxTimes=1, groupRetryPolicy=SOON)
    driver.run("send", count=2, prefix="bad", **where)
    failing = driver.start("push", group=group, count=100, fail="bad-1", timeout=120, **where)
    found = dead_letters(act.broker.namesrv, group)
    failing.kill()
    attempts = [(line["body"], line["attempt"]) for line in failing.events("received")]

    assert found == [b"bad-1"]
    assert [attempt for body, attempt in attempts if body == "bad-0"] == [1]
    assert [attempt for body, attempt in attempts if body == "bad-1"] == [1, 2]


def dead_letters(namesrv: str, group: str) -> list[bytes]:
    deadline = time.monotonic() + 120
    with Admin(namesrv=namesrv) as admin:
        while time.monotonic() < deadline:
            try:
                if found := admin.dead_letters(group):
                    return [message.body for message in found]
            except NoRoute:
                pass  # none yet
            time.sleep(0.5)
    return []


@beside
def test_a_consumer_goes_on_after_a_restart_of_the_broker(act: Act) -> None:
    with GrpcBroker(act.folder / "broker") as broker:
        driver, where = act.driver, {"endpoint": broker.endpoint, "topic": "restart"}
        driver.run("send", count=20, prefix="before", **where)
        push = driver.start("push", group="staying", count=40, timeout=120, **where)
        push.wait_for("received", 60)
        broker.restart()
        driver.run("send", count=20, prefix="after", **where)
        enough(push)

    assert set(bodies(push)) == {*numbered("before", 20), *numbered("after", 20)}


@beside
def test_tls_and_credentials(act: Act) -> None:
    driver, right = act.driver, {"key": act.name("shop"), "secret": act.name("secret")}
    where = {"endpoint": act.guarded.endpoint, "topic": act.name("orders"), "tls": "true"}
    refused = driver.start("send", prefix="x", key=act.name("shop"), secret="wrong", **where)
    without = driver.start("send", prefix="x", **where)
    driver.run("send", count=3, **right, **where)
    received = driver.run("simple", group=act.name("billing"), count=3, **right, **where)
    refused.end()
    without.end()

    assert sorted(bodies(received)) == numbered("m", 3)
    assert not refused.events("sent")
    assert not without.events("sent")
