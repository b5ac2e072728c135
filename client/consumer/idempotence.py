"""Dropping repeats: at-least-once delivery made to look like once, for as long as the guard remembers."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from verniermq.client.message import ReceivedMessage


class Guard(Protocol):
    """Knows which messages were consumed. Write one on Redis or a database to share it between processes."""

    async def begin(self, message: ReceivedMessage) -> bool:
        """Whether this message is to be consumed; ``False`` drops it as a repeat."""
        ...

    async def finish(self, message: ReceivedMessage, *, consumed: bool) -> None:
        """Hear what became of a message that ``begin`` let pass."""
        ...


def by_message_id(message: ReceivedMessage) -> str:
    """The producer's id: the same through its retries and through ours."""
    return message.message_id


class IdempotenceGuard:
    """Remembers keys in memory, for a time and up to a number.

    A message that failed is forgotten, so its retry is consumed. A repeat that comes while the first copy is still
    being worked on is dropped too: the first copy is the one that is retried.

    Args:
        window: seconds that a consumed message is remembered
        capacity: how many are remembered at most, the oldest go first
        key: what makes two messages the same one: the producer's id, or ``lambda m: m.keys[0]``
    """

    def __init__(
        self,
        window: float = 600.0,
        capacity: int = 100_000,
        key: Callable[[ReceivedMessage], str] = by_message_id,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._window = window
        self._capacity = capacity
        self._key = key
        self._clock = clock
        self._seen: OrderedDict[str, float] = OrderedDict()
        self.dropped = 0
        """How many repeats there were."""

    async def begin(self, message: ReceivedMessage) -> bool:
        now = self._clock()
        while self._seen and next(iter(self._seen.values())) <= now:
            self._seen.popitem(last=False)
        key = self._key(message)
        if key in self._seen:
            self.dropped += 1
            return False
        self._seen[key] = now + self._window
        while len(self._seen) > self._capacity:
            self._seen.popitem(last=False)
        return True

    async def finish(self, message: ReceivedMessage, *, consumed: bool) -> None:
        if not consumed:
            self._seen.pop(self._key(message), None)
