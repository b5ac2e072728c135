"""The official clients of RocketMQ 5 against a broker with the plugin ``grpc``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.interop.grpc import scenarios
from tests.interop.grpc.broker import GrpcBroker
from tests.interop.grpc.clients import GRPC_CLIENTS
from tests.interop.grpc.scenarios import bodies, enough, numbered
from tests.interop.grpc.stage import Act, Stage, beside, running_stage

pytestmark = pytest.mark.timeout(600)

ACCOUNTS = "".join(
    f"""
[plugins.acl.accounts.{client}-shop]
secret = "{client}-secret"
topics = {{ {client}-orders = "PUB|SUB" }}
groups = {{ {client}-billing = "SUB" }}
"""
    for client in GRPC_CLIENTS
)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GrpcBroker]:
    """A broker that lets nobody in without credentials."""
    folder = tmp_path_factory.mktemp("guarded")
    with GrpcBroker(folder, '"acl", ', ACCOUNTS) as broker, pytest.MonkeyPatch.context() as patch:
        certificate = str(broker.store / "config" / "grpcCertificate.pem")
        patch.setenv("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", certificate)
        patch.setenv("NODE_EXTRA_CA_CERTS", certificate)
        yield broker


@pytest.fixture(scope="module")
def stage(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, guarded: GrpcBroker
) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("grpc")
    with GrpcBroker(folder / "open") as broker, running_stage(request, folder, broker, guarded) as stage:
        yield stage


test_a_thousand_messages_reach_a_simple_and_a_push_consumer = beside(scenarios.many)
test_messages_of_a_group_come_in_order_and_sql_chooses = beside(scenarios.order_and_sql)
test_delays_recalls_and_transactions = beside(scenarios.delays_and_transactions)
test_another_producer_is_asked_about_what_a_killed_one_left_open = beside(scenarios.orphans)
test_what_fails_is_tried_again_and_becomes_a_dead_letter = beside(scenarios.poison)


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
