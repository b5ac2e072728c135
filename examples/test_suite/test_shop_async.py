"""Async tests: the broker in the test's own event loop, with a clock that stands still until the test moves it."""

import unittest

from verniermq.client import Message, Producer, PushConsumer
from verniermq.testing import ManualClock, running_broker


class ShopTest(unittest.IsolatedAsyncioTestCase):
    async def test_the_reminder_comes_a_minute_later(self) -> None:
        clock = ManualClock()
        async with running_broker(clock=clock) as broker:
            namesrv = broker.name_servers[0]
            async with Producer("shop", namesrv=namesrv) as producer:
                await producer.send(Message("reminders", b"pay order 8", properties={"TIMER_DELAY_SEC": "60"}))
            await clock.advance(60 + 2)
            consumer = PushConsumer("tests", namesrv=namesrv, start="first")
            consumer.subscribe("reminders")
            async with consumer:
                async for message in consumer:
                    assert message.body == b"pay order 8"
                    break
