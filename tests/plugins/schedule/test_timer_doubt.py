"""A ``timercheck`` whose values cannot be true: it has no checksum where RocketMQ reads it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from tests.killed import copy_as_killed
from tests.plugins.peer import served
from verniermq.plugins.schedule.timers.check import TimerCheckpoint, backup_of, read_check
from verniermq.plugins.schedule.timers.examine import examine
from verniermq.testing import ManualClock

pytestmark = pytest.mark.anyio

START = 1_700_000_000
DAY = 86_400
EARLY, LATER = [5000 + 100 * number for number in range(20)], [100_000 + 500 * number for number in range(20)]
SETTINGS = {"plugins__schedule__persist_interval": "10ms", "store__flush_interval": "10ms"}


def with_number(content: bytes, at: int, number: int) -> bytes:
    return content[:at] + number.to_bytes(8, "big") + content[at + 8 :]


def zeros(begin: int, end: int, content: bytes) -> bytes:
    return content[:begin] + bytes(end - begin) + content[end:]


def number(content: bytes, at: int) -> int:
    return int.from_bytes(content[at : at + 8], "big")


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "zeros over all but the year": lambda content: zeros(3, 600, content),
    "zeros over the rest of the second": lambda content: zeros(3, 8, content),
    "zeros up to our part": lambda content: zeros(3, 64, content),
    "half an hour later": lambda content: with_number(content, 0, number(content, 0) + (1 << 21)),
    "half a minute later": lambda content: with_number(content, 0, number(content, 0) + 32_768),
    "a position behind the files": lambda content: with_number(content, 8, 52 << 30),
    "a position within a record": lambda content: with_number(content, 8, number(content, 8) - 1),
    "an offset behind the queue": lambda content: with_number(content, 16, 1 << 40),
    "no offset": lambda content: with_number(content, 16, 0),
}


async def send_and_stop(store: Path, clock: ManualClock) -> None:
    async with served(store, clock, **SETTINGS) as (_, client):
        for delay in EARLY + LATER:
            await client.sent("orders", b"%d" % delay, TIMER_DELAY_MS=delay)
        await clock.advance(10)
        await client.arrived("orders", len(EARLY))
        await client.sent("orders", b"now")


@pytest.mark.parametrize("is_repaired", [False, True])
@pytest.mark.parametrize("damage", DAMAGES)
async def test_values_that_cannot_be_true_are_said_and_nothing_is_lost_or_comes_twice(
    tmp_path: Path, damage: str, is_repaired: bool, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock(START)
    await send_and_stop(tmp_path, clock)
    path = tmp_path / "config" / "timercheck"
    assert list(examine(tmp_path, mend=False)) == []
    path.write_bytes(DAMAGES[damage](path.read_bytes()))

    (said,) = examine(tmp_path, mend=is_repaired)
    caplog.clear()
    async with served(tmp_path, clock, **SETTINGS) as (_, client):
        await clock.advance(200)
        await client.arrived("orders", len(EARLY) + 1 + len(LATER))
        found = await client.bodies("orders")

    assert said.startswith(f"{path}: it differs from its backup")
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert any(str(path) in line and "its backup is" in line for line in warnings) is not is_repaired
    assert found == [b"%d" % delay for delay in EARLY] + [b"now"] + [b"%d" % delay for delay in LATER]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda content: zeros(3, 600, content), "more than two weeks before"),
        (lambda content: with_number(content, 0, number(content, 0) + (1 << 21)), "before it came"),
        (lambda content: with_number(content, 8, number(content, 8) - 1), "no record of the timer log begins"),
    ],
)
async def test_without_a_backup_nothing_is_lost_either(
    tmp_path: Path, damage: Callable[[bytes], bytes], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As an Apache broker leaves the file: it writes no backup."""
    clock = ManualClock(START)
    await send_and_stop(tmp_path, clock)
    path = tmp_path / "config" / "timercheck"
    backup_of(path).unlink()
    path.write_bytes(damage(zeros(56, 4096, path.read_bytes())))

    said = list(examine(tmp_path, mend=False))
    async with served(tmp_path, clock, **SETTINGS) as (_, client):
        await clock.advance(200)
        await client.arrived("orders", len(EARLY) + 1 + len(LATER))
        found = await client.bodies("orders")

    assert reason in said[0]
    assert reason in caplog.text
    assert "nothing says which timed messages were delivered" in caplog.text
    assert set(found) == {b"now", *(b"%d" % delay for delay in EARLY + LATER)}


async def test_what_an_apache_broker_noted_is_believed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It counts its version up and leaves our part as it was."""
    clock = ManualClock(START)
    await send_and_stop(tmp_path, clock)
    path = tmp_path / "config" / "timercheck"
    content = path.read_bytes()
    for at, value in ((0, (START + 104) * 1000), (40, (START + 104) * 1000 + 3), (48, number(content, 48) + 94)):
        content = with_number(content, at, value)
    path.write_bytes(content)
    await clock.advance(94)

    assert list(examine(tmp_path, mend=False)) == []
    async with served(tmp_path, clock, **SETTINGS) as (_, client):
        await clock.advance(200)
        due = [delay for delay in LATER if delay > 104_000]
        await client.arrived("orders", len(EARLY) + 1 + len(due))
        found = await client.bodies("orders")

    assert "progress" not in caplog.text
    assert found[len(EARLY) + 1 :] == [b"%d" % delay for delay in due]


async def test_a_crash_after_weeks_in_which_nothing_waited_loses_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Progress stands still meanwhile, and what was sent just before the crash is two weeks ahead of it."""
    clock = ManualClock(START)
    store, killed = tmp_path / "store", tmp_path / "killed"
    async with served(store, clock, **SETTINGS) as (_, client):
        await client.sent("orders", b"early", TIMER_DELAY_SEC=5)
        await clock.advance(10)
        await client.arrived("orders", 1)
    check = {path: path.read_bytes() for path in (store / "config").glob("timercheck*")}
    await clock.advance(30 * DAY)
    async with served(store, clock, **SETTINGS) as (_, client):
        await client.sent("orders", b"late", TIMER_DELAY_SEC=50)
        with anyio.fail_after(30):
            while (noted := read_check(store / "config" / "timercheck")) is None or noted.queue_offset < 2:  # noqa: ASYNC110
                await anyio.sleep(0.01)
        await anyio.to_thread.run_sync(copy_as_killed, store, killed)
    for path, content in check.items():
        (killed / "config" / path.name).write_bytes(content)  # the new one was not written yet

    async with served(killed, clock, **SETTINGS) as (_, client):
        await clock.advance(60)
        await client.arrived("orders", 2)

        assert await client.bodies("orders") == [b"early", b"late"]
    assert "progress is behind messages that wait" in caplog.text


def test_a_backup_that_cannot_be_true_is_not_used_in_the_place_of_another(tmp_path: Path) -> None:
    path = tmp_path / "config" / "timercheck"
    path.parent.mkdir()
    (tmp_path / "timerlog").mkdir()
    backup = TimerCheckpoint(START, 0, 0, timestamp=START * 1000, counter=3).encode()
    backup_of(path).write_bytes(with_number(backup, 0, (START + 3600) * 1000))

    assert "there is no backup" in next(iter(examine(tmp_path, mend=False)))
