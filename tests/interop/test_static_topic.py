"""Static topics: made and moved between two brokers by Apache's ``mqadmin``, used by its Java client meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .apache import mqadmin
from .drivers import Driver
from .toolchains import driver_command
from .verniermq_process import VernierMQBroker

pytestmark = pytest.mark.timeout(240)

TOPIC = "static"
QUEUES, WAVE = 4, 40


@pytest.fixture
def java(tmp_path: Path) -> Iterator[Driver]:
    driver = Driver("java5", driver_command("java5"), tmp_path)
    yield driver
    driver.close()


def test_a_static_topic_moves_to_another_broker_and_is_read_from_its_first_message_on(
    tmp_path: Path, java: Driver
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    config = tmp_path / "b" / "broker.toml"
    with VernierMQBroker(tmp_path / "a") as a:
        config.write_text(f'[broker]\nname = "broker-b"\nnamesrv = ["{a.namesrv}"]\n')
        with VernierMQBroker(tmp_path / "b", config=config):
            to = {"namesrv": a.namesrv, "topic": TOPIC}

            made = mqadmin(
                a.namesrv, "updateStaticTopic", "-t", TOPIC, "-qn", str(QUEUES), "-b", "broker-a", home=tmp_path
            )
            first = java.run("produce", **to, group="senders", count=WAVE)
            moved = mqadmin(a.namesrv, "remappingStaticTopic", "-t", TOPIC, "-b", "broker-b", home=tmp_path)
            second = java.run("produce", **to, group="senders", start=WAVE, count=WAVE)
            read = java.run("consume", **to, group="readers", expect=2 * WAVE, timeout=60)
            status = mqadmin(a.namesrv, "topicStatus", "-t", TOPIC, home=tmp_path)

            assert ".after" in made.stdout, made.stdout + made.stderr
            assert ".after" in moved.stdout, moved.stdout + moved.stderr
            assert "failed" not in made.stderr + moved.stderr
            sent = first.events("sent") + second.events("sent")
            assert {event["status"] for event in sent} == {"SEND_OK"}
            assert {event["queueId"] for event in sent} == set(range(QUEUES))
            assert max(event["queueOffset"] for event in first.events("sent")) < 1000
            assert min(event["queueOffset"] for event in second.events("sent")) >= 1000
            assert read.events("summary")[0]["missingCount"] == 0
            received = {event["index"]: (event["queueId"], event["queueOffset"]) for event in read.events("received")}
            assert received == {event["index"]: (event["queueId"], event["queueOffset"]) for event in sent}
            assert status.stdout.count("__syslo__global__") == QUEUES
