"""The handle of a popped message, and the names of retry topics (RocketMQ: ``ExtraInfoUtil``, ``KeyBuilder``).

A consumer acknowledges a message by the handle that it got with it, eight words with a blank between::

    100 1700000000000 60000 3 0 broker-a 1 102
     │        │          │  │ │     │    │  └ queue offset of the message
     │        │          │  │ │     │    └ queue
     │        │          │  │ │     └ broker
     │        │          │  │ └ 0: the topic itself, 1: its retry topic, 2: the same, named the newer way
     │        │          │  └ revive queue, 999 when popped in order
     │        │          └ invisible for so many ms
     │        └ popped at this time, in ms
     └ where in the queue that pop began
"""

from __future__ import annotations

from typing import Final, NamedTuple

from verniermq.kernel import RETRY_PREFIX, InvalidParameter

ORDER_QUEUE: Final = 999

PLAIN: Final = "0"
RETRY: Final = "1"
RETRY_V2: Final = "2"


def retry_topic(topic: str, group: str) -> str:
    """Where messages of a topic go that a group did not acknowledge in time."""
    return f"{RETRY_PREFIX}{group}_{topic}"


def real_topic(topic: str, group: str, mark: str) -> str:
    """The topic that a handle's mark stands for.

    Raises:
        InvalidParameter: the mark is unknown.
    """
    if mark == PLAIN:
        return topic
    if mark == RETRY:
        return retry_topic(topic, group)
    if mark == RETRY_V2:
        return f"{RETRY_PREFIX}{group}+{topic}"
    raise InvalidParameter(f"a handle with the mark {mark!r}; expected 0 (the topic), 1 or 2 (its retry topics)")


def mark_of(topic: str) -> str:
    if not topic.startswith(RETRY_PREFIX):
        return PLAIN
    return RETRY_V2 if "+" in topic else RETRY


class ReceiptHandle(NamedTuple):
    start_offset: int
    pop_time: int
    invisible_ms: int
    revive_queue: int
    mark: str
    broker_name: str
    queue_id: int
    offset: int = -1

    @property
    def is_ordered(self) -> bool:
        return self.revive_queue == ORDER_QUEUE

    def __str__(self) -> str:
        return (
            f"{self.start_offset} {self.pop_time} {self.invisible_ms} {self.revive_queue} {self.mark} "
            f"{self.broker_name} {self.queue_id} {self.offset}"
        )

    @classmethod
    def parse(cls, text: str) -> ReceiptHandle:
        """
        Raises:
            InvalidParameter: it is no handle.
        """
        words = text.split(" ")
        try:
            start, popped, invisible, queue = map(int, words[:4])
            offset = int(words[7]) if words[7:] else -1
            return cls(start, popped, invisible, queue, words[4], words[5], int(words[6]), offset)
        except (ValueError, IndexError):
            raise InvalidParameter(
                f"{text!r} is no handle of a popped message; expected eight words like "
                "'0 1700000000000 60000 3 0 broker-a 1 0'"
            ) from None
