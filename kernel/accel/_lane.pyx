# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""Plain sends from the bytes of a chunk to records and answers, compiled (the chain in Python is the reference).

A chunk is frames, one behind the other; the last one may be unfinished::

    length i4 | form i1, header length i3 | header, JSON or binary | body

Of a header these fields count, under their short names: b topic, e queue id, f system flag, g born, h flag,
i properties, j times consumed before. A frame becomes one record, a batch becomes several::

    size i4 | magic i4 | crc i4 | queue i4 | flag i4 | queue offset i8 | offset i8 | system flag i4 | born i8 | born host
    | stored i8 | store host | times i4 | prepared i8 | length i4, body | length i1, topic | length i2, properties

Nothing here changes anything but its own buffers: ``take`` says which records belong at the end of the log and what is
answered to them, and its caller writes both. A frame that is not plain ends it, with whatever could be wrong about it:
it is left to Python, which serves it or says what is wrong.

Everything is read through :class:`Chunk`, which checks each place, and written through :class:`Writer`, which asks for room
before each piece.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE

cimport cython

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


@cython.final
cdef class Chunk:
    """Bytes of which no place outside is ever read."""

    cdef bytes data
    cdef const uint8_t *first
    cdef Py_ssize_t size

    def __cinit__(self, bytes data not None):
        self.data = data
        self.first = <const uint8_t *>PyBytes_AS_STRING(data)
        self.size = PyBytes_GET_SIZE(data)

    cdef inline int at(self, Py_ssize_t place) except -1:
        if place < 0 or place >= self.size:
            raise IndexError(f"place {place} of {self.size} bytes")
        return self.first[place]

    cdef inline int check(self, Py_ssize_t start, Py_ssize_t stop) except -1:
        """That all places from ``start`` to before ``stop`` are inside."""
        if start < 0 or stop > self.size:
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
        if start < 0 or stop < start or stop > self.size:
            raise IndexError(f"{start} to {stop} of {self.size} bytes")
        return PyBytes_FromStringAndSize(<const char *>self.first + start, stop - start)


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

    cdef int need(self, Py_ssize_t more) except -1:
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

    cdef int put(self, bytes text) except -1:
        cdef Py_ssize_t size = PyBytes_GET_SIZE(text)
        self.need(size)
        memcpy(self.data + self.size, PyBytes_AS_STRING(text), size)
        self.size += size
        return 0

    cdef int byte(self, uint8_t value) except -1:
        self.need(1)
        self.data[self.size] = value
        self.size += 1
        return 0

    cdef int word(self, uint32_t value) except -1:
        self.need(4)
        self.set_word(self.size, value)
        self.size += 4
        return 0

    cdef void set_word(self, Py_ssize_t at, uint32_t value) noexcept:
        self.data[at] = value >> 24
        self.data[at + 1] = (value >> 16) & 255
        self.data[at + 2] = (value >> 8) & 255
        self.data[at + 3] = value & 255

    cdef int long_word(self, uint64_t value) except -1:
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
    if size != PyBytes_GET_SIZE(name):
        return False
    d.check(at, at + size)
    return memcmp(d.first + at, PyBytes_AS_STRING(name), size) == 0


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


# --- what goes in and what comes out -------------------------------------------------------

@cython.final
cdef class Topic:
    """A topic whose messages concern no plugin: how many queues it has, and its name as a record has it."""

    cdef str name
    cdef int64_t queues
    cdef bytes field

    def __init__(self, str name, int64_t queues, bytes field):
        self.name = name
        self.queues = queues
        self.field = field


@cython.final
cdef class Column:
    """What one queue gets, in columns, see ``verniermq.kernel.dispatch.run.Run``."""

    cdef readonly str topic
    cdef readonly int64_t queue_id
    cdef readonly int64_t first
    cdef readonly list offsets, sizes, codes, uniques, keys, texts, born
    cdef readonly Py_ssize_t head_size
    cdef int64_t following

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
        self.born = []


