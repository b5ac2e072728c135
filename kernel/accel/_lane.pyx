# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""Plain sends from the bytes of a chunk to records and answers, compiled (the chain in Python is the reference).

A chunk is frames, one behind the other; the last one may be unfinished::

    length i4 | form i1, header length i3 | header, JSON or binary | body

Of a header these fields count, under their short names: a group, b topic, e queue id, f system flag, g born, h flag,
i properties, j times consumed before. The body of a send is that of one record; the body of a batch is messages, each of
which becomes a record::

    size i4 | 0 i4 | 0 i4 | flag i4 | length i4, body | length i2, properties

    size i4 | magic i4 | crc i4 | queue i4 | flag i4 | queue offset i8 | offset i8 | system flag i4 | born i8 | born host
    | stored i8 | store host | times i4 | prepared i8 | length i4, body | length i1, topic | length i2, properties

Nothing here changes anything but its own buffers: ``take`` says which records belong at the end of the log and what is
answered to them, and its caller writes both. A frame that is not plain ends it, with whatever could be wrong about it:
it is left to Python, which serves it or says what is wrong.

A frame is read and checked first, into a :class:`Header` and a :class:`Message` for each record, then its records are written,
then its answer, in the form of the header. Everything is read through :class:`Chunk`, which checks each place, and written
through :class:`Writer`, which asks for room before each piece.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memchr, memcmp, memcpy
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE

cimport cython

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
    FIELDS = 14         # a to n
    SEND = 310
    BATCH = 320
    ONEWAY = 2
    SECTOR = 512        # longer properties are looked through for what a torn record would have
    HEAD = 88           # of a record, with IPv4 addresses
    MAGIC = 0xDAA320A7
    MOST_IN_BATCH = 1024

cdef struct Header:
    int64_t code
    int64_t flag
    int64_t version
    int64_t opaque
    Py_ssize_t language
    Py_ssize_t language_size
    Py_ssize_t at[FIELDS]
    Py_ssize_t size[FIELDS]     # -1: the field is not there
    bint escaped                # the properties have to be unescaped

cdef struct Message:
    Py_ssize_t body, body_end
    Py_ssize_t tail, tail_end   # in a batch: length and text of the properties
    Py_ssize_t unique, unique_end, words, words_end     # in the text of the properties
    int64_t code                # of its tags
    int64_t flag
    int64_t place               # in the log, once it is written


@cython.final
cdef class Chunk:
    """Bytes of which no place outside is ever read. Whoever points it at some keeps them as long as it is used."""

    cdef const uint8_t *first
    cdef Py_ssize_t size

    cdef void point(self, const uint8_t *first, Py_ssize_t size) noexcept:
        self.first = first
        self.size = size

    cdef inline int at(self, Py_ssize_t place) except -1:
        if place < 0 or place >= self.size:
            raise IndexError(f"place {place} of {self.size} bytes")
        return self.first[place]

    cdef inline int check(self, Py_ssize_t start, Py_ssize_t stop) except -1:
        """That all places from ``start`` to before ``stop`` are inside."""
        if start < 0 or stop < start or stop > self.size:
            raise IndexError(f"{start} to {stop} of {self.size} bytes")
        return 0

    cdef inline int64_t unsigned(self, Py_ssize_t place) except -1:
        """Four bytes as a number."""
        if place < 0 or place > self.size - 4:
            raise IndexError(f"place {place} of {self.size} bytes")
        return (
            <int64_t>self.first[place] << 24 | <int64_t>self.first[place + 1] << 16
            | <int64_t>self.first[place + 2] << 8 | self.first[place + 3]
        )

    cdef inline int32_t signed(self, Py_ssize_t place) except? -1:
        return <int32_t><uint32_t>self.unsigned(place)

    cdef bytes cut(self, Py_ssize_t start, Py_ssize_t stop):
        self.check(start, stop)
        return PyBytes_FromStringAndSize(<const char *>self.first + start, stop - start)

    cdef Py_ssize_t find(self, bytes what, Py_ssize_t start, Py_ssize_t stop) except -2:
        """Where these bytes are for the first time, from ``start`` to before ``stop``; -1 if nowhere."""
        cdef Py_ssize_t size = PyBytes_GET_SIZE(what)
        cdef const char *wanted = PyBytes_AS_STRING(what)
        cdef const uint8_t *found
        self.check(start, stop)
        while stop - start >= size:
            found = <const uint8_t *>memchr(self.first + start, wanted[0], stop - start - size + 1)
            if found == NULL:
                return -1
            start = found - self.first
            if memcmp(found, wanted, size) == 0:
                return start
            start += 1
        return -1

    cdef bint equals(self, Py_ssize_t start, Py_ssize_t stop, bytes other, Py_ssize_t at) except -1:
        """Whether these bytes are those of ``other`` at ``at``."""
        self.check(start, stop)
        if at < 0 or at > PyBytes_GET_SIZE(other) - (stop - start):
            raise IndexError(f"{stop - start} at {at} of {PyBytes_GET_SIZE(other)} bytes")
        return memcmp(self.first + start, PyBytes_AS_STRING(other) + at, stop - start) == 0


