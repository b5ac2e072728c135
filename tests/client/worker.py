"""What a worker process of a pool does; in a module of its own, so that a spawned process can import it."""

from __future__ import annotations

from verniermq.client.sync import Message, Producer


def send_one(arguments: tuple[str, str, bytes]) -> str:
    namesrv, topic, body = arguments
    with Producer("workers", namesrv=namesrv) as producer:
        return producer.send(Message(topic, body)).status.name
