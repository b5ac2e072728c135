# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""What the client does for each message, compiled: records of a pull's answer, and frames of plain sends.

``record.py`` and ``template.py`` are the reference. A record, as it lies in an answer and in the log::

    size i4 | magic i4 | crc i4 | queue i4 | flag i4 | queue offset i8 | offset i8 | system flag i4 | born i8 | born host
    | stored i8 | store host | times i4 | prepared i8 | length i4, body | length i1, topic | length i2, properties

A frame: ``length i4 | header length i4 | header in JSON | body``. Nothing is read before its place is checked.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE

from zlib import crc32

from orjson import dumps

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
    MAGIC = 0xDAA320A7
    HEAD = 88           # of a record, with IPv4 addresses
    LEAST = 91          # with a body, a topic and properties of no bytes
    IPV6 = 0x30
    DIGITS = 20         # of the longest number

cdef int64_t UNLIMITED = 0x7FFFFFFFFFFFFFFF


cdef class MessageFields:
    """The twin of ``record.MessageFields``."""

    cdef public str topic
    cdef public object queue
    cdef public int64_t queue_offset, commit_log_offset, size, flag, sys_flag
    cdef public int64_t born_timestamp, store_timestamp, reconsume_times, prepared_transaction_offset
    cdef public bytes _born_host, _store_host, _body, _raw_properties
    cdef public dict _properties
    cdef public int64_t _limit
    cdef public object _body_error, _receipt

    def __init__(
        self, str topic, queue, int64_t queue_offset, int64_t commit_log_offset, int64_t size, int64_t flag,
        int64_t sys_flag, int64_t born_timestamp, bytes born_host, int64_t store_timestamp, bytes store_host,
        int64_t reconsume_times, int64_t prepared_transaction_offset, bytes body, bytes raw_properties,
        int64_t limit=UNLIMITED, dict properties=None,
    ):
        self.topic = topic
        self.queue = queue
        self.queue_offset = queue_offset
        self.commit_log_offset = commit_log_offset
        self.size = size
        self.flag = flag
        self.sys_flag = sys_flag
        self.born_timestamp = born_timestamp
        self._born_host = born_host
        self.store_timestamp = store_timestamp
        self._store_host = store_host
        self.reconsume_times = reconsume_times
        self.prepared_transaction_offset = prepared_transaction_offset
        self._body = body
        self._raw_properties = raw_properties
        self._limit = limit
        self._properties = properties


cdef inline uint32_t word(const uint8_t *at) noexcept:
    return <uint32_t>at[0] << 24 | <uint32_t>at[1] << 16 | <uint32_t>at[2] << 8 | at[3]


cdef inline int64_t long_word(const uint8_t *at) noexcept:
    return <int64_t>(<uint64_t>word(at) << 32 | word(at + 4))


def decode_plain(
    type kind, bytes data not None, Py_ssize_t position, queue, str topic, int64_t limit, int64_t first,
    int64_t following, list messages not None,
):
    """Append the plain records from ``position`` on as messages of a ``kind``; say where the first other one begins."""
    cdef const uint8_t *at = <const uint8_t *>PyBytes_AS_STRING(data)
    cdef Py_ssize_t end = PyBytes_GET_SIZE(data), after, topic_at, properties_at
    cdef const uint8_t *head
    cdef int64_t size, body_size, offset
    cdef uint32_t flags
    cdef bytes body
    cdef MessageFields message
    if not issubclass(kind, MessageFields):
        raise TypeError(f"{kind!r} has not the fields of a message")
    if position < 0:
        raise IndexError(f"place {position}")
    while end - position > LEAST:
        head = at + position
        size = <int32_t>word(head)
        body_size = <int32_t>word(head + 84)
        flags = word(head + 36)
        if word(head + 4) != MAGIC or flags & IPV6 or size > end - position or not 0 <= body_size <= size - LEAST:
            break
        after = position + <Py_ssize_t>size
        topic_at = position + HEAD + <Py_ssize_t>body_size      # at most after - 3
        properties_at = topic_at + 1 + at[topic_at]
        if properties_at + 2 > after or properties_at + 2 + (at[properties_at] << 8 | at[properties_at + 1]) != after:
            break
        offset = long_word(head + 20)
        if not first <= offset < following:
            break
        body = PyBytes_FromStringAndSize(<const char *>head + HEAD, <Py_ssize_t>body_size)
        if <uint32_t>(crc32(body) & 0x7FFFFFFF) != word(head + 8):
            break
        message = <MessageFields>kind.__new__(kind)
        message.topic = topic
        message.queue = queue
        message.queue_offset = offset
        message.commit_log_offset = long_word(head + 28)
        message.size = size
        message.flag = <int32_t>word(head + 16)
        message.sys_flag = <int32_t>flags
        message.born_timestamp = long_word(head + 40)
        message._born_host = PyBytes_FromStringAndSize(<const char *>head + 48, 8)
        message.store_timestamp = long_word(head + 56)
        message._store_host = PyBytes_FromStringAndSize(<const char *>head + 64, 8)
        message.reconsume_times = <int32_t>word(head + 72)
        message.prepared_transaction_offset = long_word(head + 76)
        message._body = body
        message._raw_properties = PyBytes_FromStringAndSize(<const char *>at + properties_at + 2, after - properties_at - 2)
        message._limit = limit
        messages.append(message)
        position = after
    return position