@cython.final
cdef class Writer:
    """Bytes that grow at their end."""

    cdef uint8_t *data
    cdef Py_ssize_t size
    cdef Py_ssize_t room

    def __cinit__(self):
        self.data = NULL
        self.size = self.room = 0

    def __dealloc__(self):
        free(self.data)

    cdef inline int need(self, Py_ssize_t more) except -1:
        cdef uint8_t *grown
        cdef Py_ssize_t room
        if more < 0:
            raise ValueError("a negative length")
        if more > self.room - self.size:
            room = (self.size + more) * 2
            grown = <uint8_t *>realloc(self.data, room)
            if grown == NULL:
                raise MemoryError
            self.data = grown
            self.room = room
        return 0

    cdef inline int put(self, bytes text) except -1:
        cdef Py_ssize_t size = PyBytes_GET_SIZE(text)
        self.need(size)
        memcpy(self.data + self.size, PyBytes_AS_STRING(text), size)
        self.size += size
        return 0

    cdef int copy(self, Chunk source, Py_ssize_t start, Py_ssize_t stop) except -1:
        source.check(start, stop)
        self.need(stop - start)
        memcpy(self.data + self.size, source.first + start, stop - start)
        self.size += stop - start
        return 0

    cdef inline int byte(self, uint8_t value) except -1:
        self.need(1)
        self.data[self.size] = value
        self.size += 1
        return 0

    cdef inline int word(self, uint32_t value) except -1:
        self.need(4)
        self.set_word(self.size, value)
        self.size += 4
        return 0

    cdef inline void set_word(self, Py_ssize_t at, uint32_t value) noexcept:
        self.data[at] = value >> 24
        self.data[at + 1] = (value >> 16) & 255
        self.data[at + 2] = (value >> 8) & 255
        self.data[at + 3] = value & 255

    cdef inline int long_word(self, uint64_t value) except -1:
        self.word(<uint32_t>(value >> 32))
        self.word(<uint32_t>(value & 0xFFFFFFFF))
        return 0

    cdef int decimal(self, int64_t value) except -1:
        cdef uint8_t digits[24]
        cdef int count = 0
        cdef uint64_t left
        if value < 0:
            self.byte(45)
            left = <uint64_t>(-(value + 1)) + 1
        else:
            left = <uint64_t>value
        while True:
            digits[count] = 48 + left % 10
            count += 1
            left //= 10
            if left == 0:
                break
        self.need(count)
        while count:
            count -= 1
            self.data[self.size] = digits[count]
            self.size += 1
        return 0

    cdef int hexadecimal(self, uint64_t value) except -1:
        cdef int i
        cdef uint8_t digit
        self.need(16)
        for i in range(16):
            digit = (value >> (60 - 4 * i)) & 15
            self.data[self.size + i] = 48 + digit if digit < 10 else 55 + digit
        self.size += 16
        return 0

    cdef bytes taken(self):
        """What was written; it begins anew."""
        cdef bytes result = PyBytes_FromStringAndSize(<char *>self.data, self.size) if self.size else b""
        self.size = 0
        return result


# --- headers -------------------------------------------------------------------------------

cdef Py_ssize_t string_end(Chunk d, Py_ssize_t at, Py_ssize_t end, bint *escaped) except -2:
    """Where the closing quote of a string is; -1 unless it is ASCII and escapes."""
    cdef uint8_t c
    d.check(at, end)
    while at < end:
        c = d.first[at]
        if c == 34:
            return at
        if c < 32 or c > 127:
            return -1
        if c == 92:
            escaped[0] = True
            at += 1
        at += 1
    return -1


cdef Py_ssize_t integer(Chunk d, Py_ssize_t at, Py_ssize_t end, int64_t *value) except -2:
    """Where a plain integer ends; -1 if there is none, or a large one."""
    cdef bint negative = at < end and d.at(at) == 45
    cdef Py_ssize_t start
    cdef int64_t read = 0
    if negative:
        at += 1
    start = at
    while at < end and at - start < 10 and 48 <= d.at(at) <= 57:
        read = read * 10 + d.at(at) - 48
        at += 1
    if at == start or (d.at(start) == 48 and (at - start > 1 or negative)):
        return -1
    value[0] = -read if negative else read
    return at


cdef inline bint is_name(Chunk d, Py_ssize_t at, Py_ssize_t size, bytes name) except -1:
    return size == PyBytes_GET_SIZE(name) and d.equals(at, at + size, name, 0)


