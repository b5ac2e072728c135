"""Send messages that are delivered later: by RocketMQ's delay level, and after any time."""

import time

import anyio

from verniermq.client import Message, Producer, PushConsumer

TOPIC = "examples-reminders"
DELAYS = {"now": 0.0, "by level 1": 1.0, "after 2.5 s": 2.5}


async def main() -> None:
    async with Producer("examples-clocks") as producer:
        sent = time.monotonic()
        await producer.send(Message(TOPIC, b"now"))
        await producer.send(Message(TOPIC, b"by level 1", delay_level=1))
        await producer.send(Message(TOPIC, b"after 2.5 s", properties={"TIMER_DELAY_MS": "2500"}))

    consumer = PushConsumer("examples-sleepers", start="first")
    consumer.subscribe(TOPIC)
    waited: dict[str, float] = {}
    async with consumer:
        async for message in consumer:
            waited[message.body.decode()] = time.monotonic() - sent
            if len(waited) == len(DELAYS):
                break
    for name, delay in DELAYS.items():
        print(f"{name}: {'in time' if waited[name] >= delay - 0.1 else 'too early'}")


anyio.run(main)
