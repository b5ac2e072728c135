"""What a round found, and what a kind of round is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import attrs


class Skipped(Exception):
    """This machine does not allow a round; the text says why."""


@attrs.frozen
class Failure:
    """Something that was promised and is not so."""

    category: str
    """``lost``, ``wrong``, ``passed`` (access control) or ``stalled``."""
    text: str


@attrs.define
class Outcome:
    """What one round, or several, did and found."""

    rounds: int = 1
    checked: int = 0
    """How many messages, frames, points or requests were looked at; the kind says which."""
    stall_ms: float = 0.0
    """The longest wait of a neighbour, over what the control had beside it."""
    control_ms: float = 0.0
    """The longest wait in the control."""
    hold_ms: float = 0.0
    """The longest hold of the broker's loop, in processor time; see ``loopwatch``."""
    hold_control_ms: float = 0.0
    notes: Counter[str] = attrs.field(factory=Counter)
    """What is worth knowing and no failure: deliveries that were repeated, sends that were refused."""
    failures: list[Failure] = attrs.field(factory=list)

    def fail(self, category: str, text: str) -> None:
        self.failures.append(Failure(category, text))

    def expect(self, is_so: object, category: str, text: str) -> None:
        if not is_so:
            self.fail(category, text)

    def count(self, category: str) -> int:
        return sum(failure.category == category for failure in self.failures)

    def add(self, other: Outcome) -> None:
        self.rounds += other.rounds
        self.checked += other.checked
        self.stall_ms = max(self.stall_ms, other.stall_ms)
        self.control_ms = max(self.control_ms, other.control_ms)
        self.hold_ms = max(self.hold_ms, other.hold_ms)
        self.hold_control_ms = max(self.hold_control_ms, other.hold_control_ms)
        self.notes += other.notes
        self.failures += other.failures


@attrs.frozen
class Kind:
    """A kind of round, one file each."""

    name: str
    unit: str
    """What its rounds count: messages, frames, points."""
    promise: str
    """What is true when nothing fails, for the report."""
    run: Callable[[int, Path], Outcome]
    """A seed and an empty folder in, what was found out.

    Raises:
        Skipped: this machine does not allow it.
    """
    record: str = "campaign.jsonl"
    """The file in ``bench/results`` that its rounds are appended to."""
