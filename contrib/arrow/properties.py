"""The properties of many records split at once: from ``name 1 value 2 name 1 value 2`` to Arrow arrays.

All texts are laid into one buffer, each ended with a 2. Then every 2 ends a pair, the first 1 of a pair ends its
name, and numpy finds them all in two passes over the bytes. What the scalar parser does with odd texts is done here as
well: a pair without a name, a value or a 1 is dropped, a value may have a 1 in it, and of two pairs of the same
name the later wins.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

NAME_END: Final = 1
VALUE_END: Final = 2

MOST_NAMES: Final = 48
"""Different names that get a bit each of one number, with room for sums; more are compared in a slower way."""


def gather(data: Bytes, starts: Ints, lengths: Ints, kind: pa.DataType) -> pa.Array:
    """The pieces of a buffer as an Arrow array of binary or string. They must lie in order and not overlap.

    Arrow's offsets have no gaps, so pieces and gaps alternate in one array, and every second item is taken.
    """
    count = len(starts)
    offsets = np.empty(2 * count + 1, dtype=np.int32)
    offsets[0:-1:2] = starts
    offsets[1::2] = starts + lengths
    offsets[-1] = offsets[-2] if count else 0
    whole = pa.Array.from_buffers(kind, 2 * count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    # Arrow need not look whether these numbers lie inside.
    return pc.take(whole, pa.array(np.arange(0, 2 * count, 2, dtype=np.int32)), boundscheck=False)


def are_alike(data: Bytes, starts: Ints, length: int) -> bool:
    """Whether the pieces of this length that begin at these places are all the same."""
    if not length or not len(starts):
        return True
    everywhere: npt.NDArray[Any] = np.ndarray((len(data) - length + 1,), f"V{length}", data.data, strides=(1,))
    pieces = everywhere[starts]
    return bool(pieces.tobytes() == pieces[0].tobytes() * len(pieces))


@attrs.define(eq=False, slots=False)
class Properties:
    """The pairs of all records, one after the other."""

    text: Bytes
    """8 bytes longer than the texts, so that a name can be read as one number."""
    first_pair: Ints
    """Per record, and once more at the end: the number of its first pair."""
    names: Ints
    """Per pair: where its name begins in ``text``, as the next three."""
    name_ends: Ints
    values: Ints
    value_ends: Ints

    @classmethod
    def split(cls, data: Bytes, starts: Ints, lengths: Ints) -> Properties:
        """Split the texts that begin at ``starts``. A byte after each may be read, but is not looked at.

        Raises:
            UnicodeDecodeError: they are not UTF-8.
        """
        text, offsets = _texts(data, starts, lengths)
        used = text[: offsets[-1]]
        if len(used) and used.max() > 127:
            str(used.data, "utf-8")  # each text ends with a 2, so none can lend its neighbour a byte
        marks = np.flatnonzero(used <= VALUE_END)
        name_ends, value_ends = marks[0::2], marks[1::2]
        if len(marks) % 2 or bool(np.any(used[name_ends] != NAME_END)) or bool(np.any(used[value_ends] != VALUE_END)):
            return cls._split_odd(text, used, offsets)
        names = _after(value_ends)
        values = name_ends + 1
        return cls(text, _first_pairs(value_ends, offsets), names, name_ends, values, value_ends)._without_blanks()

    @classmethod
    def _split_odd(cls, text: Bytes, used: Bytes, offsets: Ints) -> Properties:
        """The same where 1 and 2 do not take turns: some pair has no 1 in it, or several, and the first one counts."""
        value_ends = np.flatnonzero(used == VALUE_END)
        ones = np.flatnonzero(used == NAME_END)
        names = _after(value_ends)
        name_ends = np.minimum(np.append(ones, len(text))[np.searchsorted(ones, names)], value_ends)
        values = np.minimum(name_ends + 1, value_ends)
        return cls(text, np.searchsorted(value_ends, offsets), names, name_ends, values, value_ends)._without_blanks()

    def _without_blanks(self) -> Properties:
        """Without the pairs that lack a name or a value."""
        keep = (self.name_ends > self.names) & (self.value_ends > self.values)
        return self if keep.all() else self._only(keep)

    def _only(self, keep: npt.NDArray[np.bool_]) -> Properties:
        before = np.concatenate(([0], np.cumsum(keep)))
        return Properties(
            self.text,
            before[self.first_pair],
            self.names[keep],
            self.name_ends[keep],
            self.values[keep],
            self.value_ends[keep],
        )

    @property
    def records(self) -> int:
        return len(self.first_pair) - 1

    @cached_property
    def record_of_pair(self) -> Ints:
        return np.repeat(np.arange(self.records), np.diff(self.first_pair))

    @cached_property
    def name_lengths(self) -> Ints:
        return self.name_ends - self.names

    @cached_property
    def period(self) -> int:
        """How many pairs every record has, or 0 if they have not all the same number."""
        per_record = np.diff(self.first_pair)
        return int(per_record[0]) if len(per_record) and bool(np.all(per_record == per_record[0])) else 0

    @cached_property
    def shared_names(self) -> list[str] | None:
        """The names of each record, if all have the same in the same order, as messages of one producer mostly do."""
        period = self.period
        lengths = self.name_lengths[:period]
        if not period or not bool(np.all(self.name_lengths.reshape(-1, period) == lengths)):
            return None
        if not all(are_alike(self.text, self.names[at::period], int(lengths[at])) for at in range(period)):
            return None
        spans = zip(self.names[:period], self.name_ends[:period], strict=True)
        names = [self.text[begin:end].tobytes().decode() for begin, end in spans]
        return names if len(set(names)) == period else None

    @cached_property
    def name_texts(self) -> pa.Array:
        """The name of each pair; if all records share them, those of the first again and again."""
        if self.shared_names is None:
            return gather(self.text, self.names, self.name_lengths, pa.string())
        text = b"".join(name.encode() for name in self.shared_names)
        ends = np.cumsum(self.name_lengths[: self.period])
        offsets = np.zeros(len(self.names) + 1, dtype=np.int32)
        offsets[1:].reshape(-1, self.period)[:] = ends + np.arange(self.records)[:, None] * len(text)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text * self.records)]
        return pa.Array.from_buffers(pa.string(), len(self.names), buffers)

    @cached_property
    def name_codes(self) -> tuple[npt.NDArray[np.int32], list[str]]:
        """Each pair's name as a number, and the names that the numbers mean."""
        codes = self.name_texts.dictionary_encode()
        return codes.indices.to_numpy(), codes.dictionary.to_pylist()

    # --- one property ----------------------------------------------------------------------

    def column(self, name: str) -> pa.Array:
        """One property as a string column, null where a record does not have it. The name has 4 or 8 bytes."""
        shared = self.__dict__.get("shared_names")
        if shared is not None and name in shared:
            return self._values(slice(shared.index(name), None, self.period))
        found = self._pairs_named(name)
        rows = self.record_of_pair[found]
        if len(found) == self.records and bool(np.all(rows[1:] > rows[:-1])):
            return self._values(found)
        chosen = np.full(self.records, -1, dtype=np.int64)
        chosen[rows] = found  # of several, the last assignment stays, as in the scalar parser
        present = chosen >= 0
        return self._values(chosen[present]).take(pa.array(np.cumsum(present) - 1, mask=~present))

    def _pairs_named(self, name: str) -> Ints:
        if "name_codes" in self.__dict__:
            codes, dictionary = self.name_codes
            return np.flatnonzero(codes == (dictionary.index(name) if name in dictionary else -1))
        wanted = name.encode()
        width = {4: np.uint32, 8: np.uint64}[len(wanted)]
        candidates = np.flatnonzero(self.name_lengths == len(wanted))
        numbers = _as_numbers(self.text, self.names[candidates], width)
        found: Ints = candidates[numbers == np.frombuffer(wanted, width)[0]]
        return found

    def _values(self, pairs: Ints | slice) -> pa.Array:
        starts = self.values[pairs]
        return gather(self.text, starts, self.value_ends[pairs] - starts, pa.string())

    # --- all of them -----------------------------------------------------------------------

    def prepare_maps(self) -> None:
        """Number the names before single columns are made: the map needs it, and then the columns use it too."""
        if self.shared_names is None:
            _ = self.name_codes

    def maps(self) -> pa.MapArray:
        """All properties as a column of maps."""
        names = self.name_texts
        repeats = self._repeated_pairs()
        chosen = self
        if len(repeats):
            keep = np.ones(len(self.names), dtype=bool)
            keep[repeats] = False
            chosen, names = self._only(keep), names.filter(pa.array(keep))
        values = gather(chosen.text, chosen.values, chosen.value_ends - chosen.values, pa.string())
        return pa.MapArray.from_arrays(pa.array(chosen.first_pair.astype(np.int32)), names, values)

    def _repeated_pairs(self) -> Ints:
        """The pairs whose name comes again later in the same record; there are hardly ever any."""
        if self.shared_names is not None:
            return np.empty(0, dtype=np.int64)
        codes, dictionary = self.name_codes
        if len(dictionary) <= MOST_NAMES:
            filled = np.flatnonzero(np.diff(self.first_pair))
            starts = self.first_pair[filled]
            bits = np.left_shift(np.uint64(1), codes.astype(np.uint64))
            # A bit that is there twice is carried on in the sum, and stays where it is in the union.
            if not len(filled) or not np.any(np.add.reduceat(bits, starts) != np.bitwise_or.reduceat(bits, starts)):
                return np.empty(0, dtype=np.int64)
        keys = self.record_of_pair * len(dictionary) + codes
        last = len(keys) - 1 - np.unique(keys[::-1], return_index=True)[1]
        return np.setdiff1d(np.arange(len(keys)), last)


