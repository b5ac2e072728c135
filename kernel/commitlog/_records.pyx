# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""Whole records, compiled: whether one lies at a place, and what a row of them tells (``integrity.py`` and
``recovery.event_of`` are the reference).

Only a yes is said here, with all the checks that Python makes. Whatever is not plainly a whole record, with IPv4
addresses and a body, is left to Python, which says what is wrong with it. Everything is read through a view, which
checks each place, or compared with so many bytes of it as were found to be there.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp
from zlib import crc32

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
    HEAD = 88
    SMALLEST = 91
    SECTOR = 512
    HOSTS_V6 = 0x30
    NOT_PLAIN = 0x0C    # parts of transactions, some of which are in no queue
    SMALLEST_SHARE = 20

cdef bytes UNIQUE = b"UNIQ_KEY\x01"
cdef bytes KEYS = b"KEYS\x01"

cdef uint32_t V1 = 0xDAA320A7
cdef uint32_t V2 = 0xDAA320AB


cdef inline uint32_t word(const uint8_t[::1] data, Py_ssize_t at) except? 0:
    return <uint32_t>data[at] << 24 | <uint32_t>data[at + 1] << 16 | <uint32_t>data[at + 2] << 8 | data[at + 3]


cdef inline int32_t number(const uint8_t[::1] data, Py_ssize_t at) except? 0:
    return <int32_t>word(data, at)


cdef inline int64_t long_number(const uint8_t[::1] data, Py_ssize_t at) except? 0:
    return <int64_t>(<uint64_t>word(data, at) << 32 | word(data, at + 4))


cdef bint is_name(const uint8_t[::1] data, Py_ssize_t start, Py_ssize_t stop) except -1:
    """Printable ASCII without a slash."""
    cdef Py_ssize_t i
    cdef uint8_t c
    for i in range(start, stop):
        c = data[i]
        if c < 33 or c > 126 or c == 47:
            return False
    return True


cdef bint has_lost_a_sector(const uint8_t[::1] data, Py_ssize_t first, Py_ssize_t stop) except -1:
    """Whether a sector that begins at or behind ``first`` is zero."""
    cdef Py_ssize_t sector = (first + SECTOR - 1) // SECTOR * SECTOR, end, i
    while sector < stop:
        end = min(sector + SECTOR, stop)
        i = sector
        while i < end and not data[i]:
            i += 1
        if i == end:
            return True
        sector += SECTOR
    return False


cdef struct Fields:
    Py_ssize_t size, stop, body, topic, topic_length, properties, properties_length
    int64_t body_length, queue_offset, store_timestamp, prepared
    uint32_t magic, crc
    int32_t queue_id, sys_flag, reconsume_times


cdef bint look(
    const uint8_t[::1] data, Py_ssize_t position, Py_ssize_t end, int64_t commit_log_offset, Fields *f
) except -1:
    """Whether a whole record lies there, plainly; then its fields, and each of its parts lies before ``end``."""
    cdef int64_t size, stop, body_length
    cdef Py_ssize_t topic, properties
    if position < 0 or end > data.shape[0] or end - position < SMALLEST:
        return False
    size = number(data, position)
    f.magic = word(data, position + 4)
    if (f.magic != V1 and f.magic != V2) or not SMALLEST <= size <= end - position:
        return False
    f.sys_flag = number(data, position + 36)
    if f.sys_flag & HOSTS_V6 or long_number(data, position + 28) != commit_log_offset:
        return False
    stop = position + size
    body_length = number(data, position + 84)
    if body_length <= 0 or position + HEAD + body_length + 2 > stop:
        return False
    f.size = size
    f.stop = stop
    f.body = position + HEAD
    f.body_length = body_length
    topic = f.body + body_length + 1
    f.topic_length = data[topic - 1]
    if f.magic == V2:
        f.topic_length = f.topic_length << 8 | data[topic]
        topic += 1
    properties = topic + f.topic_length + 2
    if properties > stop:
        return False
    f.topic = topic
    f.properties = properties
    f.properties_length = data[properties - 2] << 8 | data[properties - 1]
    if properties + f.properties_length != stop:
        return False
    f.queue_id = number(data, position + 12)
    f.queue_offset = long_number(data, position + 20)
    if f.queue_id < 0 or not 0 <= f.queue_offset <= commit_log_offset // SMALLEST_SHARE:
        return False
    if not is_name(data, topic, topic + f.topic_length):
        return False
    if f.properties_length and (not data[stop - 1] or has_lost_a_sector(data, topic, stop)):
        return False
    f.crc = word(data, position + 8)
    if crc32(data[f.body : f.body + body_length]) & 0x7FFFFFFF != f.crc:
        return False
    f.store_timestamp = long_number(data, position + 56)
    f.reconsume_times = number(data, position + 72)
    f.prepared = long_number(data, position + 76)
    return True


