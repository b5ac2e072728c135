"""``make bench`` adds rounds to those that it kept, so that each may have a quiet hour of its own."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[1] / "bench"


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    monkeypatch.syspath_prepend(str(BENCH.parent))  # the interop suite
    return import_module("sidebyside.results")


def test_rounds_are_added_to_those_that_were_kept(results: Any, tmp_path: Path) -> None:
    one_round = import_module("sidebyside.round")
    first = {
        side: [{"async-128": one_round.Measured(value, 1, 2.5)}]
        for side, value in (("Apache", 4.0), ("VernierMQ", 8.0))
    }
    results.save(tmp_path, first, one_round.SHORT, "")

    rounds, version = results.kept_rounds(tmp_path, one_round.SHORT)

    assert rounds == first
    for side, value in (("Apache", 2.0), ("VernierMQ", 8.0)):
        rounds[side].append({"async-128": one_round.Measured(value)})
    (line,) = results.save(tmp_path, rounds, one_round.SHORT, "", "0.1 (before)")
    assert line.ratios == [2.0, 4.0]
    assert "2 rounds" in (tmp_path / "README-table.md").read_text()
    assert f'"0.1 (before), {version}"' in (tmp_path / "apache.json").read_text()


def test_rounds_of_another_length_or_machine_are_not_added_to(results: Any, tmp_path: Path) -> None:
    one_round = import_module("sidebyside.round")
    with pytest.raises(ValueError, match="is not there"):
        results.kept_rounds(tmp_path, one_round.FULL)
    results.save(tmp_path, {"Apache": [], "VernierMQ": []}, one_round.SHORT, "")

    with pytest.raises(ValueError, match="another length"):
        results.kept_rounds(tmp_path, one_round.FULL)
    kept = tmp_path / "apache.json"
    kept.write_text(kept.read_text().replace('"system": "', '"system": "Another '))
    with pytest.raises(ValueError, match="another machine"):
        results.kept_rounds(tmp_path, one_round.SHORT)
