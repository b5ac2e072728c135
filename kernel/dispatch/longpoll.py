"""Pulls that wait for the next message (RocketMQ: ``PullRequestHoldService``).

A pull that finds nothing is kept here under its queue. A dispatched message that its filter lets pass wakes
it; so does its deadline. Waiting pulls are found by (topic, queue), so a message costs one look-up however
many consumers wait elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

import anyio
import attrs

from verniermq.kernel.clock import Clock
from verniermq.kernel.deadlines import Deadlines
from verniermq.kernel.errors import RequestRefused
from verniermq.kernel.message import MATCH_ALL, MessageFilter
from verniermq.kernel.remoting import Connection
from verniermq.kernel.store import DispatchEvent


@attrs.define(eq=False)
class HeldPull:
    """One waiting request. ``resume`` answers it; it is called once."""

    topic: str
    queue_id: int
    offset: int
    filter: MessageFilter
    deadline: float
    connection: Connection | None
    """Whose request it is; ``None`` when the broker itself waits, see :meth:`HeldPulls.arrival`."""
    resume: Callable[[], None]
    done: bool = False

    def wants(self, event: DispatchEvent) -> bool:
        if event.queue_offset < self.offset:
            return False
        codes, test = self.filter.tag_codes, self.filter.test
        if codes is not None and event.tags_code not in codes:
            return False
        try:
            return test is None or test(event.properties)
        except RequestRefused:
            return True  # the pull is told why when it looks for itself


class HeldPulls:
    def __init__(self, clock: Clock) -> None:
        self._by_queue: dict[tuple[str, int], list[HeldPull]] = {}
        self._by_connection: dict[Connection, set[HeldPull]] = {}
        self._deadlines: Deadlines[HeldPull] = Deadlines(clock, self._answer)
        self._waiting = 0
        self._closing = False

    def __len__(self) -> int:
        return self._waiting

    async def arrival(self, topic: str, queue_id: int, offset: int) -> None:
        """Wait until the queue gets a message at ``offset`` or later: for plugins that read queues of their own.

        Only what is dispatched from now on counts: look into the queue first.
        """
        arrived = anyio.Event()
        watch = HeldPull(topic, queue_id, offset, MATCH_ALL, inf, None, arrived.set)
        self._by_queue.setdefault((topic, queue_id), []).append(watch)
        self._waiting += 1
        try:
            await arrived.wait()
        finally:
            self._drop_from_queue(watch)

    def hold(self, pull: HeldPull) -> None:
        if self._closing:
            pull.done = True
            pull.resume()
            return
        self._by_queue.setdefault((pull.topic, pull.queue_id), []).append(pull)
        if pull.connection is not None:
            self._by_connection.setdefault(pull.connection, set()).add(pull)
        self._waiting += 1
        self._deadlines.add(pull)

    def messages_dispatched(self, events: Sequence[DispatchEvent]) -> None:
        """Wake the pulls that one of these messages is for."""
        if not self._by_queue:
            return
        woken: list[HeldPull] = []
        for event in events:
            waiting = self._by_queue.get((event.topic, event.queue_id))
            if waiting is None:
                continue
            for pull in waiting:
                if not pull.done and pull.wants(event):
                    pull.done = True
                    woken.append(pull)
        for pull in woken:
            self._forget(pull)
            pull.resume()

    def wake_queue(self, topic: str, queue_id: int) -> None:
        """Let the pulls of one queue look again, because its bounds changed."""
        for pull in list(self._by_queue.get((topic, queue_id), ())):
            self._answer(pull)

    def close(self) -> None:
        """Answer everybody who waits, and from now on at once: the broker stops."""
        self._closing = True
        for pulls in list(self._by_connection.values()):
            for pull in list(pulls):
                self._answer(pull)

    async def run(self) -> None:
        """Answer pulls whose time is over."""
        await self._deadlines.run()

    def connection_closed(self, connection: Connection) -> None:
        for pull in self._by_connection.pop(connection, set()):
            pull.done = True
            self._drop_from_queue(pull)

    def _answer(self, pull: HeldPull) -> None:
        pull.done = True
        self._forget(pull)
        pull.resume()

    def _forget(self, pull: HeldPull) -> None:
        self._drop_from_queue(pull)
        if pull.connection is None:
            return
        of_connection = self._by_connection.get(pull.connection)
        if of_connection is not None:
            of_connection.discard(pull)
            if not of_connection:
                del self._by_connection[pull.connection]

    def _drop_from_queue(self, pull: HeldPull) -> None:
        key = (pull.topic, pull.queue_id)
        waiting = self._by_queue.get(key)
        if waiting is not None and pull in waiting:
            waiting.remove(pull)
            self._waiting -= 1
            if not waiting:
                del self._by_queue[key]
