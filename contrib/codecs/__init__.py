"""Objects as bodies: a codec makes messages of them, and has a handler get them back.

::

    from verniermq.contrib.codecs.pydantic import Json

    orders = Json(Order)
    await producer.send(orders.message("orders", order, tags="paid"))

    @consumer.on_message
    @orders.handler
    async def bill(order: Order, message: ReceivedMessage): ...

A body that does not fit makes its message a dead letter at once, with the reason: it would fail as often as it came.
"""

from verniermq.contrib.codecs.codec import CONTENT_TYPE, BadBody, Codec

__all__ = ["CONTENT_TYPE", "BadBody", "Codec"]
