"""How far the timers are: ``config/timercheck`` (RocketMQ: ``TimerCheckpoint``).

4096 bytes, numbers of 8 bytes, big-endian::

    offset  field
         0  the second that is delivered next, in ms
         8  the timer log and the wheel are on the disk up to this position of the timer log
        16  the next offset of rmq_sys_wheel_timer, queue 0, to take in
        24  the same again (an Apache slave keeps its master's here)
        32  version: state, timestamp, counter
        64  ours: "VERNTIM1"
        72  a copy of the 32 bytes at 0; if it differs, an Apache broker went on since, and the rest is void
       104  within that second: when the last delivered message was due, 1 to 1000 ms after its begin
       112  and its position in the timer log
       120  CRC-32 of the bytes from 64 to here
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from verniermq.kernel import sync_directory
from verniermq.plugins.schedule.timers.timerlog import TimerLog
from verniermq.plugins.schedule.timers.wheel import Wheel

SIZE: Final = 4096
MARK: Final = b"VERNTIM1"
_APACHE: Final = struct.Struct(">7q")
_COPIED: Final = 32
_OURS_AT: Final = 64
_OURS: Final = struct.Struct(f">8s{_COPIED}s2q")
_CRC: Final = struct.Struct(">I")


@attrs.frozen
class Check:
    """The file's values."""

    second: int
    log_position: int
    queue_offset: int
    within: int = 0
    """In that second, everything due up to here was delivered …"""
    position: int = -1
    """… and of what is due at that very millisecond, up to this record of the timer log."""
    timestamp: int = 0
    counter: int = 0
    is_ours: bool = attrs.field(default=True, eq=False)
    """We wrote it last, not an Apache broker."""

    def encode(self) -> bytes:
        content = bytearray(SIZE)
        _APACHE.pack_into(
            content, 0, self.second * 1000, self.log_position, self.queue_offset, self.queue_offset,
            0, self.timestamp, self.counter,
        )  # fmt: skip
        ours = _OURS.pack(MARK, bytes(content[:_COPIED]), self.within, self.position)
        content[_OURS_AT : _OURS_AT + len(ours)] = ours
        _CRC.pack_into(content, _OURS_AT + len(ours), zlib.crc32(ours))
        return bytes(content)

    @classmethod
    def decode(cls, content: bytes) -> Check | None:
        """The values; ``None`` if the file is too short to have them."""
        if len(content) < _APACHE.size:
            return None
        read_ms, log_position, queue_offset, _, _, timestamp, counter = _APACHE.unpack_from(content)
        check = cls(read_ms // 1000, log_position, queue_offset, 0, -1, timestamp, counter, is_ours=False)
        end = _OURS_AT + _OURS.size
        if len(content) < end + _CRC.size:
            return check
        mark, copy, within, position = _OURS.unpack_from(content, _OURS_AT)
        if mark != MARK or copy != content[:_COPIED] or _CRC.unpack_from(content, end)[0] != zlib.crc32(
            content[_OURS_AT:end]
        ):
            return check
        return attrs.evolve(check, within=within, position=position, is_ours=True)


@attrs.define(eq=False)
class CheckFile:
    """The file, as a table that the broker saves now and then; saving makes log and wheel durable first."""

    path: Path
    _log: TimerLog
    _wheel: Wheel

    def save(self, data: Mapping[str, Any]) -> None:
        """
        Raises:
            OSError: the disk refused.
        """
        self._log.sync()
        self._wheel.sync()
        is_new = not self.path.exists()
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            # One page: old or new after a crash, or the CRC tells.
            os.pwrite(descriptor, data["check"].encode(), 0)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if is_new:
            sync_directory(self.path.parent)


def load_check(path: Path) -> Check | None:
    try:
        return Check.decode(path.read_bytes())
    except FileNotFoundError:
        return None
