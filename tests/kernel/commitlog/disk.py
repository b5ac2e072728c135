"""A disk that remembers what was fetched from it."""

from __future__ import annotations

import pytest

from verniermq.kernel.commitlog import coldreads
from verniermq.kernel.store import Store


class Disk:
    """Everything is on the disk only until it is fetched, and nothing else may be read."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fetched: list[tuple[int, int]] = []
        monkeypatch.setattr(coldreads, "FRESH", 0)
        read = store._log.read

        def read_fetched(offset: int, size: int) -> bytes | None:
            assert self._has(offset, offset + size), (offset, size)
            return read(offset, size)

        monkeypatch.setattr(store._cold_reads, "_in_memory", lambda span: self._has(*span))
        monkeypatch.setattr(store._cold_reads, "_fetch", self.fetched.extend)
        monkeypatch.setattr(store._log, "read", read_fetched)

    def _has(self, start: int, stop: int) -> bool:
        return all(any(low <= byte < high for low, high in self.fetched) for byte in range(start, stop))