cdef class FilledTemplate:
    """Fills the gaps of a send's header: time, flag, properties and opaque stand between the five ``parts``."""

    cdef tuple parts
    cdef Py_ssize_t fixed

    def __init__(self, *parts):
        if len(parts) != 5 or not all(isinstance(part, bytes) for part in parts):
            raise ValueError("a header with four gaps has five parts")
        self.parts = parts
        self.fixed = sum(map(len, parts))

    def frame(self, int64_t born_ms, int64_t flag, str properties not None, int64_t opaque, bytes body not None):
        cdef bytes text = dumps(properties)
        cdef Py_ssize_t body_size = PyBytes_GET_SIZE(body), header
        cdef uint8_t digits[3][DIGITS + 1]
        cdef Py_ssize_t born_size = decimal(born_ms, digits[0])
        cdef Py_ssize_t flag_size = decimal(flag, digits[1])
        cdef Py_ssize_t opaque_size = decimal(opaque, digits[2])
        cdef bytes made
        cdef uint8_t *to
        header = self.fixed + born_size + flag_size + PyBytes_GET_SIZE(text) + opaque_size
        if header > 0x7FFFFFFF or body_size > 0x7FFFFFFF - 4 - header:
            raise ValueError(f"a frame with {header} bytes of header and {body_size} of body")
        made = PyBytes_FromStringAndSize(NULL, 8 + header + body_size)
        to = <uint8_t *>PyBytes_AS_STRING(made)
        to = put_word(to, <uint32_t>(4 + header + body_size))
        to = put_word(to, <uint32_t>header)
        to = put(to, <bytes>self.parts[0])
        to = put_bytes(to, digits[0], born_size)
        to = put(to, <bytes>self.parts[1])
        to = put_bytes(to, digits[1], flag_size)
        to = put(to, <bytes>self.parts[2])
        to = put(to, text)
        to = put(to, <bytes>self.parts[3])
        to = put_bytes(to, digits[2], opaque_size)
        to = put(to, <bytes>self.parts[4])
        put(to, body)
        return made


cdef Py_ssize_t decimal(int64_t value, uint8_t *to) noexcept:
    """Write a number, 20 characters at most; say how many."""
    cdef uint8_t reversed_[DIGITS]
    cdef Py_ssize_t count = 0, size = 0
    cdef uint64_t left = <uint64_t>value
    if value < 0:
        left = <uint64_t>(-(value + 1)) + 1
        to[0] = 45
        size = 1
    while True:
        reversed_[count] = 48 + left % 10
        count += 1
        left //= 10
        if left == 0:
            break
    while count:
        count -= 1
        to[size] = reversed_[count]
        size += 1
    return size


cdef inline uint8_t *put_word(uint8_t *to, uint32_t value) noexcept:
    to[0] = value >> 24
    to[1] = (value >> 16) & 255
    to[2] = (value >> 8) & 255
    to[3] = value & 255
    return to + 4


cdef inline uint8_t *put_bytes(uint8_t *to, const uint8_t *data, Py_ssize_t size) noexcept:
    memcpy(to, data, size)
    return to + size


cdef inline uint8_t *put(uint8_t *to, bytes data):
    return put_bytes(to, <const uint8_t *>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