def whole_record(const uint8_t[::1] data, Py_ssize_t position, Py_ssize_t end, int64_t commit_log_offset):
    """The fields of ``RecordLayout``; ``None`` if Python has to look."""
    cdef Fields f
    if not look(data, position, end, commit_log_offset, &f):
        return None
    return (
        position, f.size, f.magic, f.crc, f.queue_id, number(data, position + 16), f.queue_offset, commit_log_offset,
        f.sys_flag, long_number(data, position + 40), bytes(data[position + 48 : position + 56]), f.store_timestamp,
        bytes(data[position + 64 : position + 72]), f.reconsume_times, f.prepared, f.body_length, f.body, f.topic,
        f.topic_length, f.properties, f.properties_length,
    )


# --- records in columns --------------------------------------------------------------------


@cython.final
cdef class Column:
    """Records of one queue whose offsets follow each other, and which differ in nothing that a run has once."""

    cdef readonly str topic
    cdef readonly int32_t queue_id, sys_flag, reconsume_times
    cdef readonly int64_t queue_offset, store_timestamp
    cdef readonly Py_ssize_t head_size
    cdef readonly bytes store_host
    cdef readonly list offsets, sizes, codes, uniques, keys, texts, rests, born_timestamps
    cdef bytes name, rest
    cdef int64_t following, code

    cdef bint goes_on(self, const uint8_t[::1] data, Py_ssize_t position, Fields *f) except -1:
        """Whether a record is its next one."""
        return (
            self.following == f.queue_offset and self.queue_id == f.queue_id
            and self.store_timestamp == f.store_timestamp and self.sys_flag == f.sys_flag
            and self.reconsume_times == f.reconsume_times and self.head_size == head_size(f)
            and same(data, f.topic, f.topic + f.topic_length, self.name, 0) and len(self.name) == f.topic_length
            and same(data, position + 64, position + 72, self.store_host, 0)
        )


cdef Py_ssize_t head_size(Fields *f) noexcept:
    """Of a record: all but its body and its properties."""
    return f.size - f.body_length - f.properties_length - 2


cdef bint same(const uint8_t[::1] data, Py_ssize_t start, Py_ssize_t stop, bytes other, Py_ssize_t at) except -1:
    """Whether these bytes are those of ``other`` from a place on."""
    cdef Py_ssize_t size = stop - start
    if size <= 0:
        return size == 0
    if stop > data.shape[0] or at + size > PyBytes_GET_SIZE(other):
        return False
    return memcmp(&data[start], PyBytes_AS_STRING(other) + at, size) == 0


cdef struct Text:
    Py_ssize_t unique, unique_end, keys, keys_end   # their pairs, with names and ends; nothing if there are no keys


