"""Where the records of a chunk begin: from the consume queue's entries, or by going from record to record."""

from __future__ import annotations

import struct
from typing import Final

import numpy as np

from verniermq.contrib.arrow.properties import Ints
from verniermq.kernel import CorruptRecord, decode_records

SMALLEST: Final = 91
"""A record without body, topic and properties."""

ENTRIES: Final = np.dtype([("offset", ">i8"), ("size", ">i4"), ("code", ">i8")])
"""What a consume queue keeps of each record."""


def corrupt(records: bytes) -> CorruptRecord:
    """Have the kernel's decoder say what is wrong; it knows all the ways."""
    try:
        decode_records(records)
    except CorruptRecord as error:
        return error
    return CorruptRecord(0, "the records are whole, but not of the sizes that the consume queue has")


def find_records(buffer: bytes) -> tuple[Ints, Ints]:
    """Where records begin that lie one after the other, and their sizes, when no consume queue says so.

    Raises:
        CorruptRecord: something between them is no record.
    """
    starts: list[int] = []
    position, end = 0, len(buffer)
    unpack = struct.Struct(">i").unpack_from
    while position < end:
        size = unpack(buffer, position)[0] if end - position >= 4 else 0
        if size < SMALLEST or position + size > end:
            raise corrupt(buffer)
        starts.append(position)
        position += size
    edges = np.array([*starts, position], dtype=np.int64)
    return edges[:-1], np.diff(edges)


def parse_places(entries: bytes) -> tuple[Ints, Ints]:
    """Where the records of some consume-queue entries lie in the log, and their sizes."""
    table = np.frombuffer(entries, dtype=ENTRIES)
    return table["offset"].astype(np.int64), table["size"].astype(np.int64)


def parse_entries(entries: bytes) -> tuple[Ints, Ints, Ints]:
    """Where records begin in a chunk, their sizes, and their tags codes, from the consume-queue entries behind it."""
    table = np.frombuffer(entries, dtype=ENTRIES)
    sizes = table["size"].astype(np.int64)
    return np.cumsum(sizes) - sizes, sizes, table["code"].astype(np.int64)
