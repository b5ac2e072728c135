"""The properties of many records as Arrow arrays: what ``properties.py`` makes, compiled.

Records of up to 64 properties are split by ``_pairs.pyx`` in one pass, if it is there; others are left to numpy.
"""

from __future__ import annotations

from typing import Final

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from verniermq.contrib.arrow.properties import Bytes, Ints, Properties
from verniermq.kernel import compiled

PAIRS: Final = compiled(__package__, "_pairs")

WANTED: Final = ("TAGS", "KEYS", "UNIQ_KEY")
"""Properties that have columns of their own."""
_WANTED_BYTES: Final = tuple(name.encode() for name in WANTED)


@attrs.frozen(eq=False)
class SplitProperties:
    """What was compiled made of the texts."""

    names: pa.StringArray
    values: pa.StringArray
    first_pairs: npt.NDArray[np.int32]
    places: npt.NDArray[np.int32]
    """Per wanted name and record: the number of the pair, or -1."""

    @classmethod
    def split(cls, data: Bytes, starts: Ints, lengths: Ints) -> SplitProperties | None:
        """``None`` if some record has more properties than were compiled for.

        Raises:
            UnicodeDecodeError: the texts are not UTF-8.
        """
        assert PAIRS is not None
        records, total = len(starts), int(lengths.sum())
        names, values = np.empty(total, np.uint8), np.empty(total, np.uint8)
        most = (total + records) // 4 + 1
        name_offsets, value_offsets = np.empty(most, np.int32), np.empty(most, np.int32)
        first_pairs = np.empty(records + 1, np.int32)
        places = np.empty((len(WANTED), records), np.int32)
        count = PAIRS.split(
            data, starts, lengths, _WANTED_BYTES, first_pairs, name_offsets, names, value_offsets, values, places
        )
        if count is None:
            return None
        return cls(_texts(count, name_offsets, names), _texts(count, value_offsets, values), first_pairs, places)

    def column(self, name: str) -> pa.Array:
        """One of the wanted properties as a string column, null where a record does not have it."""
        places = self.places[WANTED.index(name)]
        missing = places < 0
        return self.values.take(pa.array(places, mask=missing if missing.any() else None))

    def prepare_maps(self) -> None:
        """There is nothing to prepare."""

    def maps(self) -> pa.MapArray:
        """All properties as a column of maps."""
        return pa.MapArray.from_arrays(pa.array(self.first_pairs), self.names, self.values)


def _texts(count: int, offsets: npt.NDArray[np.int32], text: Bytes) -> pa.StringArray:
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(text)])


def split_properties(data: Bytes, starts: Ints, lengths: Ints) -> SplitProperties | Properties:
    """
    Raises:
        UnicodeDecodeError: the texts are not UTF-8.
    """
    found = None if PAIRS is None else SplitProperties.split(data, starts, lengths)
    return Properties.split(data, starts, lengths) if found is None else found