cdef bint split(const uint8_t[::1] data, Py_ssize_t start, Py_ssize_t stop, Text *text) except -1:
    """Find unique key and keys in properties of ASCII; false if the unique key lacks, or one comes twice."""
    cdef Py_ssize_t at, end
    text.unique = text.unique_end = text.keys = text.keys_end = -1
    for at in range(start, stop):
        if data[at] > 127:
            return False
    at = start
    while at < stop:
        end = at
        while end < stop and data[end] != 2:
            end += 1
        end = min(end + 1, stop)
        if end - at > 9 and same(data, at, at + 9, UNIQUE, 0):
            if text.unique >= 0:
                return False
            text.unique, text.unique_end = at, end
        elif end - at > 5 and same(data, at, at + 5, KEYS, 0):
            if text.keys >= 0:
                return False
            text.keys, text.keys_end = at, end
        at = end
    if text.keys < 0:
        text.keys = text.keys_end = stop
    return text.unique >= 0


cdef bytes value_of(const uint8_t[::1] data, Py_ssize_t start, Py_ssize_t end):
    """What a pair has behind its name, without its end."""
    if end > start and data[end - 1] == 2:
        end -= 1
    return bytes(data[start:end]) if end > start else b""


cdef bint look_up(
    const uint8_t[::1] data, Py_ssize_t start, Py_ssize_t stop, Text *text, Column column, codes
) except -1:
    """Find the tags code by what the properties have beside keys; false if they are not plain."""
    cdef Py_ssize_t first = text.unique, first_end = text.unique_end, second = text.keys, second_end = text.keys_end
    cdef Py_ssize_t before, between
    if second < first:
        first, first_end, second, second_end = second, second_end, first, first_end
    before = first - start
    between = before + second - first_end
    if (
        column.rest is not None and PyBytes_GET_SIZE(column.rest) == between + stop - second_end
        and same(data, start, first, column.rest, 0) and same(data, first_end, second, column.rest, before)
        and same(data, second_end, stop, column.rest, between)
    ):
        return True
    rest = bytes(data[start:first]) + bytes(data[first_end:second]) + bytes(data[second_end:stop])
    code = codes(rest)
    if code is None:
        return False
    column.code = code
    column.rest = rest
    column.rests.append(rest)
    return True


def columns(const uint8_t[::1] data, Py_ssize_t position, Py_ssize_t end, int64_t commit_log_offset, topics, codes):
    """Whole records from ``position`` on in columns, each the twin of a run, and where the first lies that is not plain.

    ``topics(name)`` is the topic as text, ``None`` if its records are not plain; ``codes(rest)`` the tags code of
    properties without keys and unique key.
    """
    cdef Fields f
    cdef Text text
    cdef Column column = None
    cdef dict known = {}
    cdef list found = []
    while look(data, position, end, commit_log_offset, &f):
        if f.sys_flag & NOT_PLAIN or f.prepared or not split(data, f.properties, f.stop, &text):
            break
        unique = value_of(data, text.unique + 9, text.unique_end)
        if not unique:
            break
        if column is None or not column.goes_on(data, position, &f):
            name = bytes(data[f.topic : f.topic + f.topic_length])
            column = known.get((name, f.queue_id))
            if column is None or not column.goes_on(data, position, &f):
                topic = topics(name)
                if topic is None:
                    break
                column = Column()
                column.topic, column.name, column.queue_id, column.sys_flag = topic, name, f.queue_id, f.sys_flag
                column.queue_offset = column.following = f.queue_offset
                column.store_timestamp, column.reconsume_times = f.store_timestamp, f.reconsume_times
                column.head_size = head_size(&f)
                column.store_host = bytes(data[position + 64 : position + 72])
                column.offsets, column.sizes, column.codes, column.uniques = [], [], [], []
                column.keys, column.texts, column.rests, column.born_timestamps = [], [], [], []
        if not look_up(data, f.properties, f.stop, &text, column, codes):
            break
        if not column.offsets:
            known[column.name, column.queue_id] = column
            found.append(column)
        column.offsets.append(commit_log_offset)
        column.sizes.append(f.size)
        column.codes.append(column.code)
        column.uniques.append(unique)
        column.keys.append(value_of(data, text.keys + 5, text.keys_end))
        column.texts.append(bytes(data[f.properties - 2 : f.stop]))
        column.born_timestamps.append(long_number(data, position + 40))
        column.following += 1
        position += f.size
        commit_log_offset += f.size
    return found, position
