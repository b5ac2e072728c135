"""Every kind of damage to each of the timers' files: no timed message is lost, and none that came comes again."""

from __future__ import annotations

import logging
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from tests.killed import copy_as_killed
from tests.plugins.peer import served
from verniermq.plugins.schedule.timers.check import read_check
from verniermq.plugins.schedule.timers.examine import examine
from verniermq.testing import ManualClock

pytestmark = pytest.mark.anyio

START = 1_700_000_000
SETTINGS = {
    "plugins__schedule__timer_file_size": "4KiB",  # 78 records to a file
    "store__segment_size": "1MiB",
    "store__max_message_size": "64KiB",
    "plugins__schedule__persist_interval": "10ms",
    "store__flush_interval": "10ms",
}
BEFORE = [5000 + 20 * number for number in range(50)]
MEANWHILE = [20_000 + 20 * number for number in range(50)]
AFTER = [100_000 + 500 * number for number in range(70)]
ALL = BEFORE + MEANWHILE + AFTER
"""When messages are due; each file of the timer log has some of each kind."""


def truncated(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 10])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def zeroed(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def scrambled(path: Path) -> None:
    path.write_bytes(random.Random(1).randbytes(path.stat().st_size))


def removed(path: Path) -> None:
    path.unlink()


def partly(damage: bytes, *, of: str) -> Callable[[Path], None]:
    """Damage in one page of a file, where it is in use."""

    def write(path: Path) -> None:
        content = bytearray(path.read_bytes())
        used = len(content) - len(content.lstrip(b"\0"))
        start = used - used % 4096 if of == "page" else 20 * 52
        content[start : start + len(damage)] = damage
        path.write_bytes(content)

    return write


WHOLE = [truncated, emptied, zeroed, scrambled, removed]
DAMAGES = {
    **{f"{what}, {how.__name__}": (what, how) for what in ("wheel", "first log", "last log", "check") for how in WHOLE},
    "wheel, a page zeroed": ("wheel", partly(bytes(4096), of="page")),
    "wheel, a page scrambled": ("wheel", partly(random.Random(2).randbytes(4096), of="page")),
    "first log, some records zeroed": ("first log", partly(bytes(500), of="records")),
    "first log, some records scrambled": ("first log", partly(random.Random(3).randbytes(500), of="records")),
}


def file_of(store: Path, what: str) -> Path:
    if what == "wheel":
        return store / "timerwheel"
    if what == "check":
        return store / "config" / "timercheck"
    logs = sorted((store / "timerlog").iterdir())
    return logs[0] if what == "first log" else logs[-1]


async def until_noted(store: Path) -> None:
    """A crash repeats what was delivered since progress was saved last; wait for that, so that nothing is repeated."""
    with anyio.fail_after(60):
        while (check := read_check(store / "config" / "timercheck")) is None or check.second < START + 6:  # noqa: ASYNC110
            await anyio.sleep(0.01)


def copy_with_holes(source: str, target: str) -> None:
    """As a kill leaves the file: everything that was written is there."""
    with open(source, "rb") as read, open(target, "wb") as written:
        while content := read.read(1 << 16):
            if content.count(0) < len(content):
                written.seek(read.tell() - len(content))
                written.write(content)
        written.truncate(read.tell())


def check_and_repair(store: Path) -> None:
    """As ``verniermq store`` does it: what is damaged is shown without a change, and mended."""
    before = {path: path.read_bytes() for path in timer_files(store)}
    shown = list(examine(store, mend=False))
    after = {path: path.read_bytes() for path in timer_files(store)}
    assert shown
    assert after == before

    assert len(list(examine(store, mend=True))) == len(shown)


def timer_files(store: Path) -> list[Path]:
    paths = [store / "timerwheel", *(store / "timerlog").iterdir(), *(store / "config").glob("timercheck*")]
    return [path for path in paths if path.exists()]


@pytest.mark.parametrize("stop", ["stopped", "killed", "repaired"])
@pytest.mark.parametrize("kind", DAMAGES)
async def test_nothing_is_lost_or_comes_twice(
    tmp_path: Path, kind: str, stop: str, caplog: pytest.LogCaptureFixture
) -> None:
    what, damage = DAMAGES[kind]
    clock = ManualClock(START)
    store = tmp_path / "store"
    async with served(store, clock, **SETTINGS) as (_, client):
        for delay in random.Random(4).sample(ALL, len(ALL)):
            await client.sent("orders", b"%d" % delay, TIMER_DELAY_MS=delay)
        await clock.advance(10)
        before = await client.bodies("orders")
        await client.sent("orders", b"now")
        if stop == "killed":
            await until_noted(store)
            copy_as_killed(store, tmp_path / "killed", copy_with_holes)
    store = tmp_path / "killed" if stop == "killed" else store
    assert list(examine(store, mend=False)) == []
    damage(file_of(store, what))
    if stop == "repaired":
        check_and_repair(store)

    await clock.advance(40)
    async with served(store, clock, **SETTINGS) as (_, client):
        await clock.advance(1)
        await client.arrived("orders", len(BEFORE) + 1 + len(MEANWHILE))
        meanwhile = await client.bodies("orders")
        await clock.advance(100)
        await client.arrived("orders", len(BEFORE) + 1 + len(MEANWHILE) + len(AFTER))
        found = await client.bodies("orders")

    assert [int(body) for body in before] == BEFORE
    assert found == meanwhile + [b"%d" % delay for delay in AFTER]
    assert sorted(int(body) for body in meanwhile if body != b"now") == BEFORE + MEANWHILE
    assert stop == "repaired" or any(record.levelno >= logging.WARNING for record in caplog.records)


async def test_without_any_progress_noted_nothing_is_lost_and_what_came_long_ago_does_not_come_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock(START)
    async with served(tmp_path, clock, **SETTINGS) as (_, client):
        for delay in (5_000, 150_000, 300_000):
            await client.sent("orders", b"%d" % delay, TIMER_DELAY_MS=delay)
        await clock.advance(120)
        await client.sent("orders", b"now")
    for name in ("timercheck", "timercheck.bak"):
        (tmp_path / "config" / name).unlink()

    await clock.advance(80)
    async with served(tmp_path, clock, **SETTINGS) as (_, client):
        await clock.advance(1)
        await client.arrived("orders", 3)
        await clock.advance(120)
        await client.arrived("orders", 4)

        assert await client.bodies("orders") == [b"5000", b"now", b"150000", b"300000"]
    assert "nothing says which timed messages were delivered" in caplog.text


@pytest.mark.parametrize("lost", ["timerlog", "everything"])
async def test_what_falls_due_while_it_is_taken_in_again_comes_too(tmp_path: Path, lost: str) -> None:
    """All of one second: the first of them are delivered before the last are taken in."""
    clock = ManualClock(START)
    delays = [20_000 + number for number in range(600)]
    async with served(tmp_path, clock) as (_, client):
        for delay in delays:
            await client.sent("orders", b"%d" % delay, TIMER_DELAY_MS=delay)
    shutil.rmtree(tmp_path / "timerlog")
    if lost == "everything":
        for name in ("timerwheel", "config/timercheck", "config/timercheck.bak"):
            (tmp_path / name).unlink()

    await clock.advance(60)
    async with served(tmp_path, clock) as (_, client):
        await clock.advance(1)
        await client.arrived("orders", len(delays))

        assert sorted(int(body) for body in await client.bodies("orders")) == delays
