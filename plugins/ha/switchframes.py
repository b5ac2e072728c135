"""The bytes between an elected master and those who follow it (RocketMQ: ``AutoSwitchHAService``); no sockets here.

::

    follower → master   i32 1, i16 0, i16 flags, i64 number, u16 length, JSON      who it is, see Greeting
                        i32 2, i64 where its log ends                              after each block, and every second
    master → follower   i32 1, i32 size, i64 log end, i32 term, (i32 term, i64 start) …   its epochs, once
                        i32 2, i32 size, i64 offset, i32 term, i64 start, i64 confirm, bytes

All is as at Apache but the JSON, which bit 14 of the flags announces: a number alone does not tell which process it is
that has it, nor whether it lost what it acknowledged.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

import attrs
import orjson

from verniermq.kernel import ProtocolError
from verniermq.plugins.ha.epochs import Epochs
from verniermq.plugins.ha.frames import LARGEST_BLOCK

HANDSHAKE: Final = 1
TRANSFER: Final = 2
DESCRIBED: Final = 0x4000

_GREETING = struct.Struct(">ihhq")
_LENGTH = struct.Struct(">H")
_REPORT = struct.Struct(">iq")
_EPOCHS = struct.Struct(">iiqi")
_EPOCH = struct.Struct(">iq")
_BLOCK = struct.Struct(">iiqiqq")
_STATE = struct.Struct(">i")

MOST_EPOCHS: Final = 1000


@attrs.frozen
class Greeting:
    """Who a follower is, and whom it takes its peer for."""

    replica: int
    incarnation: str
    term: int
    cluster: str
    name: str
    segment_size: int

    def packed(self) -> bytes:
        text = orjson.dumps({**attrs.asdict(self), "replica": None})
        return _GREETING.pack(HANDSHAKE, 0, DESCRIBED, self.replica) + _LENGTH.pack(len(text)) + text


@attrs.frozen
class History:
    """Which epochs a master's log has, and where it ends."""

    end: int
    term: int
    epochs: Epochs

    def packed(self) -> bytes:
        body = b"".join(_EPOCH.pack(*epoch) for epoch in self.epochs[-MOST_EPOCHS:])
        return _EPOCHS.pack(HANDSHAKE, len(body), self.end, self.term) + body


@attrs.frozen
class Block:
    """A part of a master's log, perhaps without a byte, and up to where the log is confirmed."""

    offset: int
    term: int
    epoch_start: int
    confirm: int
    body: bytes

    def packed(self) -> bytes:
        head = _BLOCK.pack(TRANSFER, len(self.body), self.offset, self.term, self.epoch_start, self.confirm)
        return head + self.body


FromFollower: TypeAlias = Greeting | int
FromMaster: TypeAlias = History | Block


def report(end: int) -> bytes:
    return _REPORT.pack(TRANSFER, end)


class _Stream:
    """Bytes as they come, cut into messages."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[Any]:
        self._data += data
        position = 0
        try:
            while len(self._data) - position >= _STATE.size:
                found = self._one(position)
                if found is None:
                    break
                position, message = found
                yield message
        finally:
            del self._data[:position]

    def _one(self, position: int) -> tuple[int, Any] | None:
        raise NotImplementedError

    def _unpack(self, shape: struct.Struct, position: int) -> tuple[Any, ...] | None:
        return shape.unpack_from(self._data, position) if len(self._data) - position >= shape.size else None


class FollowerStream(_Stream):
    """What a follower says: a :class:`Greeting`, then where its log ends.

    Raises:
        ProtocolError: it says something else.
    """

    def _one(self, position: int) -> tuple[int, FromFollower] | None:
        (state,) = _STATE.unpack_from(self._data, position)
        if state == TRANSFER:
            fields = self._unpack(_REPORT, position)
            return None if fields is None else (position + _REPORT.size, fields[1])
        if state != HANDSHAKE:
            raise ProtocolError(f"a follower says {state}, neither 1 nor 2: the peer is none")
        fields = self._unpack(_GREETING, position)
        if fields is None:
            return None
        _, _, flags, replica = fields
        if not flags & DESCRIBED:
            raise ProtocolError(f"replica {replica} does not say which process it is: it is no VernierMQ broker")
        length = self._unpack(_LENGTH, position + _GREETING.size)
        start = position + _GREETING.size + _LENGTH.size
        if length is None or len(self._data) < start + length[0]:
            return None
        return start + length[0], _greeting(replica, bytes(self._data[start : start + length[0]]))


def _greeting(replica: int, text: bytes) -> Greeting:
    try:
        data = orjson.loads(text)
        return Greeting(
            replica, str(data["incarnation"]), int(data["term"]), str(data["cluster"]), str(data["name"]),
            int(data["segment_size"]),
        )  # fmt: skip
    except (ValueError, KeyError, TypeError) as error:
        raise ProtocolError(f"replica {replica} does not say who it is: {error!r}") from error


class MasterStream(_Stream):
    """What a master says: its :class:`History`, then :class:`Block` after block.

    Raises:
        ProtocolError: it says something else.
    """

    def _one(self, position: int) -> tuple[int, FromMaster] | None:
        (state,) = _STATE.unpack_from(self._data, position)
        if state == TRANSFER:
            fields = self._unpack(_BLOCK, position)
            if fields is None:
                return None
            _, size, offset, term, start, confirm = fields
            if not 0 <= size <= LARGEST_BLOCK or offset < 0:
                raise ProtocolError(f"a block of {size} bytes at {offset}: the peer is no master")
            at = position + _BLOCK.size
            if len(self._data) < at + size:
                return None
            return at + size, Block(offset, term, start, confirm, bytes(memoryview(self._data)[at : at + size]))
        if state != HANDSHAKE:
            raise ProtocolError(f"a master says {state}, neither 1 nor 2: the peer is none")
        fields = self._unpack(_EPOCHS, position)
        if fields is None:
            return None
        _, size, end, term = fields
        if not 0 <= size <= MOST_EPOCHS * _EPOCH.size or size % _EPOCH.size:
            raise ProtocolError(f"a master's epochs have {size} bytes: the peer is none")
        at = position + _EPOCHS.size
        if len(self._data) < at + size:
            return None
        epochs = tuple(_EPOCH.iter_unpack(bytes(self._data[at : at + size])))
        return at + size, History(end, term, epochs)
