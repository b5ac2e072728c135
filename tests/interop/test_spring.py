"""Spring Boot with ``rocketmq-spring``, and Spring Cloud Stream with its binder: what they offer, each once."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from .drivers import DriverRun
from .toolchains import spring_command
from .verniermq_process import VernierMQBroker
from .wire import create_topic

pytestmark = pytest.mark.timeout(240)

TOPICS = ("spring-plain", "spring-orderly", "spring-question")
STREAMS = ("stream-plain", "stream-orderly")
STEPS = 5


def texts(run: DriverRun, event: str) -> list[str]:
    return [line["what"] for line in run.events(event)]


def test_a_spring_program_sends_and_hears_in_all_its_ways(tmp_path: Path) -> None:
    with VernierMQBroker(tmp_path) as broker:
        for topic in TOPICS:
            create_topic(broker.broker, broker.namesrv, topic)
        options = [f"--rocketmq.name-server={broker.namesrv}", "--rocketmq.producer.group=spring"]
        run = DriverRun("spring", [*spring_command("spring"), *options], tmp_path)
        try:
            run.wait_for("answered", 90)
            deadline = time.monotonic() + 60
            while len(texts(run, "plain")) < 3 or len(texts(run, "orderly")) < STEPS:
                assert time.monotonic() < deadline, run.events("plain") + run.events("orderly")
                time.sleep(0.05)
        finally:
            run.terminate()

    assert texts(run, "sent") == ["SEND_OK"] * (STEPS + 2)
    assert sorted(texts(run, "plain")) == ["commit", "delayed", "plain"]
    assert texts(run, "orderly") == [f"step {number}" for number in range(STEPS)]
    assert texts(run, "answered") == ["answer to question"]


def test_a_spring_cloud_stream_sends_and_hears_through_its_binder(tmp_path: Path) -> None:
    """Tags, a delay, one order, and a message whose function fails the first time and is handled the second."""
    with VernierMQBroker(tmp_path) as broker:
        for topic in STREAMS:
            create_topic(broker.broker, broker.namesrv, topic)
        options = [f"--spring.cloud.stream.rocketmq.binder.name-server={broker.namesrv}"]
        run = DriverRun("stream", [*spring_command("springstream"), *options], tmp_path)
        try:
            run.wait_for("produced", 90)
            deadline = time.monotonic() + 60
            while len(texts(run, "plain")) < 3 or len(texts(run, "orderly")) < STEPS:
                assert time.monotonic() < deadline, run.events("plain") + run.events("orderly")
                time.sleep(0.05)
        finally:
            run.terminate()

    assert texts(run, "sent") == ["true"] * (STEPS + 4)
    assert sorted(texts(run, "plain")) == ["again", "delayed", "plain"]
    assert texts(run, "orderly") == [f"step {number}" for number in range(STEPS)]
