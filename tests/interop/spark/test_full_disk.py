"""Exports with Spark onto a disk that fills up: one line, nothing half there; with room again, the next run goes on.

Once the tasks' files do not fit, once not even the checkpoint's.

Mounting takes root, so somebody else sees this skipped.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.arrow.producing import Producing
from tests.arrow.test_export import bodies_in
from verniermq.cli import main
from verniermq.testing import broker_process

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting a file system takes root"),
]

DISK = 16 << 20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(place)], check=True)
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def take(path: Path, leave: int) -> None:
    """Take the room of a disk, but for some bytes."""
    left = os.statvfs(path.parent)
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, left.f_bavail * left.f_frsize - leave)


@pytest.mark.parametrize("kind", ["parquet", "iceberg", "delta"])
def test_a_full_disk_ends_an_export_in_one_line_and_the_next_goes_on(disk: Path, tmp_path: Path, kind: str) -> None:
    out = disk / "out"
    with broker_process(tmp_path / "store", '--set=plugins.enable=["default", "spark"]') as process:
        arguments = ["spark", "export", str(out), "--namesrv", process.namesrv, "--topic", "orders"]
        arguments += ["--format", kind]

        def export() -> Result:
            return CliRunner().invoke(main, [*arguments, "--master", "local[2]"])

        with Producing(process.broker) as producing:
            small = producing.send_many("orders", 5)
        first = export()
        large = [os.urandom(90_000) for _ in range(60)]
        with Producing(process.broker) as producing:
            for body in large:
                producing.send("orders", body)
        # Too little for the tasks' files, and then for the checkpoint that says what a batch has.
        for leave in (2 << 20, 0):
            take(disk / "taken", leave)
            full = export()
            assert full.exit_code == 2, (leave, full.output)
            assert len(full.output.strip().splitlines()) == 1, full.output
            assert "cannot be written" in full.output
            assert "run the export again" in full.output
            assert sorted(bodies_in(out, kind, "orders")) == sorted(small), leave
            (disk / "taken").unlink()

        again = export()

    assert first.exit_code == again.exit_code == 0, (first.output, again.output)
    assert sorted(bodies_in(out, kind, "orders")) == sorted([*small, *large])
