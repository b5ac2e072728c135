"""What Spark says of a batch, for the terminal."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from verniermq.contrib.arrow.offsets import Offsets, from_json
from verniermq.contrib.arrow.progress import BatchDone


def batch_done(one: dict[str, Any], counted: Mapping[Any, int] | None = None) -> BatchDone:
    """
    Args:
        counted: rows, of a batch that did not read them from the stream
    """
    rows = one["numInputRows"] if counted is None else sum(counted.values())
    seconds = one.get("durationMs", {}).get("triggerExecution", 0) / 1000
    return BatchDone(one["batchId"], rows, seconds, lag_of(one["sources"][0]))


def lag_of(source: dict[str, Any]) -> int:
    """How many messages were there that a batch did not reach."""
    try:
        latest, end = (offsets_of(source[name]) for name in ("latestOffset", "endOffset"))
    except (KeyError, ValueError):
        return 0
    return sum(max(0, offset - end.get(queue, 0)) for queue, offset in latest.items())


def offsets_of(value: Any) -> Offsets:
    """Offsets as Spark tells them: as JSON, as its text, or not at all."""
    parsed = json.loads(value) if isinstance(value, str) else value
    return from_json(parsed) if parsed else {}
