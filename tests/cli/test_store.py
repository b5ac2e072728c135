"""``verniermq store check`` and ``repair``, run as a user runs them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.plugins.peer import served

pytestmark = pytest.mark.anyio

SIZE = 64 * 1024


def store(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "verniermq.cli", "store", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


async def written(folder: Path) -> Path:
    """A store of several segments, closed in order; returns its folder."""
    async with served(folder, store__segment_size="64KiB", store__max_message_size="8KiB") as (_, client):
        for number in range(60):
            await client.sent("orders", b"%04d" % number * 1000)
    return folder


async def test_a_whole_store_is_said_to_be_so(tmp_path: Path) -> None:
    folder = await written(tmp_path)

    result = store("check", "--store", str(folder))

    assert result.returncode == 0, result.stderr
    assert "60 records in 5 segments" in result.stdout
    assert "no damage: a broker can open it" in result.stdout


async def test_damage_is_shown_with_its_place_and_mended_without_losing_other_records(tmp_path: Path) -> None:
    folder = await written(tmp_path)
    second = folder / "commitlog" / f"{SIZE:020d}"
    with second.open("r+b") as segment:
        segment.seek(2000)
        segment.write(b"\xff" * 100)

    before = store("check", "--store", str(folder), "--json")
    shown = store("check", "--store", str(folder))
    mended = store("repair", "--store", str(folder))
    after = store("check", "--store", str(folder))
    async with served(folder, store__segment_size="64KiB", store__max_message_size="8KiB") as (_, client):
        left = {int(body[:4]) for body in await client.bodies("orders")}

    (damage,) = json.loads(before.stdout)["damage"]
    assert before.returncode == shown.returncode == 1
    assert damage["start"] == SIZE
    assert f"damaged: offset {SIZE} to" in shown.stdout
    assert "verniermq store repair" in shown.stdout
    assert mended.returncode == 0, mended.stderr
    assert f"mended: filled {damage['end'] - SIZE} damaged bytes at offset {SIZE}" in mended.stdout
    assert after.returncode == 0
    assert len(left) == 59  # one record was damaged, all others are read


async def test_lost_queue_entries_are_damage_until_they_are_mended(tmp_path: Path) -> None:
    async with served(tmp_path, store__queue_entries=10) as (_, client):
        for number in range(60):
            await client.sent("orders", b"%d" % number)
    with (tmp_path / "consumequeue" / "orders" / "0" / f"{0:020d}").open("r+b") as file:
        file.seek(20)
        file.write(bytes(40))
    where = ("--store", str(tmp_path), "--set", "store.queue_entries=10", "--set", "store.segment_size=64MiB")

    before = store("check", *where)
    mended = store("repair", *where)
    after = store("check", *where)

    assert before.returncode == 1
    assert "damaged: 2 records are not in their consume queue; no start looks for them" in before.stdout
    assert "verniermq store repair" in before.stdout
    assert "no damage" not in before.stdout
    assert mended.returncode == after.returncode == 0
    assert "2 records are not in their consume queue; the next start adds them" in after.stdout


async def test_a_store_in_use_is_refused(tmp_path: Path) -> None:
    async with served(tmp_path):
        result = store("check", "--store", str(tmp_path))

    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert str(tmp_path) in result.stderr


def test_a_folder_without_a_store_is_named(tmp_path: Path) -> None:
    result = store("check", "--store", str(tmp_path / "nothing"))

    assert result.returncode == 2
    assert "there is no store in" in result.stderr


async def test_files_of_plugins_are_looked_at_and_mended_too(tmp_path: Path) -> None:
    folder = await written(tmp_path)
    async with served(folder, store__segment_size="64KiB", store__max_message_size="8KiB") as (_, client):
        await client.sent("orders", TIMER_DELAY_SEC=1000)
    with (folder / "timerwheel").open("r+b") as wheel:
        wheel.truncate(100)

    before = store("check", "--store", str(folder), "--json")
    shown = store("check", "--store", str(folder))
    without = store("check", "--store", str(folder), "--no-plugins")
    mended = store("repair", "--store", str(folder))

    (line,) = json.loads(before.stdout)["plugins"]["schedule"]
    assert before.returncode == shown.returncode == mended.returncode == 0
    assert "timerwheel: it has 100 bytes, expected 38707200" in line
    assert f"plugin schedule: {line}" in shown.stdout
    assert "schedule" not in without.stdout
    assert "made again at the next start" in mended.stdout
    assert not (folder / "timerwheel").exists()


def test_a_store_that_the_system_does_not_let_one_use_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "lock").mkdir()  # where a file is expected: root may read everything else

    for what in ("check", "repair"):
        result = store(what, "--store", str(tmp_path))

        assert result.returncode == 2
        assert result.stderr.startswith(f"verniermq: the store {tmp_path} cannot be used: [Errno ")
        assert result.stderr.count("\n") == 1


async def test_a_store_that_a_broker_uses_is_told_with_what_to_do(tmp_path: Path) -> None:
    async with served(tmp_path):
        result = store("check", "--store", str(tmp_path))

    assert result.returncode == 2
    assert result.stderr == f"verniermq: a broker uses the store {tmp_path}; stop it first, or choose another store\n"
