"""The timers' files of a stopped broker, looked at by ``verniermq store check`` and mended by ``repair``.

A start mends them too, but reads only what it has to; here everything is read and compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from verniermq.plugins.schedule.timers.check import TimerCheckpoint, backup_of, read_check, write_check
from verniermq.plugins.schedule.timers.doubt import doubt
from verniermq.plugins.schedule.timers.timerlog import TimerLog
from verniermq.plugins.schedule.timers.wheel import SIZE, Wheel


def examine(root: Path, *, mend: bool) -> Iterator[str]:
    """Say what is damaged, a line each; with ``mend``, have the next start make it again from what is left.

    Raises:
        OSError: a file cannot be read or written.
    """
    if not (root / "timerlog").is_dir():
        return
    path, wheel = root / "config" / "timercheck", root / "timerwheel"
    found, backup = read_check(path), read_check(backup_of(path))
    check, why = found, "it is damaged or gone" if found is None else doubt(root, found, backup)
    if why:
        check = None if backup is None or doubt(root, backup, None) else backup
        if check is not None:
            yield f"{path}: {why}; " + ("its backup is put there" if mend else "its backup is whole")
            if mend:
                write_check(path, check.encode())
        else:
            yield f"{path}: {why}, and there is no backup; a start takes for delivered what was due long enough ago"
    check = check or TimerCheckpoint(0, 0, 0)
    log = TimerLog(root / "timerlog", SIZE, check.file_size)
    newest = {entry.slot: position for position, entry in log.scan(log.start) if entry.slot >= check.second}
    has_lost = log.end < check.log_position or log.start > check.log_start >= 0
    if has_lost:
        yield (
            f"{log.directory} has whole records from {log.start} to {log.end}, not from {max(check.log_start, 0)} to "
            f"{check.log_position}; what is missing is taken in again at the next start"
        )
    wrong = _wrong_slots(wheel, newest)
    if wrong:
        yield f"{wheel}: {wrong}; it is made again " + ("at the next start" if mend else "by a start or a repair")
    if mend and (has_lost or wrong):
        if has_lost:
            log.cut(log.end)
        wheel.unlink(missing_ok=True)


def _wrong_slots(path: Path, newest: dict[int, int]) -> str:
    """What is wrong with a wheel, given the newest record of each second; nothing if it is whole."""
    size = path.stat().st_size if path.exists() else 0
    if size != SIZE:
        return f"it has {size} bytes, expected {SIZE}" if newest or size else ""
    wheel = Wheel(path)
    slots = {second: wheel.get(second) for second in newest}
    wrong = sum(slot is None or slot.last != newest[second] for second, slot in slots.items())
    return f"{wrong} of {len(newest)} waiting seconds do not lead to their newest message" if wrong else ""
