"""TLS between Apache's Java client and our broker, and between our client and Apache's broker."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from verniermq.client import Producer, PushConsumer

from . import sample
from .apache import ApacheBroker
from .jvm import java_with
from .verniermq_process import VernierMQBroker

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

FILES = Path(__file__).parents[1] / "client" / "tls"
CERTIFICATE, KEY = FILES / "certificate.pem", FILES / "key.pem"
COUNT = 50
# In its test mode, which is the default, the Java client believes any server.
CREDULOUS = ("tls.enable=true",)
STRICT = ("tls.enable=true", "tls.test.mode.enable=false", "tls.client.authServer=true")


@pytest.fixture(scope="module")
def enforcing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VernierMQBroker]:
    """Our broker, that serves nobody outside of TLS."""
    folder = tmp_path_factory.mktemp("enforcing")
    config = folder / "broker.toml"
    config.write_text(f'[tls]\nmode = "enforcing"\ncertificate = "{CERTIFICATE}"\nkey = "{KEY}"\n')
    with VernierMQBroker(folder, config=config) as running:
        yield running


@pytest.mark.parametrize(
    "properties", [CREDULOUS, (*STRICT, f"tls.client.trustCertPath={CERTIFICATE}")], ids=["test mode", "verifying"]
)
def test_the_java_client_works_inside_tls(
    properties: tuple[str, ...], enforcing: VernierMQBroker, tmp_path: Path
) -> None:
    driver = java_with(tmp_path, *properties)
    where = {"namesrv": enforcing.namesrv, "topic": f"private-{len(properties)}"}

    sent = driver.run("produce", **where, group="senders", count=COUNT)
    received = driver.run("consume", **where, group=f"readers-{len(properties)}", expect=COUNT, timeout=60)

    assert {event["status"] for event in sent.events("sent")} == {"SEND_OK"}
    assert sorted(event["index"] for event in received.events("received")) == list(range(COUNT))
    assert all(event["bodyOk"] for event in received.events("received"))


def test_the_java_client_is_not_served_outside_of_tls(enforcing: VernierMQBroker, tmp_path: Path) -> None:
    run = java_with(tmp_path).start("produce", namesrv=enforcing.namesrv, topic="t", group="senders", count=1)

    assert run.end(120) != 0
    assert run.events("sent") == []


def test_a_java_client_that_trusts_another_authority_does_not_send(enforcing: VernierMQBroker, tmp_path: Path) -> None:
    # The authorities of the Java runtime itself, none of which signed our certificate.
    run = java_with(tmp_path, *STRICT).start("produce", namesrv=enforcing.namesrv, topic="t", group="senders", count=1)

    assert run.end(120) != 0
    assert run.events("sent") == []


async def test_our_client_works_inside_tls_with_apaches_broker(tmp_path: Path) -> None:
    # Apache's servers make up a certificate when they have none, so there is nothing to check it with.
    believing = ssl.create_default_context()
    believing.check_hostname = False
    believing.verify_mode = ssl.CERT_NONE
    got: set[bytes] = set()
    with ApacheBroker(tmp_path) as apache:
        async with Producer("senders", namesrv=apache.namesrv, tls=believing, send_timeout=10) as producer:
            for index in range(COUNT):
                await producer.send(sample.message("private", index))
        consumer = PushConsumer("readers", namesrv=apache.namesrv, tls=believing, start="first")
        consumer.subscribe("private")
        async with consumer:
            async for message in consumer:
                got.add(message.body)
                if len(got) == COUNT:
                    break

    assert got == {sample.body(index) for index in range(COUNT)}
