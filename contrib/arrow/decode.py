"""Records of the commit log into Arrow columns, without a loop over the records.

A chunk is one buffer with whole records in it. The head of a record has a fixed layout (drawn in
:mod:`verniermq.kernel.commitlog.record`), so all heads become one numpy array by laying the layout over every byte and
picking the bytes where records begin; with IPv6 hosts there are four layouts, and each takes its records.
Bodies and texts are cut out by Arrow from offsets that the heads give. The result equals what the kernel's own decoder
says of the same bytes.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Final

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from verniermq.contrib.arrow.compression import decompress_bodies
from verniermq.contrib.arrow.pairs import SplitProperties, split_properties
from verniermq.contrib.arrow.places import SMALLEST, corrupt, find_records, parse_entries
from verniermq.contrib.arrow.properties import Bytes, Ints, Properties, are_alike, gather
from verniermq.contrib.arrow.requests import HEAD_BYTES
from verniermq.contrib.arrow.schema import COLUMNS, arrow_schema
from verniermq.kernel import CorruptRecord, java_hash, unpack_host
from verniermq.protocol.inflate import MAX_BODY

MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB

PAD: Final = bytes(128)
"""Read, but never looked at, behind the last record: a head with IPv6 hosts is longer than the shortest record."""

EARLIEST_MS: Final = -62_135_596_800_000
LATEST_MS: Final = 253_402_300_799_999
"""The years 1 to 9999; a timestamp outside them is null, since neither Spark's texts nor Python's dates can show it."""


_ = bytes(31 << 20)
"""Made and freed at once: the C library's allocator learns from it that large blocks come and go, and keeps them.

Otherwise it gives the memory of every chunk back to the system, and a third of the time goes into getting it again.
"""
del _


def _head(born: int, store: int) -> np.dtype[Any]:
    return np.dtype(
        [
            ("size", ">i4"), ("magic", ">u4"), ("crc", ">i4"), ("queueId", ">i4"), ("flag", ">i4"),
            ("queueOffset", ">i8"), ("commitLogOffset", ">i8"), ("sysFlag", ">i4"), ("bornTimestamp", ">i8"),
            ("bornHost", f"V{born}"), ("storeTimestamp", ">i8"), ("storeHost", f"V{store}"),
            ("reconsumeTimes", ">i4"), ("preparedTransactionOffset", ">i8"), ("bodyLength", ">i4"),
        ]
    )  # fmt: skip


HEADS: Final = [_head(8, 8), _head(20, 8), _head(8, 20), _head(20, 20)]
"""By the two bits of the system flag that say IPv6: 0x10 for the born host, 0x20 for the store host."""

_NUMBERS: Final = tuple(name for name in HEADS[0].names or () if not name.endswith("Host"))


@attrs.frozen(eq=False)
class ColumnLayout:
    """Where everything lies in a chunk, per record."""

    data: Bytes
    starts: Ints
    heads: npt.NDArray[Any] | None
    """As they are, if all have the same layout."""
    fields: dict[str, npt.NDArray[Any]]
    """The numbers of the heads, in this machine's byte order."""
    kinds: npt.NDArray[np.int64]
    """Which of the four heads."""
    bodies: Ints
    topics: Ints
    topic_lengths: Ints
    texts: Ints
    text_lengths: Ints

    @classmethod
    def of(cls, buffer: bytes, end: int, starts: Ints, sizes: Ints) -> ColumnLayout:
        """Look at the records in the first ``end`` bytes of a buffer.

        Raises:
            CorruptRecord: something at one of the places is no record of that size.
        """
        data = np.frombuffer(buffer if len(buffer) - end >= len(PAD) else buffer + PAD, dtype=np.uint8)
        if len(starts) and (sizes.min() < SMALLEST or int((starts + sizes).max()) > end):
            raise corrupt(buffer[:end])
        kinds = (data[starts + 39].astype(np.int64) >> 4) & 3
        heads, fields = _fields(data, starts, kinds)
        widths = np.array([head.itemsize for head in HEADS], dtype=np.int64)[kinds]
        body_lengths = fields["bodyLength"].astype(np.int64)
        second = fields["magic"] == MAGIC_V2
        stops = starts + sizes
        bodies = starts + widths
        topics = bodies + body_lengths + 1 + second
        fine = (second | (fields["magic"] == MAGIC_V1)) & (fields["size"] == sizes)
        fine &= (body_lengths >= 0) & (topics <= stops)
        inside = np.where(fine, topics, 2)
        low = data[inside - 1].astype(np.int64)
        topic_lengths = np.where(second, (data[inside - 2].astype(np.int64) << 8) + low, low)
        texts = topics + topic_lengths + 2
        fine &= texts <= stops
        inside = np.where(fine, texts, 2)
        text_lengths = (data[inside - 2].astype(np.int64) << 8) + data[inside - 1]
        fine &= texts + text_lengths == stops
        if not fine.all():
            raise corrupt(buffer[:end])
        return cls(data, starts, heads, fields, kinds, bodies, topics, topic_lengths, texts, text_lengths)

    @classmethod
    def of_heads(cls, buffer: bytes, end: int, sizes: Ints) -> ColumnLayout:
        """Look at the heads of records in the first ``end`` bytes of a buffer; nothing is known of what follows a head.

        Raises:
            CorruptRecord: something there is no head of a record of that size.
        """
        lengths = np.minimum(sizes, HEAD_BYTES)
        starts = np.cumsum(lengths) - lengths
        if len(sizes) and (int(sizes.min()) < SMALLEST or int(lengths.sum()) != end):
            raise CorruptRecord(0, f"the entries tell of {int(lengths.sum())} bytes of heads, and there are {end}")
        data = np.frombuffer(buffer if len(buffer) - end >= len(PAD) else buffer + PAD, dtype=np.uint8)
        kinds = (data[starts + 39].astype(np.int64) >> 4) & 3
        heads, fields = _fields(data, starts, kinds)
        fine = ((fields["magic"] == MAGIC_V2) | (fields["magic"] == MAGIC_V1)) & (fields["size"] == sizes)
        if not fine.all():
            wrong = int(np.flatnonzero(~fine)[0])
            raise CorruptRecord(int(fields["commitLogOffset"][wrong]), f"head {wrong} of a range is of no record")
        nothing = np.empty(0, dtype=np.int64)
        return cls(data, starts, heads, fields, kinds, nothing, nothing, nothing, nothing, nothing)

    def host(self, name: str) -> pa.Array:
        """A host as text. There are few different ones, often only one, so each is written once."""
        if self.heads is not None:
            packed = np.ascontiguousarray(self.heads[name])
            if packed.itemsize == 8:
                numbers = packed.view(np.uint64)
                if len(numbers) and bool(np.all(numbers == numbers[0])):
                    return pa.repeat(pa.scalar(unpack_host(packed[0].tobytes()), pa.string()), len(numbers))
                codes = pa.array(numbers).dictionary_encode()
                hosts = [unpack_host(struct.pack("=Q", number)) for number in codes.dictionary.to_pylist()]
                return pa.array(hosts, pa.string()).take(codes.indices)
        bit, at = (1, 48) if name == "bornHost" else (2, 64)
        shifted = 12 * (self.kinds & 1) if name == "storeHost" else np.zeros_like(self.kinds)
        places = (self.starts + at + shifted).tolist()
        lengths = np.where(self.kinds & bit, 20, 8).tolist()
        pieces = [self.data[start : start + size].tobytes() for start, size in zip(places, lengths, strict=True)]
        return pa.array([unpack_host(packed) for packed in pieces], pa.string())

    def check_crc(self) -> None:
        """
        Raises:
            CorruptRecord: a body is not what its checksum says.
        """
        view = self.data.data
        lengths = self.fields["bodyLength"].tolist()
        for start, length, expected in zip(self.bodies.tolist(), lengths, self.fields["crc"].tolist(), strict=True):
            found = zlib.crc32(view[start : start + length]) & 0x7FFFFFFF
            if length and found != expected:
                offset = int(self.fields["commitLogOffset"][self.bodies == start][0])
                raise CorruptRecord(offset, f"its body's checksum is {found:#x} and not {expected & 0xFFFFFFFF:#x}")


