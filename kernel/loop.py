"""The event loop of a broker: uvloop's where that is installed."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any


def backend_options() -> dict[str, Any]:
    """Options for ``anyio.run``: the loop that a broker runs on."""
    return {"use_uvloop": find_spec("uvloop") is not None}