def _after(ends: Ints) -> Ints:
    """Where pairs begin: each behind the end of the one before it."""
    begins = np.empty_like(ends)
    if len(begins):
        begins[0] = 0
        begins[1:] = ends[:-1] + 1
    return begins


def _first_pairs(value_ends: Ints, offsets: Ints) -> Ints:
    """The number of each record's first pair; looked for only if not every record has as many as the others."""
    records = len(offsets) - 1
    period = len(value_ends) // max(records, 1)
    if period and np.array_equal(value_ends[period - 1 :: period], offsets[1:] - 1):
        return np.arange(0, len(value_ends) + 1, period)
    return np.searchsorted(value_ends, offsets)


def _texts(data: Bytes, starts: Ints, lengths: Ints) -> tuple[Bytes, Ints]:
    """All texts in one buffer, each ended with a 2, with 8 bytes to spare; and where each begins."""
    filled = lengths > 0
    ends = starts + lengths
    unended = filled & (data[np.maximum(ends - 1, 0)] != VALUE_END)
    # The byte behind an unended text belongs to nobody: it is gathered too, and becomes its 2.
    pieces = gather(data, starts, lengths + unended, pa.binary())
    _, raw_offsets, raw_text = pieces.buffers()
    offsets = np.frombuffer(raw_offsets, dtype=np.int32)[: len(pieces) + 1].astype(np.int64)
    text = np.empty(int(offsets[-1]) + 8, dtype=np.uint8)
    if raw_text is not None:
        text[:-8] = np.frombuffer(raw_text, dtype=np.uint8)[: offsets[-1]]
    text[-8:] = 0
    text[offsets[1:][unended] - 1] = VALUE_END
    return text, offsets


def _as_numbers(text: Bytes, starts: Ints, width: Any) -> npt.NDArray[Any]:
    """The bytes that begin at each place, read as one number."""
    size = np.dtype(width).itemsize
    everywhere: npt.NDArray[Any] = np.ndarray((len(text) - size + 1,), dtype=width, buffer=text.data, strides=(1,))
    return everywhere[starts]
