"""How much work is done between two turns of the loop: what a peer waits for, counted instead of timed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest


class WorkPerTurn:
    """Counts calls; ``most`` is the largest number of them within one turn of the loop."""

    def __init__(self) -> None:
        self.most = 0
        self.total = 0
        self._now = 0
        self._turn_is_noted = False

    def note(self) -> None:
        self.total += 1
        self._now += 1
        self.most = max(self.most, self._now)
        if not self._turn_is_noted:
            # What is called soon is called in the next turn; so is whatever else waits.
            self._turn_is_noted = True
            asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._turn_is_noted = False
        self._now = 0

    def watch(self, monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> WorkPerTurn:
        """Count the calls of a method, which works as before."""
        method: Callable[..., Any] = getattr(owner, name)

        def counted(*arguments: Any, **named: Any) -> Any:
            self.note()
            return method(*arguments, **named)

        monkeypatch.setattr(owner, name, counted)
        return self
