"""How a broker's process runs: on uvloop where it is installed, and with little time spent on garbage."""

from __future__ import annotations

import gc
from importlib.util import find_spec
from typing import Any


def backend_options() -> dict[str, Any]:
    """For :func:`anyio.run`."""
    return {"use_uvloop": find_spec("uvloop") is not None}


def collect_garbage_rarely() -> None:
    """Set apart what lives as long as the broker, and look for cycles among the rest less often than Python would.

    A message makes a dozen objects and no cycle; by default the collector would run at every fiftieth message, and
    would walk through all that the imports made every now and then.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
