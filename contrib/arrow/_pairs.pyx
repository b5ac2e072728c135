# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""The properties of many records, split and copied into Arrow's buffers in one pass (``properties.py`` is the reference).

::

    name 1 value 2 name 1 value 2 | name 1 value ──split──> names, their offsets | values, their offsets | first pairs

Messages of one producer have the same names in the same order: where a record has those of the one before it, they are
copied as one piece, and none has to be compared with the others.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8

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
    NAME_END = 1
    VALUE_END = 2
    MOST = 64           # pairs of one record; the reference takes those with more
    WANTED = 8          # columns of their own

cdef uint64_t HIGH = 0x8080808080808080


cdef struct Pair:
    const uint8_t *name
    const uint8_t *value
    int64_t name_length
    int64_t value_length


cdef inline bint is_ascii(const uint8_t *text, int64_t length) noexcept nogil:
    cdef uint64_t word, found = 0
    cdef int64_t at = 0
    while at + 8 <= length:
        memcpy(&word, text + at, 8)
        found |= word
        at += 8
    while at < length:
        found |= text[at]
        at += 1
    return not found & HIGH


cdef inline bint same(const uint8_t *one, int64_t length, const uint8_t *other, int64_t other_length) noexcept nogil:
    return length == other_length and memcmp(one, other, length) == 0


cdef int64_t pairs_of(
    const uint8_t *text, int64_t length, Pair *found, Pair *before, int64_t before_count, bint *alike
) noexcept nogil:
    """The pairs of a text that have a name and a value; -1 if there are too many.

    A name that the record before has at the same place is compared with it, and not looked for. ``alike`` becomes
    whether that was so for all, and there are as many.
    """
    cdef const uint8_t *place = text
    cdef const uint8_t *end = text + length
    cdef const uint8_t *stop
    cdef const uint8_t *middle
    cdef int64_t count = 0, width
    alike[0] = True
    while place < end:
        width = before[count].name_length if count < before_count else end - place
        if width < end - place and place[width] == NAME_END and memcmp(place, before[count].name, width) == 0:
            middle = place + width
            stop = <const uint8_t *>memchr(middle, VALUE_END, end - middle)
            if stop == NULL:
                stop = end
        else:
            alike[0] = False
            stop = <const uint8_t *>memchr(place, VALUE_END, end - place)
            if stop == NULL:
                stop = end
            middle = <const uint8_t *>memchr(place, NAME_END, stop - place)
        if middle != NULL and middle > place and middle + 1 < stop:
            if count == MOST:
                return -1
            found[count].name = place
            found[count].name_length = middle - place
            found[count].value = middle + 1
            found[count].value_length = stop - middle - 1
            count += 1
        place = stop + 1
    alike[0] = alike[0] and count == before_count
    return count


cdef int64_t without_repeats(Pair *pairs, int64_t count) noexcept nogil:
    """Of two pairs of the same name the later stays; how many stay."""
    cdef int64_t number, later, kept = 0
    for number in range(count):
        for later in range(number + 1, count):
            if same(pairs[number].name, pairs[number].name_length, pairs[later].name, pairs[later].name_length):
                break
        else:
            pairs[kept] = pairs[number]
            kept += 1
    return kept


def split(
    const uint8_t[::1] data, const int64_t[::1] starts, const int64_t[::1] lengths, tuple wanted,
    int32_t[::1] first_pairs, int32_t[::1] name_offsets, uint8_t[::1] names, int32_t[::1] value_offsets,
    uint8_t[::1] values, int32_t[:, ::1] places,
):
    """Split the texts that begin at ``starts``; how many pairs there are, or ``None`` if a record has too many.

    Args:
        wanted: names; ``places`` becomes the number of each record's pair of that name, or -1
        names: as large as all texts together, as ``values``; there are offsets for a pair of each four bytes

    Raises:
        UnicodeDecodeError: the texts are not UTF-8.
    """
    cdef Pair first_half[MOST]
    cdef Pair second_half[MOST]
    cdef Pair *pairs = first_half
    cdef Pair *before = second_half
    cdef int64_t columns[WANTED]
    cdef int64_t records = starts.shape[0], record, number, count, before_count = -1, start, length, total = 0
    cdef int64_t at = 0, name_at = 0, value_at = 0, block = 0, width
    cdef const uint8_t *text
    cdef bytes name
    cdef bint alike
    if len(wanted) > WANTED or places.shape[0] != len(wanted) or places.shape[1] < records:
        raise ValueError("there is no room for the places of the wanted names")
    if lengths.shape[0] != records or first_pairs.shape[0] <= records:
        raise ValueError("the records' starts, lengths and first pairs are not as many")
    for record in range(records):
        start, length = starts[record], lengths[record]
        if start < 0 or length < 0 or length > data.shape[0] or start > data.shape[0] - length:
            raise ValueError("a text lies outside the data")
        total += length
    if total > names.shape[0] or total > values.shape[0] or total > 0x7FFFFFFF:
        raise ValueError("there is no room for the texts")
    # A pair has four bytes at least, but for the last one of a text, which may lack its end.
    if (total + records) // 4 >= name_offsets.shape[0] or (total + records) // 4 >= value_offsets.shape[0]:
        raise ValueError("there is no room for the offsets")
    for record in range(records):
        first_pairs[record] = <int32_t>at
        length = lengths[record]
        text = &data[0] + starts[record] if length else NULL
        if not is_ascii(text, length):
            PyUnicode_DecodeUTF8(<const char *>text, length, NULL)
        count = pairs_of(text, length, pairs, before, before_count, &alike)
        if count < 0:
            return None
        if not alike:
            count = without_repeats(pairs, count)
            for number in range(len(wanted)):
                name = wanted[number]
                columns[number] = -1
                for width in range(count):
                    if same(
                        pairs[width].name, pairs[width].name_length,
                        <const uint8_t *>PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name),
                    ):
                        columns[number] = width
        if alike and count:
            memcpy(&names[0] + name_at, &names[0] + name_at - block, block)
        else:
            block = 0
            for number in range(count):
                memcpy(&names[0] + name_at + block, pairs[number].name, pairs[number].name_length)
                block += pairs[number].name_length
        for number in range(places.shape[0]):
            places[number, record] = <int32_t>(at + columns[number]) if columns[number] >= 0 else -1
        for number in range(count):
            name_offsets[at] = <int32_t>name_at
            value_offsets[at] = <int32_t>value_at
            at += 1
            name_at += pairs[number].name_length
            width = pairs[number].value_length
            memcpy(&values[0] + value_at, pairs[number].value, width)
            value_at += width
        before_count = count
        pairs, before = before, pairs
    first_pairs[records] = <int32_t>at
    name_offsets[at] = <int32_t>name_at
    value_offsets[at] = <int32_t>value_at
    return at