cdef Py_ssize_t read_fields(Chunk d, Py_ssize_t at, Py_ssize_t end, Header *h) except -2:
    """``{"a":"…","b":"…"}``: where it ends; -1 for any other form."""
    cdef Py_ssize_t name, stop
    cdef int field
    cdef bint escaped = False
    if at >= end or d.at(at) != 123:
        return -1
    at += 1
    while True:
        if at >= end or d.at(at) != 34:
            return -1
        name = at + 1
        stop = string_end(d, name, end, &escaped)
        if stop < 0 or escaped or stop + 2 >= end or d.at(stop + 1) != 58 or d.at(stop + 2) != 34:
            return -1
        field = d.at(name) - 97 if stop - name == 1 else -1
        at = stop + 3
        stop = string_end(d, at, end, &escaped)
        if stop < 0 or (escaped and field != 8):
            return -1
        if 0 <= field < FIELDS:
            if h.size[field] >= 0:
                return -1  # twice
            h.at[field] = at
            h.size[field] = stop - at
        if escaped:
            h.escaped = True
            escaped = False
        at = stop + 1
        if at >= end:
            return -1
        if d.at(at) == 125:
            return at + 1
        if d.at(at) != 44:
            return -1
        at += 1


cdef bint read_json(Chunk d, Py_ssize_t at, Py_ssize_t end, Header *h) except -1:
    """The members that each client writes, in any order, each once, without a space between them."""
    cdef Py_ssize_t name, stop, size
    cdef int seen = 0, member
    cdef bint escaped = False
    if end - at < 2 or d.at(at) != 123 or d.at(end - 1) != 125:
        return False
    at += 1
    while True:
        if at >= end or d.at(at) != 34:
            return False
        name = at + 1
        stop = string_end(d, name, end, &escaped)
        if stop < 0 or escaped or stop + 1 >= end or d.at(stop + 1) != 58:
            return False
        size = stop - name
        at = stop + 2
        if is_name(d, name, size, b"extFields"):
            member = 1
            at = read_fields(d, at, end, h)
        elif is_name(d, name, size, b"code"):
            member = 2
            at = integer(d, at, end, &h.code)
        elif is_name(d, name, size, b"flag"):
            member = 4
            at = integer(d, at, end, &h.flag)
        elif is_name(d, name, size, b"opaque"):
            member = 8
            at = integer(d, at, end, &h.opaque)
        elif is_name(d, name, size, b"version"):
            member = 16
            at = integer(d, at, end, &h.version)
        elif is_name(d, name, size, b"language") or is_name(d, name, size, b"serializeTypeCurrentRPC"):
            member = 32 if size == 8 else 64
            if at >= end or d.at(at) != 34:
                return False
            stop = string_end(d, at + 1, end, &escaped)
            if stop < 0 or escaped:
                return False
            if member == 32:
                h.language = at + 1
                h.language_size = stop - at - 1
            at = stop + 1
        else:
            return False
        if at < 0 or at >= end or seen & member:
            return False
        seen |= member
        if d.at(at) == 125:
            return at + 1 == end and seen & 63 == 63
        if d.at(at) != 44:
            return False
        at += 1


cdef bint read_binary(Chunk d, Py_ssize_t at, Py_ssize_t end, Header *h) except -1:
    """A header without a remark, of ASCII."""
    cdef Py_ssize_t i, name, name_size, value
    cdef uint32_t size
    cdef int field
    if end - at < 21 or d.unsigned(at + 13) != 0 or d.unsigned(at + 17) != <uint32_t>(end - at - 21):
        return False
    h.code = (d.at(at) << 8) | d.at(at + 1)
    h.language = at + 2
    h.language_size = 1
    h.version = (d.at(at + 3) << 8) | d.at(at + 4)
    h.opaque = d.signed(at + 5)
    h.flag = d.signed(at + 9)
    at += 21
    while at < end:
        if end - at < 6:
            return False
        name = at + 2
        name_size = (d.at(at) << 8) | d.at(at + 1)
        if name_size > end - name - 4:
            return False
        value = name + name_size + 4
        size = d.unsigned(value - 4)
        if size > <uint64_t>(end - value):
            return False
        for i in range(name, value - 4):
            if d.at(i) > 127:
                return False
        for i in range(value, value + <Py_ssize_t>size):
            if d.at(i) > 127:
                return False
        field = d.at(name) - 97 if name_size == 1 else -1
        if 0 <= field < FIELDS:
            if h.size[field] >= 0:
                return False  # twice
            h.at[field] = value
            h.size[field] = size
        at = value + <Py_ssize_t>size
    return True


cdef int64_t number(Chunk d, Header *h, int field, int64_t missing, int most) except -2:
    """A field that is a plain number of so many digits at most; -1 for any other."""
    cdef Py_ssize_t size = h.size[field], at = h.at[field], i
    cdef int64_t value = 0
    if size < 0:
        return missing
    if size == 0 or size > most or (size > 1 and d.at(at) == 48):
        return -1
    for i in range(at, at + size):
        if not 48 <= d.at(i) <= 57:
            return -1
        value = value * 10 + d.at(i) - 48
    return value


