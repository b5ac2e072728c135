"""AMQP's names as RocketMQ's: topics, groups and tags know letters, digits, ``_`` and ``-``.

A name that is fine stays as it is; of others, what is not allowed becomes ``-``, and a hash of the whole keeps them
apart: ``celery.pidbox`` → ``celery-pidbox-1168972d``.
"""

from __future__ import annotations

import re
from hashlib import sha1

PREFIX = "kombu-"
DEFAULT = "default"
"""What the topic of the default exchange is called after; an exchange or queue of that name shares it."""
LONGEST = 100
"""Characters of a name; a topic may have 127, of which the broker takes some for prefixes."""
_ILLEGAL = re.compile(r"[^a-zA-Z0-9_-]")


def plain(name: str) -> str:
    """A name of AMQP's as a part of ours."""
    cleaned = _ILLEGAL.sub("-", name)
    if cleaned == name and len(name) <= LONGEST:
        return name
    return f"{cleaned[: LONGEST - 9]}-{sha1(name.encode()).hexdigest()[:8]}"


def exchange_topic(exchange: str, priority: int = 0) -> str:
    """The topic of an exchange; messages with a priority have a topic of their own."""
    topic = PREFIX + plain(exchange)
    return f"{topic}-p{priority}" if priority else topic


def queue_group(queue: str) -> str:
    return PREFIX + plain(queue)


def key_tag(routing_key: str) -> str:
    """The tag of a routing key; an empty one has a tag too, so that it can be asked for."""
    return plain(routing_key) if routing_key else "-"
