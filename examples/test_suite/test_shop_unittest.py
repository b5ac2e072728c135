"""The same suite with ``unittest``: a broker for the class, emptied before each test."""

import unittest
from contextlib import ExitStack

from verniermq.client.sync import Message, Producer, PullConsumer
from verniermq.testing import BrokerProcess, broker_process


class ShopTest(unittest.TestCase):
    broker: BrokerProcess

    @classmethod
    def setUpClass(cls) -> None:
        stack = ExitStack()
        cls.broker = stack.enter_context(broker_process())
        cls.addClassCleanup(stack.close)

    def setUp(self) -> None:
        self.broker.reset()

    def test_an_order_is_announced(self) -> None:
        with Producer("shop", namesrv=self.broker.namesrv) as producer:
            queue = producer.send(Message("orders", b"order 7")).queue

        with PullConsumer(namesrv=self.broker.namesrv) as consumer:
            assert [message.body for message in consumer.pull(queue, 0).messages] == [b"order 7"]

    def test_the_broker_is_empty_again(self) -> None:
        with Producer("shop", namesrv=self.broker.namesrv) as producer:
            assert producer.send(Message("orders", b"order 8")).queue_offset == 0