cdef int digit(uint8_t c) noexcept:
    if 48 <= c <= 57:
        return c - 48
    if 65 <= c <= 70:
        return c - 55
    if 97 <= c <= 102:
        return c - 87
    return -1


cdef bint unescape(Chunk d, Py_ssize_t at, Py_ssize_t size, Writer out) except -1:
    """Write the text of a JSON string; false if it has more than ASCII."""
    cdef Py_ssize_t end = at + size
    cdef uint8_t c
    cdef int value, i, one
    d.check(at, end)
    out.need(size)  # an escape is longer than what it stands for
    while at < end:
        c = d.first[at]
        at += 1
        if c == 92:
            if at >= end:
                return False
            c = d.at(at)
            at += 1
            if c == 117:  # u
                if end - at < 4:
                    return False
                value = 0
                for i in range(4):
                    one = digit(d.at(at + i))
                    if one < 0:
                        return False
                    value = value * 16 + one
                if value > 127:
                    return False
                c = value
                at += 4
            elif c == 110:
                c = 10
            elif c == 116:
                c = 9
            elif c == 114:
                c = 13
            elif c == 98:
                c = 8
            elif c == 102:
                c = 12
            elif c != 34 and c != 92 and c != 47:
                return False
        out.data[out.size] = c
        out.size += 1
    return True


# --- bodies --------------------------------------------------------------------------------

cdef uint32_t CHECKSUMS[8][256]
"""Of each byte with 0 to 7 zero bytes behind it (CRC-32, as zlib has it)."""

cdef void fill_checksums() noexcept:
    cdef uint32_t value
    cdef int i, j
    for i in range(256):
        value = i
        for j in range(8):
            value = (value >> 1) ^ (0xEDB88320 if value & 1 else 0)
        CHECKSUMS[0][i] = value
    for i in range(256):
        for j in range(1, 8):
            CHECKSUMS[j][i] = (CHECKSUMS[j - 1][i] >> 8) ^ CHECKSUMS[0][CHECKSUMS[j - 1][i] & 255]

fill_checksums()


cdef uint32_t checksum(Chunk d, Py_ssize_t start, Py_ssize_t stop) except? 0:
    """The checksum of a body, eight bytes at a time."""
    cdef uint32_t value = 0xFFFFFFFF
    cdef const uint8_t *at
    cdef const uint8_t *end
    d.check(start, stop)
    at = d.first + start
    end = d.first + stop
    while end - at >= 8:
        value ^= <uint32_t>at[0] | <uint32_t>at[1] << 8 | <uint32_t>at[2] << 16 | <uint32_t>at[3] << 24
        value = (
            CHECKSUMS[7][value & 255] ^ CHECKSUMS[6][value >> 8 & 255]
            ^ CHECKSUMS[5][value >> 16 & 255] ^ CHECKSUMS[4][value >> 24]
            ^ CHECKSUMS[3][at[4]] ^ CHECKSUMS[2][at[5]] ^ CHECKSUMS[1][at[6]] ^ CHECKSUMS[0][at[7]]
        )
        at += 8
    while at < end:
        value = (value >> 8) ^ CHECKSUMS[0][(value ^ at[0]) & 255]
        at += 1
    return (value ^ 0xFFFFFFFF) & 0x7FFFFFFF


# --- properties ----------------------------------------------------------------------------

cdef bytes UNIQUE = b"UNIQ_KEY\x01"
cdef bytes KEYS = b"KEYS\x01"
cdef bytes END = b"\x02"


cdef bint is_ascii(Chunk d, Py_ssize_t start, Py_ssize_t stop) except -1:
    cdef Py_ssize_t i
    cdef uint8_t seen = 0
    d.check(start, stop)
    for i in range(start, stop):
        seen |= d.first[i]
    return seen < 128


cdef bint is_alphanumeric(Chunk d, Py_ssize_t start, Py_ssize_t stop) except -1:
    cdef Py_ssize_t i
    cdef uint8_t c
    d.check(start, stop)
    for i in range(start, stop):
        c = d.first[i]
        if not (48 <= c <= 57 or 65 <= c <= 90 or 97 <= c <= 122):
            return False
    return True


