"""Receive the messages of one order in the order in which they were sent, also when one of them fails at first.

The sharding key picks the queue; ``orderly`` locks a queue for one consumer and repeats a failed message in its place.
"""

import anyio

from verniermq.client import Message, Producer, PushConsumer, ReceivedMessage

TOPIC = "examples-orders"
STEPS = ("created", "paid", "shipped")


async def main() -> None:
    consumer = PushConsumer("examples-clerks", start="first", orderly=True, suspend=0.1)
    consumer.subscribe(TOPIC)
    done = anyio.Event()

    @consumer.on_message
    async def handle(message: ReceivedMessage) -> None:
        step = message.body.decode()
        if step == "paid" and message.reconsume_times == 0:
            raise ConnectionError("the bank does not answer")
        print(f"{step} after {message.reconsume_times} failures")
        if step == STEPS[-1]:
            done.set()

    async with Producer("examples-tills") as producer:
        for step in STEPS:
            await producer.send(Message(TOPIC, step.encode()), sharding_key="order-42")
    async with consumer:
        await done.wait()


anyio.run(main)
