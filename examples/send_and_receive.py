"""Send three messages and receive them: ``make run`` in one terminal, this program in another."""

import anyio

from verniermq.client import Message, Producer, PushConsumer

TOPIC = "examples-greetings"


async def main() -> None:
    async with Producer("examples-greeters") as producer:
        for name in ("Ada", "Grace", "Edsger"):
            result = await producer.send(Message(TOPIC, f"hello, {name}".encode(), tags="greeting", keys=[name]))
            print(f"{name}: {result.status.name}")

    consumer = PushConsumer("examples-guests", start="first")
    consumer.subscribe(TOPIC, "greeting")
    received: set[str] = set()
    async with consumer:
        async for message in consumer:
            received.add(message.body.decode())
            if len(received) == 3:
                break
    print(sorted(received))


anyio.run(main)