@cython.final
cdef class Known:
    """Properties without unique key and keys, and the tags codes of those that are plain (``PlainTexts``)."""

    cdef object texts
    cdef dict codes
    cdef bytes last     # the same for nearly all messages
    cdef int64_t code
    cdef list rests     # of the frame that is looked at, each that differs from the one before it

    def __init__(self, texts):
        self.texts = texts

    cdef bint begin(self) except -1:
        """Look whether plugins want to see other properties; false while they want what is cut out."""
        codes = self.texts.known()
        if codes is not self.codes:
            self.codes = codes
            self.last = None
        self.rests = []
        return codes is not None

    cdef bint split(self, Chunk text, Message *m) except -1:
        """Cut unique key and keys out of properties, and look up the rest; the twin of ``plainbatch.split``."""
        cdef Py_ssize_t size = text.size, at, end, keys, keys_end
        if size == 0 or text.at(size - 1) != 2:
            return False
        at = text.find(UNIQUE, 0, size)
        if at < 0 or (at > 0 and text.at(at - 1) != 2):
            return False
        end = text.find(END, at, size)
        m.unique = at + 9
        m.unique_end = end
        if m.unique == end or not is_ascii(text, m.unique, end):
            return False
        end += 1
        keys = text.find(KEYS, 0, at)
        if keys < 0:
            keys = text.find(KEYS, end, size)
        if keys < 0 or (keys > 0 and text.at(keys - 1) != 2):
            m.words = m.words_end = 0
            return self.look(text, at, end, size, size, m)
        keys_end = text.find(END, keys, size)
        m.words = keys + 5
        m.words_end = keys_end
        if not is_ascii(text, m.words, keys_end):
            try:
                text.cut(m.words, keys_end).decode()
            except UnicodeDecodeError:
                return False
        if keys < at:
            return self.look(text, keys, keys_end + 1, at, end, m)
        return self.look(text, at, end, keys, keys_end + 1, m)

    cdef bint look(
        self, Chunk text, Py_ssize_t first, Py_ssize_t first_end, Py_ssize_t second, Py_ssize_t second_end, Message *m
    ) except -1:
        """Look up what is left without these two pieces."""
        cdef Py_ssize_t between = first + second - first_end, size = between + text.size - second_end
        if (
            self.last is None or PyBytes_GET_SIZE(self.last) != size
            or not text.equals(0, first, self.last, 0)
            or not text.equals(first_end, second, self.last, first)
            or not text.equals(second_end, text.size, self.last, between)
        ):
            rest = text.cut(0, first) + text.cut(first_end, second) + text.cut(second_end, text.size)
            code = self.codes.get(rest)
            if code is None:
                code = self.texts.look(rest)
            if code is None:
                return False
            self.last = rest
            self.code = code
            self.rests.append(rest)
        elif not self.rests:
            self.rests.append(self.last)
        m.code = self.code
        return True


# --- what goes in and what comes out -------------------------------------------------------

@cython.final
cdef class Topic:
    """A topic whose messages concern no plugin: how many queues it has, and its name as a record has it."""

    cdef str name
    cdef bytes key
    cdef int64_t queues
    cdef bytes field

    def __init__(self, str name, int64_t queues, bytes field):
        self.name = name
        self.key = name.encode()
        self.queues = queues
        self.field = field


@cython.final
cdef class Column:
    """What one queue gets, in columns, see ``verniermq.kernel.dispatch.run.Run``."""

    cdef readonly str topic
    cdef readonly int64_t queue_id
    cdef readonly int64_t first
    cdef readonly list offsets, sizes, codes, uniques, keys, texts, rests, born
    cdef readonly Py_ssize_t head_size
    cdef int64_t following
    cdef bytes rest     # the last of `rests`

    def __init__(self, str topic, int64_t queue_id, int64_t first, Py_ssize_t head_size):
        self.topic = topic
        self.queue_id = queue_id
        self.first = self.following = first
        self.head_size = head_size
        self.offsets = []
        self.sizes = []
        self.codes = []
        self.uniques = []
        self.keys = []
        self.texts = []
        self.rests = []
        self.born = []

    cdef int note(self, list rests) except -1:
        """Keep what the properties of a frame have besides keys, if it differs from what the frame before had."""
        if self.rest != rests[0]:
            self.rests.append(rests[0])
        if len(rests) > 1:
            self.rests.extend(rests[1:])
        self.rest = rests[len(rests) - 1]
        return 0


@cython.final
cdef class FieldName:
    """A field of an answer, as both forms of a header begin it."""

    cdef bytes json, binary

    def __init__(self, str name):
        self.json = f'"{name}":"'.encode()
        self.binary = len(name).to_bytes(2, "big") + name.encode()


cdef FieldName MESSAGE_ID = FieldName("msgId")
cdef FieldName QUEUE_ID = FieldName("queueId")
cdef FieldName QUEUE_OFFSET = FieldName("queueOffset")
cdef FieldName TRANSACTION_ID = FieldName("transactionId")


