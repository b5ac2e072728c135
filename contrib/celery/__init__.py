"""Celery, and whatever else uses kombu, on VernierMQ or Apache RocketMQ 5: a kombu transport.

::

    import verniermq.contrib.celery                          # makes the scheme known

    app = Celery("tasks", broker="verniermq://127.0.0.1:9876")

An exchange is a topic, a queue is a consumer group, a binding is a filter by tag: so messages find their queues,
whichever process declared them.
"""

from kombu.transport import TRANSPORT_ALIASES

from verniermq.contrib.celery.transport import Channel, Transport

__all__ = ["Channel", "Transport"]

TRANSPORT_ALIASES["verniermq"] = "verniermq.contrib.celery:Transport"
