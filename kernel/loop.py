"""How a broker's process runs: on uvloop where it is installed, with little time for garbage, and in little memory."""

from __future__ import annotations

import ctypes
import gc
import linecache
from importlib.util import find_spec
from typing import Any


def backend_options() -> dict[str, Any]:
    """For :func:`anyio.run`."""
    return {"use_uvloop": find_spec("uvloop") is not None}


def collect_garbage_rarely() -> None:
    """Set apart what lives as long as the broker, and look for cycles among the rest less often than Python would.

    A message makes a dozen objects and no cycle; by default the collector would run at every fiftieth message, and
    would walk through all that the imports made every now and then. What only the start needed goes back to the system,
    among it the texts of the methods that attrs wrote, which are kept for debuggers: a megabyte.
    """
    linecache.clearcache()
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's; other systems have none
    if trim is not None:
        trim(0)
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
