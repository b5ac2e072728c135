"""A test suite with a real broker: ``pip install verniermq`` brings the fixture, ``pytest`` finds it.

The broker runs beside the tests and is emptied before each; its clock moves when a test says so.
"""

from verniermq.client.sync import Message, Producer, PushConsumer
from verniermq.testing import BrokerProcess


def place_order(namesrv: str, number: int) -> None:
    """What is tested: a program announces an order, and a reminder to pay an hour later."""
    with Producer("shop", namesrv=namesrv) as producer:
        producer.send(Message("orders", b"order %d" % number, tags="placed"))
        producer.send(Message("reminders", b"pay order %d" % number, properties={"TIMER_DELAY_SEC": "3600"}))


def first_message(namesrv: str, topic: str) -> bytes:
    consumer = PushConsumer("tests", namesrv=namesrv, start="first")
    consumer.subscribe(topic)
    with consumer:
        return next(iter(consumer)).body


def test_an_order_is_announced(verniermq_broker: BrokerProcess) -> None:
    place_order(verniermq_broker.namesrv, 7)

    assert first_message(verniermq_broker.namesrv, "orders") == b"order 7"


def test_the_reminder_comes_an_hour_later(verniermq_broker: BrokerProcess) -> None:
    place_order(verniermq_broker.namesrv, 8)
    verniermq_broker.advance(3600 + 2)

    assert first_message(verniermq_broker.namesrv, "reminders") == b"pay order 8"
