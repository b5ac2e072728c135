"""The messages of one queue that were pulled and are not done yet (RocketMQ: ``ProcessQueue``).

Messages are done in any order; the offset to commit is that of the first one that is not, so nothing is skipped after
a crash. When too much is in hand (messages, bytes, or the distance from the first to the last), pulling waits.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence

import attrs

from verniermq.client.message import ReceivedMessage
from verniermq.client.options import check_numbers
from verniermq.kernel import MessageQueue


@attrs.frozen
class Limits:
    """What may be in hand of one queue before pulling waits."""

    messages: int = 1000
    bytes: int = 100 * 1024 * 1024
    span: int = 2000

    def __attrs_post_init__(self) -> None:
        check_numbers(1, messages=self.messages, bytes=self.bytes, span=self.span)


@attrs.define(eq=False)
class ProcessQueue:
    queue: MessageQueue
    next_offset: int
    """Where the next pull begins."""
    limits: Limits = attrs.Factory(Limits)
    watch_span: bool = True
    """In order, the span is the number of messages anyway."""
    closing: bool = False
    """Given up: nothing more is pulled or handed out, but what handlers have in hand still counts."""
    dropped: bool = False
    """Not ours any more: what handlers say about it is ignored."""
    broker_id: int = 0
    locked_at: float = 0.0
    last_pull: float = attrs.Factory(time.monotonic)
    last_consume: float = 0.0
    pending: dict[int, ReceivedMessage] = attrs.field(factory=dict, init=False)
    started: dict[int, float] = attrs.field(factory=dict, init=False)
    """Offset → since when a handler has it, by the monotonic clock."""
    size: int = attrs.field(default=0, init=False)
    highest: int = attrs.field(default=-1, init=False)
    _busy: int = attrs.field(default=0, init=False)
    _idle: asyncio.Event = attrs.field(factory=asyncio.Event, init=False)
    _order: deque[int] = attrs.field(factory=deque, init=False)
    _room: asyncio.Event = attrs.field(factory=asyncio.Event, init=False)
    _waits_for_room: bool = attrs.field(default=False, init=False)
    _arrived: asyncio.Event = attrs.field(factory=asyncio.Event, init=False)
    _waiting: deque[ReceivedMessage] = attrs.field(factory=deque, init=False)
    """In order only: not handed out yet."""

    # --- concurrent ------------------------------------------------------------------------

    def add(self, messages: Sequence[ReceivedMessage]) -> None:
        pending, order = self.pending, self._order
        for message in messages:
            offset = message.queue_offset
            pending[offset] = message
            order.append(offset)
            self.size += message.size
        if messages:
            self.highest = max(self.highest, messages[-1].queue_offset)

    def remove(self, messages: Sequence[ReceivedMessage]) -> int | None:
        """Take out what is done; the offset that may be committed now, ``None`` if nothing was ever here."""
        pending, order = self.pending, self._order
        for message in messages:
            if pending.pop(message.queue_offset, None) is not None:
                self.size -= message.size
        while order and order[0] not in pending:
            order.popleft()
        if self._waits_for_room and self.has_room:
            self._room.set()
        return order[0] if order else self.commit_offset

    @property
    def commit_offset(self) -> int | None:
        if self._order:
            return self._order[0]
        return self.highest + 1 if self.highest >= 0 else None

    # --- flow control ----------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        limits = self.limits
        if len(self.pending) > limits.messages or self.size > limits.bytes:
            return False
        return not (self.watch_span and self._order and self._order[-1] - self._order[0] > limits.span)

    async def wait_for_room(self) -> None:
        while not self.has_room and not self.closing:
            self._room.clear()
            self._waits_for_room = True
            await self._room.wait()
            self._waits_for_room = False

    # --- in order --------------------------------------------------------------------------

    def offer(self, messages: Sequence[ReceivedMessage]) -> None:
        """Add messages that are to be taken one batch after the other."""
        self.add(messages)
        self._waiting.extend(messages)
        if messages:
            self._arrived.set()

    async def take(self, count: int) -> list[ReceivedMessage]:
        """The next messages, waiting for the first one; none when the queue was dropped."""
        while not self._waiting and not self.closing:
            self._arrived.clear()
            await self._arrived.wait()
        if self.closing:
            return []
        return [self._waiting.popleft() for _ in range(min(count, len(self._waiting)))]

    def put_back(self, messages: Sequence[ReceivedMessage]) -> None:
        self._waiting.extendleft(reversed(messages))

    # --- the end ---------------------------------------------------------------------------

    def enter(self) -> None:
        """A handler gets messages of this queue."""
        self._busy += 1

    def leave(self) -> None:
        self._busy -= 1
        if not self._busy:
            self._idle.set()

    async def wait_idle(self) -> None:
        """Wait until no handler has anything of this queue."""
        while self._busy:
            self._idle.clear()
            await self._idle.wait()

    def close(self) -> None:
        """Hand out nothing more; whoever waits on the queue is woken."""
        self.closing = True
        self._room.set()
        self._arrived.set()

    def drop(self) -> None:
        """Somebody else's from now on."""
        self.close()
        self.dropped = True
