"""What a Python worker of Spark does once, before it reads its first rows.

Spark keeps its workers for many tasks, and has each look through all its objects for garbage after every task. Most of
them are modules, ours and those of pyarrow and pyspark, which stay for good: 57,000 objects, 27 milliseconds each time,
and a seventh or more of what a worker does in a task of 125,000 rows.
"""

from __future__ import annotations

import gc
from functools import cache


@cache
def settle() -> None:
    """Import what reading needs, and take all that is there now out of the garbage collector's sight."""
    import verniermq.contrib.arrow.decode
    import verniermq.contrib.arrow.fetch
    import verniermq.contrib.arrow.files  # noqa: F401

    gc.collect()
    gc.freeze()
