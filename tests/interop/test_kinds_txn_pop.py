"""Transactions, popping and request–reply, end to end with unmodified clients."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from verniermq.kernel import Command, RequestCode, connect
from verniermq.kernel.testing import BrokerProcess, broker_process

from .drivers import Driver, DriverRun
from .wire import create_topic

pytestmark = pytest.mark.timeout(300)

TOPIC = "kinds"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker whose time can be moved: checks and invisible times need not be waited for."""
    with broker_process(tmp_path / "store") as process:
        create_topic(process.broker, process.namesrv, TOPIC)
        yield process


def until(condition: Callable[[], bool], what: str, timeout: float = 60) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {timeout} s"
        time.sleep(0.05)


def indexes(run: DriverRun, kind: str) -> list[int]:
    return [event["index"] for event in run.events(kind)]


@pytest.mark.parametrize("driver", ["java5", "java4", "go"], indirect=True)
def test_a_second_producer_ends_what_the_first_left_open(driver: Driver, broker: BrokerProcess) -> None:
    address = {"namesrv": broker.namesrv, "topic": TOPIC}
    consumer = driver.start("consume", **address, group="readers", expect=2, timeout=90, linger_ms=1500)
    first = driver.start(
        "transaction", **address, group="payers", outcomes="commit,unknown,rollback", answer="unknown", stay=90
    )
    first.wait_for("all-sent", timeout=60)
    until(lambda: indexes(consumer, "received") == [0], "the committed message's arrival")
    until(lambda: _asked(broker, first), "a question to the first producer")
    first.kill()

    # A client tells a broker that it is there once it has sent it something.
    second = driver.start(
        "transaction", **address, group="payers", outcomes="rollback", start=100, answer="commit", stay=90
    )
    second.wait_for("all-sent", timeout=60)
    until(lambda: _asked(broker, second), "a question to the second producer")

    consumer.finish(timeout=90)
    assert set(indexes(first, "checked")) == {1}
    assert set(indexes(second, "checked")) == {1}
    assert {event["topic"] for event in second.events("checked")} == {TOPIC}
    assert sorted(indexes(consumer, "received")) == [0, 1]
    assert all(event["bodyOk"] and event["textOk"] for event in consumer.events("received"))


def _asked(broker: BrokerProcess, producer: DriverRun) -> bool:
    """Each round of checks asks whoever is known as a producer by then."""
    time.sleep(2)
    broker.advance(31)
    time.sleep(0.5)
    return bool(producer.events("checked"))


@pytest.mark.parametrize("driver", ["java5"], indirect=True)
def test_a_push_consumer_pops_and_a_failed_message_comes_again(driver: Driver, broker: BrokerProcess) -> None:
    address = {"namesrv": broker.namesrv, "topic": TOPIC}
    driver.run("produce", **address, group="senders", count=40)
    _set_mode(broker, "poppers")
    consumer = driver.start("pop", **address, group="poppers", expect=40, timeout=90, fail=7)
    consumer.wait_for("failing", timeout=60)
    (failing,) = consumer.events("failing")
    assert len(failing["handle"].split(" ")) == 8
    until(lambda: len(set(indexes(consumer, "received"))) == 40, "the arrival of all messages")

    broker.advance(11)  # the client asks for its failed message after 10 s
    consumer.finish(timeout=60)

    received = consumer.events("received")
    assert sorted(indexes(consumer, "received")) == sorted([*range(40), 7])
    assert [event["reconsumeTimes"] for event in received if event["index"] == 7] == [0, 1]
    assert all(event["bodyOk"] and event["textOk"] for event in received)
    # Everything was acknowledged: time passes, and nothing comes again.
    broker.advance(600)
    again = driver.start("pop", **address, group="poppers", expect=1, start=40, timeout=60)
    driver.run("produce", **address, group="senders", count=1, start=40)
    assert indexes(again.finish(), "received") == [40]


def _set_mode(broker: BrokerProcess, group: str) -> None:
    async def ask() -> int:
        connection = await connect(broker.broker)
        beat = {"clientID": "setup", "producerDataSet": [], "consumerDataSet": [{"groupName": group}]}
        await connection.request(Command.request(RequestCode.HEART_BEAT, {}, json.dumps(beat).encode()))
        mode = {"consumerGroup": group, "mode": "POP", "popShareQueueNum": 0, "topic": TOPIC}
        answer = await connection.request(
            Command.request(RequestCode.SET_MESSAGE_REQUEST_MODE, {}, json.dumps(mode).encode())
        )
        connection.close()
        return answer.code

    assert asyncio.run(ask()) == 0


@pytest.mark.parametrize("driver", ["java5", "java4", "go"], indirect=True)
def test_a_request_gets_its_reply(driver: Driver, broker: BrokerProcess) -> None:
    run = driver.run("request-reply", namesrv=broker.namesrv, topic=TOPIC, group="answerers", count=3)

    assert [event["answer"] for event in run.events("answered")] == [f"answer to question {n}" for n in range(3)]
    assert {event["status"] for event in run.events("replied")} == {"SEND_OK"}
    assert run.events("failed") == []
