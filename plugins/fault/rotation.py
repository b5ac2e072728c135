"""Round robin over a topic's queues, the walk that every fault strategy makes.

One index per topic starts at a random number, so that a thousand producers that start together do not all
begin with the same broker. It moves before each look, is cut to 31 bits, and is taken modulo the number of
queues (RocketMQ: ``ThreadLocalIndex`` and ``TopicPublishInfo.selectOneMessageQueue``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from verniermq.kernel import MessageQueue

POSITIVE: Final = 0x7FFFFFFF


class Rotation:
    """Where each topic's round robin stands."""

    def __init__(self, random: Random | None = None) -> None:
        self._random = random or Random()
        self._index_of: dict[str, int] = {}

    def next(self, queues: Sequence[MessageQueue]) -> MessageQueue:
        """The next queue, whatever it is."""
        topic = queues[0].topic
        index = self._index_of.get(topic)
        if index is None:
            index = self._random.getrandbits(31)
        index = (index + 1) & POSITIVE
        self._index_of[topic] = index
        return queues[index % len(queues)]

    def first(
        self, queues: Sequence[MessageQueue], fits: Callable[[str], bool], last_broker: str | None
    ) -> MessageQueue | None:
        """The next queue whose broker fits and is not the one that just failed; one round at most."""
        for _ in range(len(queues)):
            queue = self.next(queues)
            if queue.broker_name != last_broker and fits(queue.broker_name):
                return queue
        return None

    def anywhere(self, queues: Sequence[MessageQueue], last_broker: str | None) -> MessageQueue:
        """The next queue of another broker than the one that just failed; of that one if there is no other."""
        return self.first(queues, anything, last_broker) or self.next(queues)

    def scatter(self, topic: str) -> None:
        """Go on from a random place, so that retries do not all fall on the neighbour of a broken broker."""
        self._index_of[topic] = self._random.getrandbits(31)


def anything(broker_name: str) -> bool:
    """The test that every broker passes."""
    return True


def is_failure(latency_ms: float, failed: bool, reachable: bool, slow_ms: int) -> bool:
    """Whether a send counts against its broker; ``slow_ms`` of 0 lets it be as slow as it likes."""
    return failed or not reachable or 0 < slow_ms < latency_ms
