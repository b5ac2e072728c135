# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""Whether a whole record lies at a place, compiled (``integrity.py`` is the reference).

Only a yes is said here, with all the checks that Python makes. Whatever is not plainly a whole record, with IPv4
addresses and a body, is left to Python, which says what is wrong with it. Everything is read through a view, which
checks each place.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
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
    SMALLEST_SHARE = 20

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


def whole_record(const uint8_t[::1] data, Py_ssize_t position, Py_ssize_t end, int64_t commit_log_offset):
    """The fields of ``RecordLayout``; ``None`` if Python has to look."""
    cdef Py_ssize_t size, stop, body, topic, topic_length, properties, properties_length
    cdef int64_t body_length, queue_offset
    cdef uint32_t magic
    cdef int32_t queue_id
    if position < 0 or end > data.shape[0] or end - position < SMALLEST:
        return None
    size = number(data, position)
    magic = word(data, position + 4)
    if (magic != V1 and magic != V2) or not SMALLEST <= size <= end - position:
        return None
    if word(data, position + 36) & HOSTS_V6 or long_number(data, position + 28) != commit_log_offset:
        return None
    stop = position + size
    body = position + HEAD
    body_length = number(data, position + 84)
    if body_length <= 0 or body + body_length + 2 > stop:
        return None
    topic = body + body_length + 1
    topic_length = data[topic - 1]
    if magic == V2:
        topic_length = topic_length << 8 | data[topic]
        topic += 1
    properties = topic + topic_length + 2
    if properties > stop:
        return None
    properties_length = data[properties - 2] << 8 | data[properties - 1]
    if properties + properties_length != stop:
        return None
    queue_id = number(data, position + 12)
    queue_offset = long_number(data, position + 20)
    if queue_id < 0 or not 0 <= queue_offset <= commit_log_offset // SMALLEST_SHARE:
        return None
    if not is_name(data, topic, topic + topic_length):
        return None
    if properties_length and (not data[stop - 1] or has_lost_a_sector(data, topic, stop)):
        return None
    if crc32(data[body : body + body_length]) & 0x7FFFFFFF != word(data, position + 8):
        return None
    return (
        position, size, magic, number(data, position + 8), queue_id, number(data, position + 16), queue_offset,
        commit_log_offset, number(data, position + 36), long_number(data, position + 40),
        bytes(data[position + 48 : position + 56]), long_number(data, position + 56),
        bytes(data[position + 64 : position + 72]), number(data, position + 72), long_number(data, position + 76),
        body_length, body, topic, topic_length, properties, properties_length,
    )
