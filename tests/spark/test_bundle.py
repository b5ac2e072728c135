"""The zip that executors get has all that it imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from verniermq.contrib.spark.bundle import write_bundle

IMPORTING = """
import sys

# VernierMQ as it is installed here stays out of it.
sys.meta_path[:] = [finder for finder in sys.meta_path if "__editable__" not in f"{finder} {type(finder)}"]
import verniermq.contrib.spark.sink
import verniermq.contrib.spark.source
import verniermq.contrib.arrow.fetch

print(verniermq.contrib.spark.source.__file__)
"""


def test_the_zip_for_executors_has_all_that_it_imports(tmp_path: Path) -> None:
    bundle = tmp_path / "verniermq.zip"
    write_bundle(bundle)

    done = subprocess.run(
        [sys.executable, "-c", IMPORTING], capture_output=True, text=True, check=False, cwd=tmp_path,
        env={"PYTHONPATH": str(bundle)},
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(bundle))
