"""Pulls that wait for the next message (RocketMQ: ``PullRequestHoldService``).

A pull that finds nothing is kept here under its queue. A dispatched message that its filter lets pass wakes
it; so does its deadline. Waiting pulls are found by (topic, queue), so a message costs one look-up however
many consumers wait elsewhere.

Thousands may wait for one queue. They are looked at and answered a few at a time, with a turn of the loop between,
so that the message which wakes them does not hold up everybody else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from math import inf
from typing import Final

import anyio
import attrs

from verniermq.kernel.clock import Clock
from verniermq.kernel.deadlines import Deadlines
from verniermq.kernel.dispatch.run import Part, Run, count_messages, parts_of
from verniermq.kernel.errors import Busy, RequestRefused
from verniermq.kernel.loop import Steps
from verniermq.kernel.message import MATCH_ALL, MessageFilter
from verniermq.kernel.remoting import Connection
from verniermq.kernel.store import DispatchEvent

PULLS_PER_STEP: Final = 32
"""Waiting pulls that are asked, and answered, before others have a turn."""

EVENTS_PER_PULL: Final = 32
"""Messages that a pull is asked about before it counts as another one."""

BYTES_PER_PULL: Final = 64 * 1024
"""Bytes of an answer after which it counts as another one: to copy them takes time too."""

USUAL_ANSWER: Final = 1024 * 1024
"""Bytes that an answer has at most, unless its first message alone has more."""

MOST_EVENTS: Final = 1024
"""When more messages came at once, a pull is not asked about each of them, but looks for itself."""


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

    def wants(self, part: Part) -> bool:
        """Whether it is for this message, or for one of this run."""
        if isinstance(part, Run):
            return self._wants_one_of(part)
        if part.queue_offset < self.offset:
            return False
        codes, test = self.filter.tag_codes, self.filter.test
        if codes is not None and part.tags_code not in codes:
            return False
        try:
            return test is None or test(part.properties)
        except RequestRefused:
            return True  # the pull is told why when it looks for itself

    def _wants_one_of(self, run: Run) -> bool:
        """The same without making events, unless the filter tests properties."""
        if run.newest_queue_offset < self.offset:
            return False
        codes = self.filter.tag_codes
        if codes is not None and codes.isdisjoint(run.codes[max(self.offset - run.queue_offset, 0) :]):
            return False
        return self.filter.test is None or any(map(self.wants, run))


class HeldPulls:
    """At most ``most`` pulls wait, and ``most_per_connection`` of one peer."""

    def __init__(self, clock: Clock, *, most: int, most_per_connection: int) -> None:
        self._most = most
        self._most_per_connection = most_per_connection
        self.missed = 0
        """How often a pull found nothing, whether it waited then or not."""
        self._by_queue: dict[tuple[str, int], dict[HeldPull, None]] = {}
        self._by_connection: dict[Connection, set[HeldPull]] = {}
        self._deadlines: Deadlines[HeldPull] = Deadlines(clock, self._answer)
        self._waiting = 0
        self._closing = False
        self._waking = Steps(PULLS_PER_STEP)

    def __len__(self) -> int:
        return self._waiting

    async def arrival(self, topic: str, queue_id: int, offset: int) -> None:
        """Wait until the queue gets a message at ``offset`` or later: for plugins that read queues of their own.

        Only what is dispatched from now on counts: look into the queue first.
        """
        arrived = anyio.Event()
        watch = HeldPull(topic, queue_id, offset, MATCH_ALL, inf, None, arrived.set)
        self._by_queue.setdefault((topic, queue_id), {})[watch] = None
        self._waiting += 1
        try:
            await arrived.wait()
        finally:
            self._drop_from_queue(watch)

    def hold(self, pull: HeldPull) -> None:
        """Let a pull wait.

        Raises:
            Busy: too many wait already.
        """
        if self._closing:
            pull.done = True
            pull.resume()
            return
        if self._waiting >= self._most:
            raise Busy(f"{self._waiting} pulls wait for messages already; raise max_held in [pull] to hold more")
        if pull.connection is not None:
            own = self._by_connection.setdefault(pull.connection, set())
            if len(own) >= self._most_per_connection:
                raise Busy(
                    f"{len(own)} pulls of this connection wait for messages already; "
                    "wait for their answers, or raise max_held_per_connection in [pull]"
                )
            own.add(pull)
        self._by_queue.setdefault((pull.topic, pull.queue_id), {})[pull] = None
        self._waiting += 1
        self._deadlines.add(pull)

    def messages_dispatched(self, events: Sequence[DispatchEvent]) -> None:
        """Wake the pulls that one of these messages is for."""
        by_queue = self._by_queue
        if not by_queue:
            return
        arrived: dict[tuple[str, int], list[Part]] = {}
        for part in parts_of(events):
            key = (part.topic, part.queue_id)
            if key in by_queue:
                arrived.setdefault(key, []).append(part)
        if arrived:
            self._waking.begin(self._wake(arrived))

    def wake_queue(self, topic: str, queue_id: int) -> None:
        """Let the pulls of one queue look again, because its bounds changed."""
        self._waking.begin(self._answer_all(list(self._by_queue.get((topic, queue_id), ()))))

    def _wake(self, arrived: dict[tuple[str, int], list[Part]]) -> Iterator[None]:
        for key, parts in arrived.items():
            newest = parts[-1].newest_queue_offset
            pieces = list(_in_pieces(parts)) if count_messages(parts) <= MOST_EVENTS else []
            pulls = list(self._by_queue.get(key, ()))
            more = _size_of_answer(parts) // BYTES_PER_PULL if len(pulls) > 1 else 0
            for pull in pulls:
                wanted = not pieces and newest >= pull.offset
                for piece in pieces:
                    if pull.done or (wanted := any(map(pull.wants, piece))):
                        break
                    yield from repeat(None, -(-count_messages(piece) // EVENTS_PER_PULL))
                if wanted and not pull.done:
                    self._answer(pull)
                    yield from repeat(None, more)
                yield

    def _answer_all(self, pulls: Iterable[HeldPull]) -> Iterator[None]:
        for pull in pulls:
            if not pull.done:
                self._answer(pull)
            yield

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
            del waiting[pull]
            self._waiting -= 1
            if not waiting:
                del self._by_queue[key]


def _in_pieces(parts: Sequence[Part]) -> Iterator[Sequence[Part]]:
    """Single messages, some at a time, and each run, in their order."""
    start = 0
    for number, part in enumerate(parts):
        if isinstance(part, Run) or number - start == EVENTS_PER_PULL:
            if number > start:
                yield parts[start:number]
            start = number
        if isinstance(part, Run):
            yield parts[number : number + 1]
            start = number + 1
    if start < len(parts):
        yield parts[start:]


def _size_of_answer(parts: Sequence[Part]) -> int:
    """About how many bytes a pull is answered with that waited for these messages."""
    largest = max(max(part.sizes) if isinstance(part, Run) else part.size for part in parts)
    return max(largest, min(sum(part.size for part in parts), USUAL_ANSWER))
