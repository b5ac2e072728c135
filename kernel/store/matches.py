"""Reading a queue through a filter: one way for pulls, pops and plugins that hand out messages.

The consume queue says where records lie. The filter is asked about the tag's hash in the entry first, which needs no
look at the record; only one that tests properties makes us look into it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from verniermq.kernel.commitlog.damage import Damage
from verniermq.kernel.commitlog.log import CommitLog
from verniermq.kernel.commitlog.record import properties_of
from verniermq.kernel.dispatch.consumequeue import ENTRY
from verniermq.kernel.errors import CorruptRecord
from verniermq.kernel.message import MessageFilter


class Matches:
    """The records that passed."""

    __slots__ = ("damaged", "looked_at", "numbers", "records")

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.numbers: list[int] = []
        """Which of the entries they belong to, from 0."""
        self.looked_at = 0
        """How many entries are done with; the next read begins behind them."""
        self.damaged: tuple[int, int] | None = None
        """The entry, and the commit-log offset, of a record that is left out since it is damaged: the last one."""


def read_matches(
    log: CommitLog,
    damage: Damage,
    entries: bytes,
    wanted: MessageFilter,
    *,
    most: int,
    max_bytes: int,
    check_before: int,
    strict: bool,
    skip_gone: bool,
) -> Matches:
    """As :meth:`~verniermq.kernel.store.store.Store.matches`, which is the way to it."""
    found = Matches()
    records, numbers = found.records, found.numbers
    codes, test = wanted.tag_codes, wanted.test
    read, is_whole = log.read, damage.is_whole if strict else damage.looks_whole
    number = 0
    for position, size, code in ENTRY.iter_unpack(entries):
        if codes is None or code in codes:
            if size > max_bytes and records:
                break
            record = read(position, size)
            if record is None:
                if not skip_gone:
                    break
            elif position < check_before and not is_whole(record, position):
                found.damaged = (number, position)
            elif test is None or _passes(test, record, position, damage):
                records.append(record)
                numbers.append(number)
                max_bytes -= size
                if len(records) == most:
                    number += 1
                    break
        number += 1
    found.looked_at = number
    return found


def read_adjacent(log: CommitLog, entries: bytes, *, most: int, max_bytes: int) -> tuple[list[bytes], int] | None:
    """The same without a filter and a check, records that lie side by side in one piece: the pieces, and how many
    records that are. ``None`` if one of them is not in the log (any more).
    """
    pieces: list[bytes] = []
    count = start = stop = 0
    for position, size, _ in ENTRY.iter_unpack(entries):
        if count == most or (size > max_bytes and count):
            break
        if position != stop or not count:
            if count:
                piece = log.read(start, stop - start)
                if piece is None:
                    return None
                pieces.append(piece)
            start = stop = position
        stop += size
        max_bytes -= size
        count += 1
    if count:
        piece = log.read(start, stop - start)
        if piece is None:
            return None
        pieces.append(piece)
    return pieces, count


def _passes(test: Callable[[Mapping[str, str]], bool], record: bytes, position: int, damage: Damage) -> bool:
    try:
        return test(properties_of(record))
    except CorruptRecord as error:
        damage.note(position, error.why)
        return False