@cython.final
cdef class Lane:
    """Serves plain sends.

    ``topics`` by their names in bytes; ``queues`` are the dispatcher's; ``sends`` and ``batches`` know properties
    (``PlainTexts``); ``added`` is what the broker adds to the properties of a send.
    """

    cdef dict topics, queues
    cdef Known sends, batches
    cdef bytes added
    cdef Py_ssize_t longest_frame, longest_header, largest, most
    cdef Chunk data, text
    cdef Writer records, answers, tail, unescaped
    cdef Message *messages
    # Of the chunk that is served now:
    cdef int64_t offset, room, now
    cdef bytes born_host, store_host, host_hex
    cdef bint binary
    cdef dict touched, passing
    cdef object ask
    cdef Topic topic
    cdef Column column
    cdef int64_t served[4]      # by this `take`: sends, one-way sends, batches, one-way batches
    cdef int64_t total[4]       # by all

    def __cinit__(self):
        self.messages = <Message *>calloc(MOST_IN_BATCH, sizeof(Message))
        if self.messages == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.messages)

    def __init__(
        self, dict topics, dict queues, sends, batches, bytes added, *,
        Py_ssize_t longest_frame, Py_ssize_t longest_header, Py_ssize_t largest, Py_ssize_t most,
    ):
        self.topics = topics
        self.queues = queues
        self.sends = Known(sends)
        self.batches = Known(batches)
        self.added = added
        self.longest_frame = longest_frame
        self.longest_header = longest_header
        self.largest = largest
        self.most = min(most, MOST_IN_BATCH)
        self.data = Chunk()
        self.text = Chunk()
        self.records = Writer()
        self.answers = Writer()
        self.tail = Writer()
        self.unescaped = Writer()

    def take(
        self, bytes data not None, Py_ssize_t start, int64_t offset, int64_t room, bytes born_host, bytes store_host,
        int64_t now, bytes language, int64_t version, bint binary, dict passing, ask,
    ):
        """Serve the plain frames of ``data`` from ``start`` on.

        Returns where the first other frame begins, the records, the answers, and the columns of the queues.
        ``language``, ``version`` and ``binary`` are those of the peer's last request: the first one that differs is for
        Python, which notes them. ``passing`` has the pairs of group and topic that plugins let pass, or not; ``ask`` is
        called with one that is not in it. ``None`` if no plugin wants to be asked.
        """
        cdef Chunk d = self.data
        cdef Py_ssize_t end = len(data), header, header_end, following, length, i
        cdef uint32_t word
        cdef Header h
        cdef bint read
        if len(born_host) != 8 or len(store_host) != 8 or not self.sends.begin() or not self.batches.begin():
            return start, b"", b"", ()
        d.point(<const uint8_t *>PyBytes_AS_STRING(data), end)
        self.offset = offset
        self.room = room
        self.now = now
        self.born_host = born_host
        self.store_host = store_host
        self.host_hex = store_host.hex().upper().encode()
        self.binary = binary
        self.passing = passing
        self.ask = ask
        self.records.size = self.answers.size = 0
        self.touched = {}
        self.topic = None
        self.column = None
        self.served = [0, 0, 0, 0]
        while end - start >= 8:
            length = d.signed(start)
            word = d.unsigned(start + 4)
            if length < 4 or length > self.longest_frame:
                break
            header = start + 8
            following = start + 4 + length
            header_end = header + <Py_ssize_t>(word & 0xFFFFFF)
            if following > end or header_end > following or <Py_ssize_t>(word & 0xFFFFFF) > self.longest_header:
                break
            if word >> 24 != (1 if binary else 0):
                break
            h.escaped = False
            for i in range(FIELDS):
                h.size[i] = -1
                h.at[i] = 0
            read = read_binary(d, header, header_end, &h) if binary else read_json(d, header, header_end, &h)
            if not read or h.version != version or not is_name(d, h.language, h.language_size, language):
                break
            if not self.serve(d, &h, header_end, following):
                break
            start = following
        for i in range(4):
            self.total[i] += self.served[i]
        d.point(NULL, 0)
        self.text.point(NULL, 0)
        return start, self.records.taken(), self.answers.taken(), list(self.touched.values())

    def totals(self):
        """How many sends, one-way sends, batches and one-way batches were served since the beginning."""
        return self.total[0], self.total[1], self.total[2], self.total[3]

    def take_back(self):
        """What was served last does not count: it could not be written."""
        for i in range(4):
            self.total[i] -= self.served[i]

    cdef bint serve(self, Chunk d, Header *h, Py_ssize_t body, Py_ssize_t end) except -1:
        """Serve one frame, or change nothing and return false."""
        cdef int64_t queue_id, flag, first
        cdef Py_ssize_t count
        if (h.code != SEND and h.code != BATCH) or (h.flag != 0 and h.flag != ONEWAY) or end - body > self.largest:
            return False
        if h.size[1] <= 0 or number(d, h, 5, -1, 1) != 0 or number(d, h, 9, 0, 1) != 0:
            return False
        queue_id = number(d, h, 4, -1, 3)
        born = number(d, h, 6, -1, 15)
        flag = number(d, h, 7, -1, 3)
        if queue_id < 0 or born < 0 or flag < 0 or not self.find_queue(d, h, queue_id):
            return False
        if self.passing is not None and not self.may_pass(d, h):
            return False
        if not self.point_at_text(d, h):
            return False
        count = self.look_at_send(body, end, flag) if h.code == SEND else self.look_at_batch(d, body, end)
        if count == 0:
            return False
        first = self.column.following
        self.touched[self.topic.name, queue_id] = self.column
        self.write_records(d, h.code == SEND, count, queue_id, born)
        if h.flag != ONEWAY:
            self.answer(h, count, queue_id, first)
        self.served[(2 if h.code == BATCH else 0) + (1 if h.flag == ONEWAY else 0)] += 1
        return True

    cdef bint find_queue(self, Chunk d, Header *h, int64_t queue_id) except -1:
        """Topic and queue; mostly those of the frame before."""
        cdef Topic topic = self.topic
        if topic is None or not is_name(d, h.at[1], h.size[1], topic.key):
            found = self.topics.get(d.cut(h.at[1], h.at[1] + h.size[1]))
            if found is None:
                return False
            self.topic = topic = <Topic>found
            self.column = None
        if queue_id >= topic.queues:
            return False
        if self.column is None or self.column.queue_id != queue_id:
            place = (topic.name, queue_id)
            self.column = self.touched.get(place)
            if self.column is None:
                queue = self.queues.get(place)
                if queue is None:
                    return False  # its first message
                self.column = Column(topic.name, queue_id, queue.next_offset, HEAD + len(topic.field))
        return True

    cdef bint may_pass(self, Chunk d, Header *h) except -1:
        """Whether plugins let this group send to this topic without being asked about each message."""
        if h.size[0] <= 0:
            return False
        pair = (d.cut(h.at[0], h.at[0] + h.size[0]), self.topic.name)
        passes = self.passing.get(pair)
        if passes is None:
            passes = self.ask(pair)
        return passes

    cdef bint point_at_text(self, Chunk d, Header *h) except -1:
        """Have the properties of the header at hand."""
        cdef Py_ssize_t size = max(h.size[8], 0)
        if h.escaped:
            self.unescaped.size = 0
            if not unescape(d, h.at[8], size, self.unescaped):
                return False
            self.text.point(self.unescaped.data, self.unescaped.size)
        else:
            d.check(h.at[8], h.at[8] + size)
            self.text.point(d.first + h.at[8], size)
        return True

    cdef Py_ssize_t look_at_send(self, Py_ssize_t body, Py_ssize_t end, int64_t flag) except -1:
        """1 if it is plain, 0 if not."""
        cdef Message *m = &self.messages[0]
        cdef Py_ssize_t text_size = self.text.size + len(self.added)
        self.sends.rests.clear()
        if text_size >= SECTOR or not self.sends.split(self.text, m):
            return 0
        if not is_alphanumeric(self.text, m.unique, m.unique_end):
            return 0
        if self.records.size + HEAD + (end - body) + len(self.topic.field) + 2 + text_size > self.room:
            return 0
        m.body = body
        m.body_end = end
        m.flag = flag
        return 1

    cdef Py_ssize_t look_at_batch(self, Chunk d, Py_ssize_t at, Py_ssize_t end) except -1:
        """How many messages it has; 0 if one of them is not plain."""
        cdef Message *m
        cdef Py_ssize_t count = 0, length, total = 0
        cdef int64_t size, body_size
        self.batches.rests.clear()
        while at < end:
            if end - at < 22 or count == self.most:
                return 0
            size = d.signed(at)
            body_size = d.signed(at + 16)
            if body_size < 0 or size < 22 + body_size or size > end - at:
                return 0
            m = &self.messages[count]
            m.flag = d.signed(at + 12)
            m.body = at + 20
            m.body_end = m.tail = m.body + <Py_ssize_t>body_size
            m.tail_end = at = at + <Py_ssize_t>size
            length = (d.at(m.tail) << 8) | d.at(m.tail + 1)
            if length != m.tail_end - m.tail - 2 or length + 2 >= SECTOR:
                return 0
            d.check(m.tail + 2, m.tail_end)
            self.text.point(d.first + m.tail + 2, length)
            if not self.batches.split(self.text, m):
                return 0
            total += HEAD + <Py_ssize_t>body_size + len(self.topic.field) + length + 2
            count += 1
        return count if self.records.size + total <= self.room else 0

    cdef int write_records(self, Chunk d, bint is_send, Py_ssize_t count, int64_t queue_id, born) except -1:
        """Write the records of a frame, and note them for their queue."""
        cdef Py_ssize_t i
        cdef Message *m
        cdef bytes tail, unique, words
        cdef Column column = self.column
        for i in range(count):
            m = &self.messages[i]
            if is_send:
                self.tail.size = 0
                self.tail.byte((self.text.size + len(self.added)) >> 8)
                self.tail.byte((self.text.size + len(self.added)) & 255)
                self.tail.copy(self.text, 0, self.text.size)
                self.tail.put(self.added)
                tail = self.tail.taken()
            else:
                tail = d.cut(m.tail, m.tail_end)
                d.check(m.tail + 2, m.tail_end)
                self.text.point(d.first + m.tail + 2, m.tail_end - m.tail - 2)
            unique = self.text.cut(m.unique, m.unique_end)
            words = self.text.cut(m.words, m.words_end)
            column.sizes.append(self.write_record(d, m, tail, queue_id, born))
            column.offsets.append(m.place)
            column.codes.append(m.code)
            column.uniques.append(unique)
            column.keys.append(words)
            column.texts.append(tail)
            column.born.append(born)
            column.following += 1
        column.note(self.sends.rests if is_send else self.batches.rests)
        return 0

    cdef Py_ssize_t write_record(self, Chunk d, Message *m, bytes tail, int64_t queue_id, int64_t born) except -1:
        """Write one, and say how long it is."""
        cdef Writer out = self.records
        cdef bytes topic = self.topic.field
        cdef Py_ssize_t size = HEAD + (m.body_end - m.body) + len(topic) + len(tail)
        m.place = self.offset + out.size
        out.need(size)
        out.word(<uint32_t>size)
        out.word(MAGIC)
        out.word(checksum(d, m.body, m.body_end))
        out.word(<uint32_t>queue_id)
        out.word(<uint32_t>m.flag)
        out.long_word(<uint64_t>self.column.following)
        out.long_word(<uint64_t>m.place)
        out.word(0)
        out.long_word(<uint64_t>born)
        out.put(self.born_host)
        out.long_word(<uint64_t>self.now)
        out.put(self.store_host)
        out.word(0)
        out.long_word(0)
        out.word(<uint32_t>(m.body_end - m.body))
        out.copy(d, m.body, m.body_end)
        out.put(topic)
        out.put(tail)
        return size

    # --- answers, as ``sendanswer.py`` has them ---

    cdef int answer(self, Header *h, Py_ssize_t count, int64_t queue_id, int64_t queue_offset) except -1:
        """The answer to the messages that were written last. That to a send names its unique key too."""
        cdef Writer out = self.answers
        cdef Py_ssize_t begin = out.size, fields = 0, at, i
        cdef uint32_t form = 0
        out.long_word(0)
        if self.binary:
            form = 1 << 24
            out.put(BINARY_HEAD)
            out.word(<uint32_t>h.opaque)
            out.word(1)
            out.word(0)
            fields = out.size
            out.word(0)
        else:
            out.put(JSON_HEAD)
        at = self.open(MESSAGE_ID)
        for i in range(count):
            if i:
                out.byte(44)
            out.put(self.host_hex)
            out.hexadecimal(<uint64_t>self.messages[i].place)
        self.close(at)
        at = self.open(QUEUE_ID)
        out.decimal(queue_id)
        self.close(at)
        at = self.open(QUEUE_OFFSET)
        out.decimal(queue_offset)
        self.close(at)
        if h.code == SEND:
            at = self.open(TRANSACTION_ID)
            out.copy(self.text, self.messages[0].unique, self.messages[0].unique_end)
            self.close(at)
        if self.binary:
            out.put(BINARY_TAIL)
            out.set_word(fields, <uint32_t>(out.size - fields - 4))
        else:
            out.put(JSON_MIDDLE)
            out.decimal(h.opaque)
            out.put(JSON_TAIL)
        out.set_word(begin, <uint32_t>(out.size - begin - 4))
        out.set_word(begin + 4, form | <uint32_t>(out.size - begin - 8))
        return 0

    cdef Py_ssize_t open(self, FieldName name) except -1:
        """Begin a field; returns where its value begins."""
        if self.binary:
            self.answers.put(name.binary)
            self.answers.word(0)
        else:
            self.answers.put(name.json)
        return self.answers.size

    cdef int close(self, Py_ssize_t value) except -1:
        """End a field whose value begins there."""
        if self.binary:
            self.answers.set_word(value - 4, <uint32_t>(self.answers.size - value))
        else:
            self.answers.byte(34)
            self.answers.byte(44)
        return 0


from verniermq.kernel.codes import PROTOCOL_LANGUAGE, PROTOCOL_VERSION
from verniermq.kernel.handlers.sendanswer import REGION
from verniermq.kernel.remoting.binary_header import language_number

cdef bytes JSON_HEAD = b'{"code":0,"extFields":{'
cdef bytes JSON_MIDDLE = f'"MSG_REGION":"{REGION}","TRACE_ON":"true"}},"flag":1,"language":"{PROTOCOL_LANGUAGE}","opaque":'.encode()
cdef bytes JSON_TAIL = f',"serializeTypeCurrentRPC":"JSON","version":{PROTOCOL_VERSION}}}'.encode()
cdef bytes BINARY_HEAD = bytes((0, 0, language_number(PROTOCOL_LANGUAGE))) + PROTOCOL_VERSION.to_bytes(2, "big")
cdef bytes BINARY_TAIL = b"".join(
    [len(text).to_bytes(size, "big") + text.encode() for text, size in (("MSG_REGION", 2), (REGION, 4), ("TRACE_ON", 2), ("true", 4))]
)
