"""Topics that are not on the disk yet, and the messages that wait for them.

What a message needs has to be as durable as the message, so it is stored when the disk has its topic. Meanwhile it is
an object with a task, and others of the same peer come behind it. A thousand may wait like that; then a peer is not
served any further until its message is through, and its other requests stay the bytes that they were.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final

import attrs
from anyio.lowlevel import checkpoint

from verniermq.kernel.errors import TableNotSaved, TopicNotFound
from verniermq.kernel.message import PendingMessage
from verniermq.kernel.names import Property
from verniermq.kernel.remoting import Connection
from verniermq.kernel.tables.document import Document

MOST_WAITING: Final = 1024
"""Messages that wait before their peers do. One more for each peer is the most that ever waits."""
MOST_BYTES: Final = 16 * 1024 * 1024
"""The same of their bodies."""
PER_TURN: Final = 64
"""Messages that are let go in one turn of the loop."""


@attrs.define(eq=False)
class _Unsaved:
    """One topic that was created or changed."""

    change: int = 0
    """Of its document."""
    waiting: deque[asyncio.Future[TableNotSaved | None]] = attrs.field(factory=deque)
    """Messages that wait for it, in their order. Until they are through, others wait behind them."""


class UnsavedTopics:
    """Of one broker."""

    def __init__(self, document: Document, exists: Callable[[str], bool], start: Callable[..., object]) -> None:
        """``start`` begins a task."""
        self._document = document
        self._exists = exists
        self._start = start
        self._topics: dict[str, _Unsaved] = {}
        self._waiting = 0
        self._bytes = 0

    def changed(self, topic: str) -> None:
        """A topic was created or changed, and its document told of it."""
        self._topics.setdefault(topic, _Unsaved()).change = self._document.changes

    def deleted(self, topic: str) -> None:
        self._topics.pop(topic, None)

    def is_saved(self, topic: str) -> bool:
        """Whether the disk has a topic as it is now, and nobody waits for that any more."""
        unsaved = self._topics.get(topic)
        if unsaved is None:
            return True
        if unsaved.waiting or not self._document.has_saved(unsaved.change):
            return False
        del self._topics[topic]
        return True

    def saving(self, message: PendingMessage, connection: Connection | None) -> Coroutine[Any, Any, None] | None:
        """Something to await before a message is appended: the topic it goes to, now or later, is not on the disk yet.

        Raises:
            TableNotSaved: the disk refused the topic when it was tried last.
        """
        if self._topics:
            for topic in (message.topic, message.properties.get(Property.REAL_TOPIC, "")):
                if not self.is_saved(topic):
                    return self._queue_behind(topic, len(message.body), connection)
        return None

    def _queue_behind(self, topic: str, size: int, connection: Connection | None) -> Coroutine[Any, Any, None]:
        """The place in the row is taken now, not when the coroutine begins: nothing that comes later may overtake."""
        unsaved, document = self._topics[topic], self._document
        if not unsaved.waiting and (error := document.failure(unsaved.change)) is not None:
            raise error
        place: asyncio.Future[TableNotSaved | None] = asyncio.get_running_loop().create_future()
        unsaved.waiting.append(place)
        self._waiting += 1
        self._bytes += size
        place.add_done_callback(lambda _: self._leave(size))
        if len(unsaved.waiting) == 1:
            self._start(self._admit_in_order, unsaved)
        many = self._waiting > MOST_WAITING or self._bytes > MOST_BYTES
        # A row that moves already gets no longer, so that it ends.
        if connection is not None and (many or document.has_saved(unsaved.change)):
            connection.serve_after(place)
        return self._saved(topic, place)

    def _leave(self, size: int) -> None:
        self._waiting -= 1
        self._bytes -= size

    async def _saved(self, topic: str, place: asyncio.Future[TableNotSaved | None]) -> None:
        error = await place
        if error is not None:
            raise error
        if not self._exists(topic):
            raise TopicNotFound(topic)  # deleted meanwhile

    async def _admit_in_order(self, unsaved: _Unsaved) -> None:
        """Let the messages that wait for a topic go: some in each turn of the loop, which begin in their order."""
        while unsaved.waiting:
            try:
                await self._document.saved(unsaved.change)
            except TableNotSaved as error:
                for place in unsaved.waiting:
                    _answer(place, error)
                unsaved.waiting.clear()
                return
            going = min(PER_TURN, len(unsaved.waiting))
            await checkpoint()  # the tasks of all these have begun now: one that begins later would not wait at all
            for number in range(going):
                _answer(unsaved.waiting[number], None)
            await checkpoint()
            for _ in range(going):
                unsaved.waiting.popleft()


def _answer(place: asyncio.Future[TableNotSaved | None], error: TableNotSaved | None) -> None:
    if not place.done():  # its request may have been cancelled
        place.set_result(error)
