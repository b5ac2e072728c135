"""The version that RocketMQ puts on every table it shares (``DataVersion``): equal versions, equal content."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


class DataVersion:
    """Counts the changes of a table, as others who have a copy of it compare (RocketMQ: ``DataVersion``)."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self.counter = 0
        self.timestamp = now_ms()
        self.state_version = 0

    def next(self) -> None:
        self.counter += 1
        self.timestamp = self._now_ms()

    def as_json(self) -> dict[str, int]:
        return {"counter": self.counter, "stateVersion": self.state_version, "timestamp": self.timestamp}

    def load(self, data: Mapping[str, Any] | None) -> None:
        if data:
            self.counter = int(data.get("counter", 0))
            self.state_version = int(data.get("stateVersion", 0))
            self.timestamp = int(data.get("timestamp", self.timestamp))
