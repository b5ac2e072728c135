"""The campaign that compares the compiled lane with Python says what it found, and keeps it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.kernel import frames, lane_campaign
from tests.kernel.test_lane import compiled_only
from tests.kernel.twins import take_plain_way


@compiled_only
def test_the_campaign_records_a_round_that_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def take_another_way(patch: pytest.MonkeyPatch) -> None:
        take_plain_way(patch)
        patch.setattr(frames, "TOPICS", ("bills", "orders", "t.1"))

    monkeypatch.setattr(lane_campaign, "RECORD", tmp_path / "lane.jsonl")
    monkeypatch.setattr(lane_campaign, "MIXED", 20)
    equal = CliRunner().invoke(lane_campaign.main, ["--kind", "mixed", "--rounds", "1", "--seed", "7", "--record"])
    monkeypatch.setattr(lane_campaign, "take_plain_way", take_another_way)
    different = CliRunner().invoke(lane_campaign.main, ["--kind", "mixed", "--rounds", "1", "--seed", "8", "--record"])

    assert (equal.exit_code, different.exit_code) == (0, 1), equal.output
    first, second = map(json.loads, (tmp_path / "lane.jsonl").read_text().splitlines())
    assert (first["seed"], first["frames"], first["differences"]) == (7, 20, 0)
    assert (second["seed"], second["frames"]) == (8, 20)
    assert second["differences"] == len(second["different"]) > 0
    assert "seed 8 differs" in different.output
    assert "answers:" in different.output
