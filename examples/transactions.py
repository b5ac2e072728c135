"""Send a message that becomes visible only if a local transaction succeeds.

If the outcome is lost, the broker asks any live producer of the group; ``on_check`` answers from what is stored.
"""

import anyio

from verniermq.client import Message, PushConsumer, ReceivedMessage, TransactionProducer, TransactionState

TOPIC = "examples-payments"
booked: set[str] = set()  # stands for a table in a database


async def main() -> None:
    producer = TransactionProducer("examples-shop")

    @producer.on_check
    async def check(message: ReceivedMessage) -> TransactionState:
        return TransactionState.COMMIT if message.transaction_id in booked else TransactionState.ROLLBACK

    async with producer:
        async with producer.transaction(Message(TOPIC, b"order 1")) as transaction:
            booked.add(transaction.id)  # the end of the block commits
        try:
            async with producer.transaction(Message(TOPIC, b"order 2")):
                raise ValueError("card declined")  # an exception rolls back
        except ValueError as error:
            print(f"order 2: {error}")

    consumer = PushConsumer("examples-shippers", start="first")
    consumer.subscribe(TOPIC)
    async with consumer:
        async for message in consumer:
            print(f"shipped: {message.body.decode()}")
            break


anyio.run(main)