@cython.final
cdef class Lane:
    """Serves plain sends.

    ``topics`` by their names in bytes; ``queues`` are the dispatcher's; ``sends`` and ``batches`` know properties
    (``PlainTexts``); ``added`` is what the broker adds to the properties of a send; ``reply(opaque, binary, offsets, queue
    id, queue offset, unique key)`` encodes the answers that are not written here.
    """

    cdef dict topics, queues
    cdef object sends, batches, reply
    cdef bytes added
    cdef Py_ssize_t longest_frame, longest_header, largest, most
    cdef Writer records, answers, text
    cdef dict touched, known_sends, known_batches, passing
    cdef object ask
    cdef int64_t served[4]
    cdef bytes unique, words
    cdef object code

    def __init__(
        self, dict topics, dict queues, sends, batches, bytes added, reply, *,
        Py_ssize_t longest_frame, Py_ssize_t longest_header, Py_ssize_t largest, Py_ssize_t most,
    ):
        self.topics = topics
        self.queues = queues
        self.sends = sends
        self.batches = batches
        self.added = added
        self.reply = reply
        self.longest_frame = longest_frame
        self.longest_header = longest_header
        self.largest = largest
        self.most = min(most, MOST_IN_BATCH)
        self.records = Writer()
        self.answers = Writer()
        self.text = Writer()

    def take(
        self, bytes data, Py_ssize_t start, int64_t offset, int64_t room, bytes born_host, bytes store_host, int64_t now,
        bytes language, int64_t version, bint binary, dict passing, ask,
    ):
        """Serve the plain frames of ``data`` from ``start`` on.

        Returns where the first other frame begins, the records, the answers, the columns of the queues, and how many
        were sends, one-way sends, batches, one-way batches. ``language``, ``version`` and ``binary`` are those of the
        peer's last request: the first one that differs is for Python, which notes them. ``passing`` has the pairs of
        group and topic that plugins let pass, or not; ``ask`` is called with one that is not in it. ``None`` if no
        plugin wants to be asked.
        """
        cdef Chunk d = Chunk(data)
        cdef Py_ssize_t end = len(data), header, header_end, following, length, i
        cdef uint32_t word
        cdef Header h
        cdef bint read
        cdef bytes host_hex
        if len(born_host) != 8 or len(store_host) != 8:
            return start, b"", b"", (), ()
        self.known_sends = self.sends.known()
        self.known_batches = self.batches.known()
        if self.known_sends is None or self.known_batches is None:
            return start, b"", b"", (), ()
        host_hex = store_host.hex().upper().encode()
        self.records.size = self.answers.size = 0
        self.touched = {}
        self.passing = passing
        self.ask = ask
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
            if not self.serve(d, &h, header_end, following, offset, room, born_host, store_host, host_hex, now, binary):
                break
            start = following
        return start, self.records.taken(), self.answers.taken(), list(self.touched.values()), (
            self.served[0], self.served[1], self.served[2], self.served[3]
        )

    cdef bint serve(
        self, Chunk d, Header *h, Py_ssize_t body, Py_ssize_t end, int64_t offset, int64_t room, bytes born_host,
        bytes store_host, bytes host_hex, int64_t now, bint binary,
    ) except -1:
        """Serve one frame, or change nothing and return false."""
        cdef int64_t queue_id, born, flag
        cdef Topic topic
        cdef Column column
        cdef bytes text = b""
        if (h.code != SEND and h.code != BATCH) or (h.flag != 0 and h.flag != ONEWAY):
            return False
        if h.size[1] <= 0 or number(d, h, 5, -1, 1) != 0 or number(d, h, 9, 0, 1) != 0:
            return False
        queue_id = number(d, h, 4, -1, 3)
        born = number(d, h, 6, -1, 15)
        flag = number(d, h, 7, -1, 3)
        if queue_id < 0 or born < 0 or flag < 0:
            return False
        found = self.topics.get(d.cut(h.at[1], h.at[1] + h.size[1]))
        if found is None:
            return False
        topic = <Topic>found
        if queue_id >= topic.queues:
            return False
        if self.passing is not None and not self.may_pass(d, h, topic):
            return False
        place = (topic.name, queue_id)
        column = self.touched.get(place)
        if column is None:
            queue = self.queues.get(place)
            if queue is None:
                return False  # its first message
            column = Column(topic.name, queue_id, queue.next_offset, HEAD + len(topic.field))
        if h.escaped:
            self.text.size = 0
            if not unescape(d, h.at[8], h.size[8], self.text):
                return False
            text = self.text.taken()
        elif h.size[8] > 0:
            text = d.cut(h.at[8], h.at[8] + h.size[8])
        if h.code == SEND:
            if not self.send(d, text, body, end, topic, column, queue_id, born, flag, offset, room, born_host, store_host, now):
                return False
            if h.flag != ONEWAY:
                self.answer(h.opaque, binary, host_hex, column.offsets[len(column.offsets) - 1], queue_id, column.following - 1)
        else:
            first = column.following
            count = len(column.offsets)
            if not self.batch(d, body, end, topic, column, queue_id, born, offset, room, born_host, store_host, now):
                return False
            if h.flag != ONEWAY:
                self.answers.put(self.reply(h.opaque, binary, column.offsets[count:], queue_id, first, None))
        self.touched[place] = column
        self.served[(2 if h.code == BATCH else 0) + (1 if h.flag == ONEWAY else 0)] += 1
        return True

    cdef bint may_pass(self, Chunk d, Header *h, Topic topic) except -1:
        """Whether plugins let this group send to this topic without being asked about each message."""
        if h.size[0] <= 0:
            return False
        pair = (d.cut(h.at[0], h.at[0] + h.size[0]), topic.name)
        passes = self.passing.get(pair)
        if passes is None:
            passes = self.ask(pair)
        return passes

    cdef bint cut(self, bytes text, dict known, texts) except -1:
        """Cut unique key and keys out of properties, and look up the rest; the twin of ``plainbatch.split``."""
        cdef Py_ssize_t at, end
        cdef bytes rest
        if not text or text[len(text) - 1] != 2:
            return False
        at = text.find(b"UNIQ_KEY\x01")
        if at < 0 or (at > 0 and text[at - 1] != 2):
            return False
        end = text.find(b"\x02", at)
        self.unique = text[at + 9 : end]
        if not self.unique or not self.unique.isascii():
            return False
        rest = text[:at] + text[end + 1 :]
        at = rest.find(b"KEYS\x01")
        if at < 0 or (at > 0 and rest[at - 1] != 2):
            self.words = b""
        else:
            end = rest.find(b"\x02", at)
            self.words = rest[at + 5 : end]
            if not self.words.isascii():
                try:
                    self.words.decode()
                except UnicodeDecodeError:
                    return False
            rest = rest[:at] + rest[end + 1 :]
        self.code = known.get(rest)
        if self.code is None:
            self.code = texts.look(rest)
        return self.code is not None

    cdef bint send(
        self, Chunk d, bytes text, Py_ssize_t body, Py_ssize_t end, Topic topic, Column column, int64_t queue_id,
        int64_t born, int64_t flag, int64_t offset, int64_t room, bytes born_host, bytes store_host, int64_t now,
    ) except -1:
        if end - body > self.largest or len(text) + len(self.added) >= SECTOR:
            return False
        if not self.cut(text, self.known_sends, self.sends) or not self.unique.isalnum():
            return False
        text = text + self.added
        if not self.fits(end - body, topic, len(text), room):
            return False
        self.record(
            d, body, end, topic, column, queue_id, flag, born, offset, born_host, store_host, now,
            len(text).to_bytes(2, "big") + text, self.code, self.unique, self.words,
        )
        return True

    cdef bint batch(
        self, Chunk d, Py_ssize_t at, Py_ssize_t end, Topic topic, Column column, int64_t queue_id, int64_t born,
        int64_t offset, int64_t room, bytes born_host, bytes store_host, int64_t now,
    ) except -1:
        """All messages are looked at before the first one is written."""
        cdef list found = []
        cdef Py_ssize_t body, body_end, stop, length, total = 0
        cdef int64_t size, body_size
        cdef bytes tail
        if end - at > self.largest or at == end:
            return False
        while at < end:
            if end - at < 22:
                return False
            size = d.signed(at)
            body_size = d.signed(at + 16)
            if body_size < 0 or size < 22 + body_size or size > end - at:
                return False
            body = at + 20
            body_end = body + <Py_ssize_t>body_size
            stop = at + <Py_ssize_t>size
            length = (d.at(body_end) << 8) | d.at(body_end + 1)
            if length != stop - body_end - 2 or length + 2 >= SECTOR:
                return False
            tail = d.cut(body_end, stop)
            if not self.cut(tail[2:], self.known_batches, self.batches):
                return False
            total += HEAD + <Py_ssize_t>body_size + len(topic.field) + length + 2
            found.append((body, body_end, d.signed(at + 12), tail, self.code, self.unique, self.words))
            if len(found) > self.most:
                return False
            at = stop
        if self.records.size + total > room:
            return False
        for start, stop_body, flag, text, code, unique, words in found:
            self.record(
                d, start, stop_body, topic, column, queue_id, flag, born, offset, born_host, store_host, now,
                text, code, unique, words,
            )
        return True

    cdef bint fits(self, Py_ssize_t body_size, Topic topic, Py_ssize_t text_size, int64_t room) except -1:
        return self.records.size + HEAD + body_size + len(topic.field) + 2 + text_size <= room

    cdef int record(
        self, Chunk d, Py_ssize_t body, Py_ssize_t end, Topic topic, Column column, int64_t queue_id, int64_t flag,
        int64_t born, int64_t offset, bytes born_host, bytes store_host, int64_t now, bytes tail, code, bytes unique,
        bytes words,
    ) except -1:
        """Write a record, and note it for its queue."""
        cdef Writer out = self.records
        cdef Py_ssize_t size = HEAD + (end - body) + len(topic.field) + len(tail)
        cdef int64_t place = offset + out.size
        cdef bytes content = d.cut(body, end)
        out.need(size)
        out.word(<uint32_t>size)
        out.word(MAGIC)
        out.word(<uint32_t>(crc32(content) & 0x7FFFFFFF))
        out.word(<uint32_t>queue_id)
        out.word(<uint32_t>flag)
        out.long_word(<uint64_t>column.following)
        out.long_word(<uint64_t>place)
        out.word(0)
        out.long_word(<uint64_t>born)
        out.put(born_host)
        out.long_word(<uint64_t>now)
        out.put(store_host)
        out.word(0)
        out.long_word(0)
        out.word(<uint32_t>(end - body))
        out.put(content)
        out.put(topic.field)
        out.put(tail)
        column.offsets.append(place)
        column.sizes.append(size)
        column.codes.append(code)
        column.uniques.append(unique)
        column.keys.append(words)
        column.texts.append(tail)
        column.born.append(born)
        column.following += 1
        return 0

    cdef int answer(
        self, int64_t opaque, bint binary, bytes host_hex, int64_t offset, int64_t queue_id, int64_t queue_offset
    ) except -1:
        """The answer to a send, as ``sendanswer.send_answer`` writes it."""
        cdef Writer out = self.answers
        cdef Py_ssize_t begin = out.size
        if binary:
            out.put(self.reply(opaque, True, [offset], queue_id, queue_offset, self.unique.decode()))
            return 0
        out.long_word(0)
        out.put(b'{"code":0,"extFields":{"msgId":"')
        out.put(host_hex)
        out.hexadecimal(<uint64_t>offset)
        out.put(b'","queueId":"')
        out.decimal(queue_id)
        out.put(b'","queueOffset":"')
        out.decimal(queue_offset)
        out.put(b'","transactionId":"')
        out.put(self.unique)
        out.put(REST)
        out.decimal(opaque)
        out.put(TAIL)
        out.set_word(begin, <uint32_t>(out.size - begin - 4))
        out.set_word(begin + 4, <uint32_t>(out.size - begin - 8))
        return 0


from verniermq.kernel.codes import PROTOCOL_LANGUAGE, PROTOCOL_VERSION
from verniermq.kernel.handlers.sendanswer import REGION

cdef bytes REST = f'","MSG_REGION":"{REGION}","TRACE_ON":"true"}},"flag":1,"language":"{PROTOCOL_LANGUAGE}","opaque":'.encode()
cdef bytes TAIL = f',"serializeTypeCurrentRPC":"JSON","version":{PROTOCOL_VERSION}}}'.encode()
