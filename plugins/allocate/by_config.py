"""A list written by hand: this client reads exactly these queues, whoever else is in the group.

Nothing is computed and nobody is asked, not even whether the queues exist; that every queue has one owner
is the author's own business (RocketMQ: ``AllocateMessageQueueByConfig``, name ``CONFIG``).
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from verniermq.kernel import ConfigError, MessageQueue


def parse_queue(text: str) -> MessageQueue:
    """Read ``topic@broker:3``; a broker's name may contain ``@``, a topic's may not.

    Raises:
        ConfigError: the text has another form.
    """
    topic, at, rest = text.partition("@")
    broker, colon, number = rest.rpartition(":")
    if not (topic and at and broker and colon and number.isascii() and number.isdigit()):
        raise ConfigError(f"{text!r} names no queue; write topic@broker:number, as orders@broker-a:0")
    return MessageQueue(topic, broker, int(number))


@attrs.frozen
class ByConfig:
    """The strategy with its list bound."""

    queues: tuple[MessageQueue, ...]

    def __call__(self, client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str]) -> list[MessageQueue]:
        return list(self.queues)
