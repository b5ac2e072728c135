"""How far the timers are: ``config/timercheck`` (RocketMQ: ``TimerCheckpoint``).

4096 bytes, numbers of 8 bytes, big-endian::

    offset  field
         0  the second that is delivered next, in ms
         8  the timer log and the wheel are on the disk up to this position of the timer log
        16  the next offset of rmq_sys_wheel_timer, queue 0, to take in
        24  the same again (an Apache slave keeps its master's here)
        32  version: state, timestamp, counter
        64  ours: "VERNTIM2"
        72  a copy of the 32 bytes at 0; if it differs, an Apache broker went on since, and the rest is void
       104  within that second: when the last delivered message was due, 1 to 1000 ms after its begin
       112  and its position in the timer log
       120  where the timer log begins
       128  the size of its files
       136  a second, and
       144  how many slots of the wheel wait from it on
       152  CRC-32 of the bytes from 64 to here

The same stands in ``timercheck.bak``, which is written first: nothing else says what was delivered.
"""

from __future__ import annotations

import logging
import os
import struct
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from verniermq.kernel import sync_directory, write_all
from verniermq.plugins.schedule.timers.timerlog import TimerLog
from verniermq.plugins.schedule.timers.wheel import Wheel

logger = logging.getLogger(__name__)

SIZE: Final = 4096
MARK: Final = b"VERNTIM2"
FORMER_MARK: Final = b"VERNTIM1"
"""Of a version that noted less; read like an Apache broker's."""
LATEST_MS: Final = 1 << 46
"""In the year 4199: no clock says more."""
_APACHE: Final = struct.Struct(">7q")
_COPIED: Final = 32
_OURS_AT: Final = 64
_OURS: Final = struct.Struct(f">8s{_COPIED}s6q")
_CRC: Final = struct.Struct(">I")


@attrs.frozen
class TimerCheckpoint:
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
    log_start: int = -1
    file_size: int = 0
    """Of the timer log; -1 and 0 if that is not known."""
    slots_from: int = 0
    slots: int = -1
    """How many slots of the wheel had messages from the second ``slots_from`` on; -1 if that is not known."""
    is_ours: bool = attrs.field(default=True, eq=False)
    """We wrote it last, not an Apache broker."""

    def encode_for_slave(self) -> bytes:
        """RocketMQ's part of the file, as its slaves get it."""
        return _APACHE.pack(
            self.second * 1000, self.log_position, self.queue_offset, self.queue_offset, 0, self.timestamp, self.counter
        )

    def encode(self) -> bytes:
        content = bytearray(SIZE)
        content[: _APACHE.size] = self.encode_for_slave()
        ours = _OURS.pack(
            MARK, bytes(content[:_COPIED]), self.within, self.position, self.log_start, self.file_size,
            self.slots_from, self.slots,
        )  # fmt: skip
        content[_OURS_AT : _OURS_AT + len(ours)] = ours
        _CRC.pack_into(content, _OURS_AT + len(ours), zlib.crc32(ours))
        return bytes(content)

    @classmethod
    def decode(cls, content: bytes) -> TimerCheckpoint | None:
        """The values; ``None`` if the file is damaged."""
        end = _OURS_AT + _OURS.size
        if len(content) != SIZE or not any(content[: _APACHE.size]):
            return None
        ours = content[_OURS_AT:end]
        is_valid = _CRC.unpack_from(content, end)[0] == zlib.crc32(ours) and ours[: len(MARK)] == MARK
        if any(ours) and not is_valid and ours[: len(MARK)] != FORMER_MARK:
            return None
        read_ms, log_position, queue_offset, _, _, timestamp, counter = _APACHE.unpack_from(content)
        if not 0 < read_ms <= LATEST_MS or log_position < 0 or queue_offset < 0:
            return None
        check = cls(read_ms // 1000, log_position, queue_offset, 0, -1, timestamp, counter, is_ours=False)
        if is_valid and ours[len(MARK) : len(MARK) + _COPIED] == content[:_COPIED]:
            _, _, within, position, log_start, file_size, slots_from, slots = _OURS.unpack(ours)
            check = attrs.evolve(
                check, within=within, position=position, log_start=log_start, file_size=file_size,
                slots_from=slots_from, slots=slots, is_ours=True,
            )  # fmt: skip
        return check


Doubt = Callable[[TimerCheckpoint, TimerCheckpoint | None], str]


@attrs.define(eq=False)
class TimerCheckpointFile:
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
        content = data["check"].encode()
        write_check(backup_of(self.path), content)
        write_check(self.path, content)


def backup_of(path: Path) -> Path:
    return path.with_name(path.name + ".bak")


def write_check(path: Path, content: bytes) -> None:
    """
    Raises:
        OSError: the disk refused.
    """
    is_new = not path.exists()
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        # One page: old or new after a crash, or the CRC tells.
        write_all(descriptor, content, 0)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    if is_new:
        sync_directory(path.parent)


def load_check(path: Path, doubt: Doubt) -> TimerCheckpoint | None:
    """What the file says, or its backup if that is damaged, gone or cannot be true; ``None`` if neither can be used.

    Args:
        doubt: why a file's values cannot be true, given the other's
    """
    found, backup = read_check(path), read_check(backup_of(path))
    why = "it is damaged or gone" if found is None else doubt(found, backup)
    if not why:
        return found
    if backup is not None and doubt(backup, None):
        backup = None
    if backup is not None:
        logger.warning(
            "the timers' progress cannot be used: %s; its backup is, and the timers are made again from second %d on "
            "path=%s", why, backup.second, path,
        )  # fmt: skip
    elif found is not None:
        logger.error("the timers' progress cannot be used, and there is no backup: %s path=%s", why, path)
    return backup


def read_check(path: Path) -> TimerCheckpoint | None:
    """What one of the two says; ``None`` if it is damaged or gone."""
    try:
        return TimerCheckpoint.decode(path.read_bytes())
    except FileNotFoundError:
        return None
