"""How far every group is behind, online or not, from the offsets that are kept: one look at all of them per scrape.

A group is shown until it is deleted. (Apache's broker shows a group only while it has members, so that its lag is not
seen just when nobody consumes.) Groups that broadcast keep their places themselves and are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs

from verniermq.kernel import RETRY_PREFIX, Context, Sample


@attrs.frozen
class Lag:
    """Of one group in one topic."""

    labels: tuple[str, str, str, str]
    """``consumer_group``, ``is_retry``, ``is_system``, ``topic``."""
    lag: int
    """Not consumed: what is ready and what is in flight."""
    inflight: int
    """Handed out and not consumed."""
    lag_ms: int
    """The age of the oldest that is not consumed."""
    queueing_ms: int
    """The age of the oldest that is not handed out."""


LABELS = ("consumer_group", "is_retry", "is_system", "topic")


class LagTable:
    def __init__(self, broker: Context) -> None:
        self._broker = broker
        self.rows: list[Lag] = []

    def look(self) -> Iterator[None]:
        """Make the table anew, in steps."""
        rows: list[Lag] = []
        now = self._broker.clock.now_ms()
        consumers = self._broker.clients.consumers
        for topic, group, queues in self._broker.offsets:
            live = consumers.get(group)
            if live is None or live.message_model != "BROADCASTING":
                row = self._row(topic, group, dict(queues), now)
                if row is not None:
                    rows.append(row)
            yield
        self.rows = rows

    def _row(self, topic: str, group: str, committed: dict[int, int], now: int) -> Lag | None:
        store, pulled = self._broker.store, self._broker.offsets.pulled
        config = self._broker.topics.find(topic)
        if config is None:
            return None
        lag = inflight = 0
        oldest = waiting = now
        for queue_id in range(config.read_queues):
            queue = store.queue(topic, queue_id)
            if queue is None:
                continue
            end = queue.max_offset
            place = committed.get(queue_id, 0)
            if place >= end:
                continue
            place = max(place, queue.min_offset)
            if place >= end:
                continue
            handed_out = min(max(pulled(group, topic, queue_id), place), end)
            lag += end - place
            inflight += handed_out - place
            oldest = min(oldest, store.stored_at(topic, queue_id, place) or now)
            if handed_out < end:
                waiting = min(waiting, store.stored_at(topic, queue_id, handed_out) or now)
        retry, system = topic.startswith(RETRY_PREFIX), self._broker.topics.is_system(topic)
        labels = (group, "true" if retry else "false", "true" if system else "false", topic)
        return Lag(labels, lag, inflight, now - oldest, now - waiting)

    def samples(self, figure: Callable[[Lag], int]) -> Callable[[], Iterator[Sample]]:
        return lambda: ((row.labels, figure(row)) for row in self.rows)

    def queues(self, group: str, topic: str) -> Iterator[tuple[int, int, int, int]]:
        """Queue, committed, end and age in milliseconds of the oldest that waits, of one group in one topic."""
        store, now = self._broker.store, self._broker.clock.now_ms()
        committed = self._broker.offsets.queues(group, topic)
        config = self._broker.topics.find(topic)
        for queue_id in range(0 if config is None else config.read_queues):
            queue = store.queue(topic, queue_id)
            low, end = (0, 0) if queue is None else (queue.min_offset, queue.max_offset)
            place = max(committed.get(queue_id, 0), low)
            age = now - (store.stored_at(topic, queue_id, place) or now) if place < end else 0
            yield queue_id, place, end, age
