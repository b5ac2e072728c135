"""The campaign that compares the compiled lane with Python says what it found, and keeps it."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.kernel import frames, lane_campaign
from tests.kernel.test_lane import compiled_only
from tests.kernel.twins import take_plain_way, twin


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


async def test_all_of_a_queue_is_compared_whether_or_not_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = frames.frame(7, frames.SEND, "UNIQ_KEY\x01U1\x02", b"x", random.Random(1), binary=0)
    found = []
    for folder in ("written", "being written"):
        async with twin(tmp_path / folder, monkeypatch, store__queue_entries=100) as one:
            await one.give(data)
            for _ in range(25):
                await one.give(data * 10)
            if folder == "being written":
                one.broker.store._dispatcher.take_dirty()  # as the thread does that is about to write it
            left = one.left()
            found.append(max((left[name] for name in left if name.startswith("queue ")), key=len))

    assert len(found[0]) == 251 * 20
    assert found[0] == found[1]
