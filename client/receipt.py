"""The handle of a popped message: what it is acknowledged by (RocketMQ: ``ExtraInfoUtil``).

Eight words with a blank between::

    100 1700000000000 60000 3 0 broker-a 1 102

where the pop began in its queue, when it was, for how many ms the message is invisible, the revive queue, which topic
the message lies in (0: its own, 1 or 2: the group's retry topic for it), broker, queue, offset in the queue.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from verniermq.client.errors import BadAnswer
from verniermq.kernel import RETRY_PREFIX, Command

PLAIN, RETRY, RETRY_V2 = "0", "1", "2"
WORDS: Final = 8


@attrs.frozen
class Receipt:
    """Says which delivery of a message is meant; each delivery has its own."""

    start_offset: int
    pop_time: int
    invisible_ms: int
    revive_queue: int
    mark: str
    broker_name: str
    queue_id: int
    offset: int

    def __str__(self) -> str:
        return (
            f"{self.start_offset} {self.pop_time} {self.invisible_ms} {self.revive_queue} {self.mark} "
            f"{self.broker_name} {self.queue_id} {self.offset}"
        )

    @classmethod
    def parse(cls, text: str) -> Receipt:
        """
        Raises:
            ValueError: it is no handle.
        """
        words = text.split(" ")
        if len(words) != WORDS:
            raise ValueError(f"{text!r} has {len(words)} words, expected {WORDS}")
        start, popped, invisible, revive = map(int, words[:4])
        return cls(start, popped, invisible, revive, words[4], words[5], int(words[6]), int(words[7]))

    def wire_topic(self, topic: str, group: str) -> str:
        """The topic that the message lies in, as the broker knows it."""
        if self.mark == RETRY:
            return f"{RETRY_PREFIX}{group}_{topic}"
        if self.mark == RETRY_V2:
            return f"{RETRY_PREFIX}{group}+{topic}"
        return topic

    def renewed(self, answer: Command) -> Receipt:
        """The handle after a change of the invisible time: the message is a pop of its own now."""
        return attrs.evolve(
            self,
            start_offset=self.offset,
            pop_time=answer.integer("popTime"),
            invisible_ms=answer.integer("invisibleTime"),
            revive_queue=answer.integer("reviveQid"),
        )


def start_offsets(answer: Command, address: str) -> Mapping[int, int]:
    """Queue → where the pop began in it, for the messages that do not carry their handle.

    Raises:
        BadAnswer: the answer does not say it.
    """
    starts: dict[int, int] = {}
    try:
        for part in answer.ext.get("startOffsetInfo", "").split(";"):
            mark, queue_id, start = part.split(" ")
            if mark == PLAIN:
                starts[int(queue_id)] = int(start)
    except ValueError:
        raise BadAnswer(address, "POP_MESSAGE", f"startOffsetInfo is {answer.ext.get('startOffsetInfo')!r}") from None
    return starts
