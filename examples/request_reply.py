"""Ask a consumer something through the broker and wait for its reply."""

import anyio

from verniermq.client import Message, Producer, PushConsumer, ReceivedMessage

TOPIC = "examples-questions"


async def main() -> None:
    consumer = PushConsumer("examples-calculators", start="first")
    consumer.subscribe(TOPIC)
    async with Producer("examples-askers") as asker, Producer("examples-answerers") as answerer:

        @consumer.on_message
        async def square(message: ReceivedMessage) -> None:
            await answerer.reply(message, str(int(message.body) ** 2).encode())

        async with consumer:
            reply = await asker.request(Message(TOPIC, b"12"), timeout=20)
            print(f"12 squared is {reply.body.decode()}")


anyio.run(main)
