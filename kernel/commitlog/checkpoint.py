"""The ``checkpoint`` file: how far the store is known to be whole (RocketMQ: ``StoreCheckpoint``).

4096 bytes, big-endian; the first 40 are RocketMQ's::

    offset  bytes  field
         0      8  store timestamp of the last record known to be durable in the commit log
         8      8  store timestamp of the last record whose consume-queue entry is durable
        16      8  end of the last full index file
        24      8  master's flushed offset
        32      8  confirmed offset

Timestamps choose only the file to begin with, which may be a gigabyte before the end. So VernierMQ adds, where
RocketMQ leaves zeros, the exact offsets before which the log and the consume queues are durable::

        64      8  "VERNIER2"; before it was "VERNIER1", with other numbers at 128
        72     40  a copy of bytes 0 to 39: another broker that ran since has changed them
       112      8  the log is on the disk before this offset
       120      8  the consume queues are on the disk, and complete, for every record before this offset
       128      8  how many entries the consume queues' files hold for those records, -1 if that is not known
       136      8  0
       144      4  CRC-32 of bytes 64 to 143

The number of entries is what tells that a queue, a file or the end of one is missing: each of them makes it smaller.
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path

import attrs

from verniermq.kernel.commitlog.mapped import sync_directory, write_all

SIZE = 4096
_APACHE = struct.Struct(">5q")
_OURS_AT = 64
_OURS = struct.Struct(">8s40s4q")
_MARK = b"VERNIER2"
_MARKS = (_MARK, b"VERNIER1")
_CRC = struct.Struct(">I")

SAFETY_MS = 3000
"""RocketMQ begins this much before the checkpoint's time."""


@attrs.define
class Checkpoint:
    """The values of the file; all zero when there is none."""

    log_timestamp: int = 0
    queue_timestamp: int = 0
    index_timestamp: int = 0
    master_flushed: int = 0
    confirmed: int = 0
    log_durable: int | None = None
    """The log is on the disk before this offset; ``None`` when the file does not say."""
    queues_durable: int | None = None
    """The queues are on the disk for every record before this offset."""
    entries: int = -1
    """How many entries the queues' files hold for those records; -1 if that is not known."""

    @property
    def min_timestamp(self) -> int:
        """A record stored before this is in the log and in its queue for sure."""
        return max(0, min(self.log_timestamp, self.queue_timestamp) - SAFETY_MS)

    @classmethod
    def load(cls, path: Path) -> Checkpoint:
        """Read the file; a missing, short or torn one says nothing."""
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return cls()
        if len(content) < _APACHE.size:
            return cls()
        found = cls(*_APACHE.unpack_from(content))
        end = _OURS_AT + _OURS.size
        if len(content) >= end + _CRC.size:
            mark, copy, log, indexed, entries, _ = _OURS.unpack_from(content, _OURS_AT)
            (crc,) = _CRC.unpack_from(content, end)
            if mark in _MARKS and crc == zlib.crc32(content[_OURS_AT:end]) and copy == content[: _APACHE.size]:
                found.log_durable, found.queues_durable = log, indexed
                found.entries = entries if mark == _MARK else -1
        return found

    def save(self, path: Path) -> None:
        """Write and sync the file. Its 4096 bytes are one page: old or new after a crash, or the CRC tells."""
        content = bytearray(SIZE)
        _APACHE.pack_into(
            content,
            0,
            self.log_timestamp,
            self.queue_timestamp,
            self.index_timestamp,
            self.master_flushed,
            self.confirmed,
        )
        if self.log_durable is not None and self.queues_durable is not None:
            ours = _OURS.pack(
                _MARK,
                bytes(content[: _APACHE.size]),
                self.log_durable,
                self.queues_durable,
                self.entries,
                0,
            )
            content[_OURS_AT : _OURS_AT + len(ours) + _CRC.size] = ours + _CRC.pack(zlib.crc32(ours))
        is_new = not path.exists()
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            write_all(descriptor, content, 0)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if is_new:
            sync_directory(path.parent)