def _pick(data: Bytes, starts: Ints, kind: np.dtype[Any]) -> npt.NDArray[Any]:
    """What lies at each place, read as ``kind``: laid over every byte, and picked where something begins.

    Picked as bytes without a meaning, which numpy copies whole; with fields it would copy them one by one.
    """
    plain = np.dtype(f"V{kind.itemsize}")
    everywhere: npt.NDArray[Any] = np.ndarray((len(data) - kind.itemsize + 1,), plain, data.data, strides=(1,))
    return everywhere[starts].view(kind)


def _fields(
    data: Bytes, starts: Ints, kinds: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[Any] | None, dict[str, npt.NDArray[Any]]]:
    first = int(kinds[0]) if len(kinds) else 0
    if not len(kinds) or bool(np.all(kinds == first)):
        heads = _pick(data, starts, HEADS[first])
        return heads, {name: heads[name].astype(heads[name].dtype.newbyteorder("=")) for name in _NUMBERS}
    fields: dict[str, npt.NDArray[Any]] = {
        name: np.empty(len(starts), HEADS[0][name].newbyteorder("=")) for name in _NUMBERS
    }
    for kind, layout in enumerate(HEADS):
        rows = np.flatnonzero(kinds == kind)
        heads = _pick(data, starts[rows], layout)
        for name in _NUMBERS:
            fields[name][rows] = heads[name]
    return None, fields


