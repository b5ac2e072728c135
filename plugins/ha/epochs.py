"""Which term wrote which part of a log, and from where two logs agree (RocketMQ: ``EpochFileCache``).

An epoch is the part of the log that one master wrote in one term: from its start to the next one's start. Two logs
that have an epoch with the same term and the same start are equal from the beginning up to where the shorter of the
two has its end in that epoch; what lies behind it in the other was never acknowledged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

Epochs: TypeAlias = tuple[tuple[int, int], ...]
"""(term, start), both growing."""


def begin(epochs: Epochs, term: int, start: int) -> Epochs:
    """The epochs of a master that begins ``term`` where its log ends.

    Those without a byte go: two terms with the same start would let a log that differs behind it look equal.
    """
    return (*(epoch for epoch in epochs if epoch[1] < start), (term, start))


def cut(epochs: Epochs, end: int) -> Epochs:
    """The epochs of a log that was cut off at ``end``. The last may be empty: it says what the log would go on with."""
    return tuple(epoch for epoch in epochs if epoch[1] <= end)


def agreed(mine: Sequence[tuple[int, int]], my_end: int, theirs: Sequence[tuple[int, int]], their_end: int) -> int:
    """Up to where my log is a part of theirs, by the newest epoch that both have; 0 if there is none.

    Whoever has confirmed more than that must not cut its log: then something else is wrong.
    """
    starts = dict(theirs)
    for position in range(len(mine) - 1, -1, -1):
        term, start = mine[position]
        if starts.get(term) == start:
            return min(_end_of(mine, position, my_end), _end_of(theirs, _position(theirs, term), their_end))
    return 0


def _position(epochs: Sequence[tuple[int, int]], term: int) -> int:
    return next(position for position, epoch in enumerate(epochs) if epoch[0] == term)


def _end_of(epochs: Sequence[tuple[int, int]], position: int, end: int) -> int:
    return epochs[position + 1][1] if position + 1 < len(epochs) else end
