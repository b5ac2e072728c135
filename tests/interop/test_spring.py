"""Spring Boot with ``rocketmq-spring``: what its template and its listeners offer, each once."""

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
STEPS = 5


def texts(run: DriverRun, event: str) -> list[str]:
    return [line["what"] for line in run.events(event)]


def test_a_spring_program_sends_and_hears_in_all_its_ways(tmp_path: Path) -> None:
    with VernierMQBroker(tmp_path) as broker:
        for topic in TOPICS:
            create_topic(broker.broker, broker.namesrv, topic)
        options = [f"--rocketmq.name-server={broker.namesrv}", "--rocketmq.producer.group=spring"]
        run = DriverRun("spring", [*spring_command(), *options], tmp_path)
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