def decode_columns(
    buffer: bytes,
    columns: Sequence[str] = COLUMNS,
    *,
    record_bytes: int | None = None,
    check_crc: bool = False,
    decompress: bool = False,
    max_body_size: int = MAX_BODY,
) -> pa.RecordBatch:
    """The records of a chunk as columns. With ``record_bytes``, what is behind them are their consume-queue entries.

    Raises:
        CorruptRecord: the bytes are no records, or a text in them is not UTF-8.
        BodyNotInflated: a compressed body is not what it says, or larger than ``max_body_size``.
    """
    codes: Ints | None = None
    end = len(buffer) if record_bytes is None else record_bytes
    if record_bytes is None:
        starts, sizes = find_records(buffer)
    else:
        starts, sizes, codes = parse_entries(buffer[record_bytes:])
        if int(sizes.sum()) != end:
            raise CorruptRecord(0, f"the entries tell of {int(sizes.sum())} bytes of records, and there are {end}")
    layout = ColumnLayout.of(buffer, end, starts, sizes)
    if check_crc:
        layout.check_crc()
    try:
        return _Columns(layout, codes, decompress, max_body_size).batch(columns)
    except UnicodeDecodeError:
        raise corrupt(buffer[:end]) from None


def decode_heads(buffer: bytes, columns: Sequence[str], topic: str, record_bytes: int) -> pa.RecordBatch:
    """The events of a chunk of heads with their entries behind them. ``columns`` are some of ``EVENT_COLUMNS``.

    Raises:
        CorruptRecord: the bytes are no heads of records.
    """
    _, sizes, codes = parse_entries(buffer[record_bytes:])
    layout = ColumnLayout.of_heads(buffer, record_bytes, sizes)
    made = _Columns(layout, codes, decompress=False, max_body_size=0)
    arrays = [
        pa.repeat(pa.scalar(topic, pa.string()), len(sizes)) if name == "topic" else made.column(name)
        for name in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(tuple(columns)))


@attrs.define(eq=False)
class _Columns:
    """The columns of one chunk; properties are split once, if any column needs them."""

    layout: ColumnLayout
    codes: Ints | None
    decompress: bool
    max_body_size: int
    _properties: Properties | SplitProperties | None = None

    def batch(self, names: Sequence[str]) -> pa.RecordBatch:
        if "properties" in names:
            self.properties.prepare_maps()
        return pa.RecordBatch.from_arrays([self.column(name) for name in names], schema=arrow_schema(tuple(names)))

    def column(self, name: str) -> pa.Array:
        make = _MADE.get(name)
        return pa.array(self.layout.fields[name]) if make is None else make(self)

    @property
    def properties(self) -> Properties | SplitProperties:
        if self._properties is None:
            layout = self.layout
            self._properties = split_properties(layout.data, layout.texts, layout.text_lengths)
        return self._properties

    def topic(self) -> pa.Array:
        """A queue's records have all the same; only a buffer of several topics needs a closer look."""
        data, starts, lengths = self.layout.data, self.layout.topics, self.layout.topic_lengths
        if len(starts) and bool(np.all(lengths == lengths[0])) and are_alike(data, starts, int(lengths[0])):
            name = data[starts[0] : starts[0] + lengths[0]].tobytes().decode()
            return pa.repeat(pa.scalar(name, pa.string()), len(starts))
        topics = gather(data, starts, lengths, pa.binary())
        codes = topics.dictionary_encode()
        names = [str(name, "utf-8") for name in codes.dictionary.to_pylist()]
        return pa.array(names, pa.string()).take(codes.indices)

    def body(self) -> pa.Array:
        layout = self.layout
        bodies = gather(layout.data, layout.bodies, layout.fields["bodyLength"].astype(np.int64), pa.binary())
        if not self.decompress:
            return bodies
        return decompress_bodies(bodies, layout.fields["sysFlag"], layout.fields["commitLogOffset"], self.max_body_size)

    def tags_code(self) -> pa.Array:
        if self.codes is not None:
            return pa.array(self.codes)
        tags = self.properties.column("TAGS").dictionary_encode()
        hashes = pa.array([java_hash(text) for text in tags.dictionary.to_pylist()], pa.int64())
        return hashes.take(tags.indices).fill_null(0)

    def timestamp(self, name: str) -> pa.Array:
        ms = self.layout.fields[name]
        outside = (ms < EARLIEST_MS) | (ms > LATEST_MS)
        micros = np.where(outside, 0, ms) * 1000
        return pa.array(micros, mask=outside if outside.any() else None).cast(pa.timestamp("us", tz="UTC"))


_MADE: Final[dict[str, Callable[[_Columns], pa.Array]]] = {
    "topic": _Columns.topic,
    "tags": lambda columns: columns.properties.column("TAGS"),
    "tagsCode": _Columns.tags_code,
    "keys": lambda columns: columns.properties.column("KEYS"),
    "uniqueKey": lambda columns: columns.properties.column("UNIQ_KEY"),
    "bornTimestamp": lambda columns: columns.timestamp("bornTimestamp"),
    "storeTimestamp": lambda columns: columns.timestamp("storeTimestamp"),
    "bornHost": lambda columns: columns.layout.host("bornHost"),
    "storeHost": lambda columns: columns.layout.host("storeHost"),
    "properties": lambda columns: columns.properties.maps(),
    "body": _Columns.body,
}
"""The columns that are not simply a number of the head."""
