"""What a Python worker of Spark does once. In a process of its own, since it cannot be undone."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import gc
from verniermq.contrib.spark.worker import settle

settle()
frozen, watched = gc.get_freeze_count(), len(gc.get_objects())
settle()
print(frozen, watched, gc.get_freeze_count())
"""


def test_what_a_worker_imports_is_never_looked_through_for_garbage() -> None:
    answer = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)

    frozen, watched, frozen_later = map(int, answer.stdout.split())
    assert frozen > 10_000
    assert watched < 100
    assert frozen_later == frozen
