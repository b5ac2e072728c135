# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""Keys of a run and their entries in an index file, compiled (``keys.py`` and ``indexfile.py`` are the reference).

::

    unique and other keys ──keys_of_run──> (hash, commit-log offset, store time) ──put──> entry, then its slot

    entry   hash i4 | commit-log offset i8 | seconds i4 | entry before it i4      slot   newest entry i4

Everything is read and written through views, which check each place.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE

cdef extern from *:
    """
    #ifndef LANE_SOURCE
    #define LANE_SOURCE 0u
    #endif
    """
    const unsigned int LANE_SOURCE

SOURCE = LANE_SOURCE
"""The checksum of the source that this was compiled from."""

cdef enum:
    ENTRY = 20
    FIRST_SLOT = 40

cdef int64_t LARGEST = 0x7FFFFFFF


cdef int64_t absolute(uint32_t value) noexcept:
    """The absolute value of a signed number; that of the smallest one counts as 0."""
    return value if value < 0x80000000 else (0 - value) & 0x7FFFFFFF


cdef bint hash_of(bytes text, Py_ssize_t start, Py_ssize_t end, uint32_t *value) except -1:
    """Go on with Java's hash; false unless all of it is ASCII."""
    cdef const uint8_t *data = <const uint8_t *>PyBytes_AS_STRING(text)
    cdef Py_ssize_t i
    if start < 0 or end > PyBytes_GET_SIZE(text):
        raise IndexError(f"{start} to {end} of {PyBytes_GET_SIZE(text)} bytes")
    for i in range(start, end):
        if data[i] > 127:
            return False
        value[0] = value[0] * 31 + data[i]
    return True


def keys_of_run(uint32_t topic, list uniques, list keys, list offsets, int64_t time, other):
    """The number of each key of each message, with commit-log offset and store time.

    ``topic`` is the hash of ``topic#``; ``other(topic, key)`` works out what is not ASCII.
    """
    cdef list found = []
    cdef bytes text
    cdef uint32_t value
    cdef Py_ssize_t i, start, end, size
    if len(uniques) != len(offsets) or len(keys) != len(offsets):
        raise ValueError("columns of different lengths")
    for i in range(len(offsets)):
        offset = offsets[i]
        text = uniques[i]
        value = topic
        if hash_of(text, 0, len(text), &value):
            found.append((absolute(value), offset, time))
        else:
            found.append((other(topic, text.decode()), offset, time))
        text = keys[i]
        size = len(text)
        start = 0
        while start < size:
            end = text.find(b" ", start)
            if end < 0:
                end = size
            if end > start:
                value = topic
                if hash_of(text, start, end, &value):
                    found.append((absolute(value), offset, time))
                else:
                    found.append((other(topic, text[start:end].decode()), offset, time))
            start = end + 1
    return found


cdef inline void set_word(uint8_t[::1] table, Py_ssize_t at, uint32_t value):
    table[at] = value >> 24
    table[at + 1] = (value >> 16) & 255
    table[at + 2] = (value >> 8) & 255
    table[at + 3] = value & 255


def put(
    uint8_t[::1] table, const uint8_t[::1] reserved, int piece_bits, int64_t slots, Py_ssize_t first_entry,
    int64_t count, int64_t begin, list keys, Py_ssize_t number,
):
    """Put the entries of ``keys`` from ``number`` on, the first of them as entry ``count``.

    Returns how many are put, and how many slots came into use by them. It ends early at a slot whose piece is not
    ``reserved``.
    """
    cdef Py_ssize_t at_entry = first_entry + ENTRY * count, at_slot, size = table.shape[0], first = number
    cdef int64_t key_hash, offset, time, before, seconds, used = 0
    if slots <= 0 or at_entry < FIRST_SLOT + 4 * slots:
        raise ValueError(f"entry {count} at {at_entry} behind {slots} slots")
    while number < len(keys):
        key_hash, offset, time = keys[number]
        if key_hash < 0 or at_entry + ENTRY > size:
            raise IndexError(f"hash {key_hash}, entry {count} at {at_entry} of {size} bytes")
        at_slot = FIRST_SLOT + 4 * (key_hash % slots)
        if not reserved[at_slot >> piece_bits]:
            break
        before = (
            <int64_t>table[at_slot] << 24 | <int64_t>table[at_slot + 1] << 16
            | <int64_t>table[at_slot + 2] << 8 | table[at_slot + 3]
        )
        if not 0 < before <= count:
            before = 0
            used += 1
        seconds = (time - begin) // 1000 if begin > 0 and time > begin else 0
        if seconds > LARGEST:
            seconds = LARGEST
        set_word(table, at_entry, <uint32_t>key_hash)
        set_word(table, at_entry + 4, <uint32_t>(<uint64_t>offset >> 32))
        set_word(table, at_entry + 8, <uint32_t>(<uint64_t>offset & 0xFFFFFFFF))
        set_word(table, at_entry + 12, <uint32_t>seconds)
        set_word(table, at_entry + 16, <uint32_t>before)
        set_word(table, at_slot, <uint32_t>count)
        at_entry += ENTRY
        count += 1
        number += 1
    return number - first, used


def find_newest(const uint8_t[::1] data, int64_t first, int64_t slots, dict newest):
    """Note for each slot in ``newest`` the last of these entries that is in it; the first one has the number ``first``."""
    cdef Py_ssize_t at = 0
    cdef int64_t key_hash, slot
    if slots <= 0:
        raise ValueError("no slots")
    while at + ENTRY <= data.shape[0]:
        key_hash = <int32_t>(
            <uint32_t>data[at] << 24 | <uint32_t>data[at + 1] << 16 | <uint32_t>data[at + 2] << 8 | data[at + 3]
        )
        slot = key_hash % slots
        if slot < 0:
            slot += slots  # as Python divides
        if slot in newest:
            newest[slot] = first
        first += 1
        at += ENTRY
