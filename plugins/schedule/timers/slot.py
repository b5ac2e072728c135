"""The slot whose second has come: its chain, read once and put into the order of delivery.

The chain leads from the newest record back to the oldest. Its positions are put into one bucket per millisecond,
8 bytes each, so a million messages for one second take 8 MB for that second and need no sorting. Who comes
while the slot is open goes into a second bucket, which is in order by itself.
"""

from __future__ import annotations

import heapq
from array import array

import attrs

from verniermq.plugins.schedule.timers.times import SECOND


@attrs.define(eq=False)
class OpenSlot:
    second: int
    done: tuple[int, int]
    """(within, position) of the last delivered: what is not after it has been delivered before."""
    recalled: set[str] = attrs.field(factory=set, init=False)
    """Keys of messages that were taken back, as ``topic+key``."""
    _chain: dict[int, array[int]] = attrs.field(factory=dict, init=False)
    """Milliseconds after the slot's begin → positions, newest first."""
    _late: dict[int, array[int]] = attrs.field(factory=dict, init=False)
    """The same, oldest first, for what came since."""
    _late_taken: dict[int, int] = attrs.field(factory=dict, init=False)
    _order: list[int] = attrs.field(factory=list, init=False)
    """A heap of the milliseconds that have buckets, some of them twice or empty by now."""

    def add_from_chain(self, within: int, position: int) -> None:
        """Add an older record than the one added before."""
        if (within, position) > self.done:
            self._bucket(self._chain, within).append(position)

    def add_late(self, within: int, position: int) -> None:
        """Add a newer record than any other."""
        self._bucket(self._late, within).append(position)

    def _bucket(self, buckets: dict[int, array[int]], within: int) -> array[int]:
        bucket = buckets.get(within)
        if bucket is None:
            bucket = buckets[within] = array("q")
            heapq.heappush(self._order, within)
        return bucket

    def next_within(self) -> int | None:
        """When the next one is due, in ms after the slot's begin."""
        order = self._order
        while order and order[0] not in self._chain and order[0] not in self._late:
            heapq.heappop(order)
        return order[0] if order else None

    def next_due_ms(self) -> int | None:
        within = self.next_within()
        return None if within is None else self.second * SECOND + within

    def first(self) -> tuple[int, int]:
        """(within, position) of the next one; there must be one. It stays until :meth:`delivered`."""
        within = self.next_within()
        assert within is not None
        chain = self._chain.get(within)
        return within, chain[-1] if chain else self._late[within][self._late_taken.get(within, 0)]

    def delivered(self, within: int, position: int) -> None:
        """The first one is done with."""
        self.done = (within, position)
        chain = self._chain.get(within)
        if chain:
            chain.pop()
            if not chain:
                del self._chain[within]
            return
        taken = self._late_taken.get(within, 0) + 1
        if taken == len(self._late[within]):
            del self._late[within]
            self._late_taken.pop(within, None)
        else:
            self._late_taken[within] = taken
