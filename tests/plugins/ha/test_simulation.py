"""Histories of replicas in a simulated world: whatever goes wrong, nothing that was acknowledged or read is lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.plugins.ha.simulated.history import history
from tests.plugins.ha.simulated.seeds import failed_seeds
from verniermq.plugins.ha import acks

HISTORIES = 50
"""``make simulate`` runs thousands."""

pytestmark = pytest.mark.timeout(600)


def test_nothing_acknowledged_is_lost_whatever_goes_wrong() -> None:
    """What failed once comes first."""
    acknowledged = terms = 0
    for seed in [*failed_seeds(), *range(1, HISTORIES + 1)]:
        found = history(seed)
        assert found.problems == [], f"seed {seed}: make simulate FIRST={seed} HISTORIES=1"
        acknowledged += sum(told.ok for told in found.sent)
        terms += len(found.leaders)
    assert acknowledged > 20 * HISTORIES
    assert terms > HISTORIES


def test_a_seed_decides_all() -> None:
    one, two = history(4), history(4)

    assert [(told.body, told.ok, told.ended) for told in one.sent] == [
        (told.body, told.ok, told.ended) for told in two.sent
    ]


def test_a_broken_rule_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A master that waits for nobody."""

    def alone(me: int, end: int, durable: int, said: Mapping[int, int], stored: Any, proposed: Any, before: int) -> int:
        return end

    monkeypatch.setattr(acks, "confirmed", alone)

    assert any(history(seed).problems for seed in range(1, 30))
