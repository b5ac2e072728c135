"""Transactions, popping and request–reply, end to end with unmodified clients."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from verniermq.kernel import Command, RequestCode, connect, decode_records
from verniermq.testing import BrokerProcess, broker_process

from .apache import ApacheBroker
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
    """Each round of checks asks whoever is known as a producer by then, so there may have to be several."""
    broker.advance(31)
    deadline = time.monotonic() + 3
    while not producer.events("checked") and time.monotonic() < deadline:
        time.sleep(0.05)
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


# --- stores change hands -------------------------------------------------------------------

# What our brokers for tests write with; Apache's has to be told.
SIZES = {"mappedFileSizeCommitLog": str(64 << 20), "mappedFileSizeConsumeQueue": str(10_000 * 20)}


@pytest.mark.parametrize("driver", ["java5"], indirect=True)
def test_an_apache_broker_goes_on_with_open_transactions(driver: Driver, tmp_path: Path) -> None:
    with broker_process(tmp_path / "store") as ours:
        create_topic(ours.broker, ours.namesrv, TOPIC)
        first = driver.start(
            "transaction", namesrv=ours.namesrv, topic=TOPIC, group="payers", outcomes="commit,unknown,rollback",
            answer="unknown", stay=90,
        )  # fmt: skip
        first.wait_for("all-sent", timeout=60)
        until(lambda: _asked(ours, first), "a check, which puts a copy back")
        first.kill()

    # Its time-out stays above the 3 s after which it notes a rollback, or it asks about what is done with.
    properties = {**SIZES, "transactionCheckInterval": "4000"}
    with ApacheBroker(tmp_path, store=tmp_path / "store", properties=properties) as theirs:
        address = {"namesrv": theirs.namesrv, "topic": TOPIC}
        consumer = driver.start("consume", **address, group="readers", expect=2, timeout=90, linger_ms=3000)
        second = driver.start(
            "transaction", **address, group="payers", outcomes="rollback", start=100, answer="commit", stay=90
        )
        consumer.finish(timeout=120)

    assert sorted(set(indexes(consumer, "received"))) == [0, 1]
    assert set(indexes(second, "checked")) == {1}


def test_an_apache_broker_goes_on_with_popped_messages(tmp_path: Path) -> None:
    with broker_process(tmp_path / "store") as ours:
        create_topic(ours.broker, ours.namesrv, "popped")
        asyncio.run(_send(ours.broker, "popped", 3))
        popped = asyncio.run(_pop(ours.broker, acknowledge=1))
        assert len(popped) == 3

    # Checkpoints name the broker that has the messages, so it must keep its name.
    properties = {**SIZES, "brokerName": "broker-a"}
    with ApacheBroker(tmp_path, store=tmp_path / "store", properties=properties) as theirs:
        again = asyncio.run(_pop_until(theirs.broker, 2))

    assert sorted(again) == sorted(popped[1:])


@pytest.mark.parametrize("driver", ["java5"], indirect=True)
def test_this_broker_goes_on_with_the_transactions_of_an_apache_broker(driver: Driver, tmp_path: Path) -> None:
    with ApacheBroker(tmp_path, store=tmp_path / "store", properties=SIZES) as theirs:
        create_topic(theirs.broker, theirs.namesrv, TOPIC)
        first = driver.start(
            "transaction", namesrv=theirs.namesrv, topic=TOPIC, group="payers", outcomes="commit,unknown,rollback",
            answer="unknown", stay=90,
        )  # fmt: skip
        first.wait_for("all-sent", timeout=60)
        first.kill()
        theirs.stop()

    with broker_process(tmp_path / "store") as ours:
        address = {"namesrv": ours.namesrv, "topic": TOPIC}
        consumer = driver.start("consume", **address, group="readers", expect=2, timeout=90, linger_ms=1500)
        second = driver.start(
            "transaction", **address, group="payers", outcomes="rollback", start=100, answer="commit", stay=90
        )
        second.wait_for("all-sent", timeout=60)
        until(lambda: _asked(ours, second), "a question to the second producer")
        consumer.finish(timeout=90)

    assert sorted(indexes(consumer, "received")) == [0, 1]
    assert set(indexes(second, "checked")) == {1}


async def _send(address: str, topic: str, count: int) -> None:
    connection = await connect(address)
    for number in range(count):
        fields = {
            "a": "senders", "b": topic, "c": "TBW102", "d": "4", "e": str(number), "f": "0", "h": "0",
            "g": str(time.time_ns() // 1_000_000), "i": f"KEYS\x01key-{number}\x02",
        }  # fmt: skip
        assert (await connection.request(Command.request(RequestCode.SEND_MESSAGE_V2, fields, b"popped"))).code == 0
    connection.close()


async def _pop(address: str, acknowledge: int = 0, wait_ms: int = 0) -> list[str]:
    """Pop everything, for ten seconds, and acknowledge the first so many; the answer is the messages' keys."""
    connection = await connect(address)
    try:
        fields = {
            "consumerGroup": "poppers", "topic": "popped", "queueId": "-1", "maxMsgNums": "32",
            "invisibleTime": "10000", "pollTime": str(wait_ms), "bornTime": "0", "initMode": "0",
        }  # fmt: skip
        answer = await connection.request(Command.request(RequestCode.POP_MESSAGE, fields), timeout=30)
        if answer.code != 0:
            return []
        starts = {}
        for text in answer.ext["startOffsetInfo"].split(";"):
            mark, queue_id, start = text.split(" ")
            starts[mark, int(queue_id)] = start
        messages = decode_records(answer.body)
        for message in messages[:acknowledge]:
            handle = [
                starts["0", message.queue_id], answer.ext["popTime"], answer.ext["invisibleTime"],
                answer.ext["reviveQid"], "0", "any", str(message.queue_id), str(message.queue_offset),
            ]  # fmt: skip
            ack = {
                "consumerGroup": "poppers", "topic": "popped", "queueId": str(message.queue_id),
                "offset": str(message.queue_offset), "extraInfo": " ".join(handle),
            }  # fmt: skip
            assert (await connection.request(Command.request(RequestCode.ACK_MESSAGE, ack))).code == 0
        return [message.properties["KEYS"] for message in messages]
    finally:
        connection.close()


async def _pop_until(address: str, count: int) -> list[str]:
    found: list[str] = []
    deadline = time.monotonic() + 90
    while len(found) < count and time.monotonic() < deadline:
        found += await _pop(address, wait_ms=5000)
    return found
