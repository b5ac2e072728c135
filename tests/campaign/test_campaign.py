"""A short part of each kind of the campaign, and its book-keeping. ``make campaign`` does the same for hours."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.campaign import access, corruption, disk, findings, fuzz, hostile, kill, power, report, results, soak
from tests.campaign.outcome import Kind, Outcome, Skipped
from tests.plugins.txn.peers import peer
from verniermq.kernel import RequestCode
from verniermq.testing import running_broker

pytestmark = pytest.mark.timeout(600)
"""A busy machine makes rounds slow, and slow is not wrong: they end by their own patience, with what they miss."""


def passes(outcome: Outcome) -> None:
    assert [f"{failure.category}: {failure.text}" for failure in outcome.failures] == []
    assert outcome.checked > 0


def test_what_was_acknowledged_survives_kills(tmp_path: Path) -> None:
    passes(anyio.run(kill.live, 5, tmp_path, 2))


def test_what_was_acknowledged_survives_power_cuts_of_all_files(tmp_path: Path) -> None:
    passes(anyio.run(power.cut, 3, tmp_path, 15))


def test_a_round_of_power_cuts_reads_queues_of_several_files(tmp_path: Path) -> None:
    sent = [b"%d" % number for number in range(2 * power.SETTINGS["store__queue_entries"] + 5)]

    async def send_and_read() -> list[bytes]:
        async with running_broker(tmp_path, **power.SETTINGS) as broker, peer(broker.address) as client:
            for body in sent:
                await client.send("later", body, queue_id=0)
            return power._bodies(broker, "later")

    assert anyio.run(send_and_read) == sent


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    try:
        outcome = anyio.run(disk.crowd, 4, tmp_path, "tmpfs")
    except Skipped as why:
        pytest.skip(str(why))
    passes(outcome)


def test_no_damage_goes_unsaid(tmp_path: Path) -> None:
    passes(anyio.run(corruption.spoil, 1, tmp_path, 4))


def test_attacks_do_no_harm(tmp_path: Path) -> None:
    """How long a neighbour waits beside them is for the campaign: no test depends on the machine's mood."""
    passes(anyio.run(hostile.attack, 1, tmp_path, 2, 60_000.0))


def test_random_requests_disturb_nobody(tmp_path: Path) -> None:
    passes(anyio.run(fuzz.fuzz, 1, tmp_path, 1000))


def test_an_account_gets_at_nothing_but_its_own(tmp_path: Path) -> None:
    passes(anyio.run(access.intrude, 1, tmp_path, 600))


def test_an_administrator_would_have_been_noticed(tmp_path: Path) -> None:
    codes = (RequestCode.SEND_MESSAGE_V2, RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.DELETE_TOPIC_IN_BROKER)
    assert anyio.run(access.intrude, 1, tmp_path, 200, True, codes).count("passed")


def test_memory_descriptors_and_threads_are_watched(tmp_path: Path) -> None:
    passes(anyio.run(soak.soak, 1, tmp_path, 2.0, 200.0, 200.0))


# --- the book-keeping ---------------------------------------------------------------------


def found(seed: int, folder: Path) -> Outcome:
    outcome = Outcome(checked=10, stall_ms=3.0, control_ms=2.0)
    outcome.notes["refused"] += 1
    if seed == 3:
        outcome.fail("lost", "one of them")
    return outcome


def test_a_run_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    kind = Kind("kill", "messages", "", found)
    for _ in range(3):
        first = results.next_seed("kill", path)
        outcome = Outcome(rounds=0)
        for seed in (first, first + 1):
            outcome.add(kind.run(seed, tmp_path))
        results.append(results.line_of("kill", first, first + 1, outcome, 1.0), path)

    lines = results.read(path)

    assert [line["seeds"] for line in lines] == [[1, 2], [3, 4], [5, 6]]
    assert [line["lost"] for line in lines] == [0, 1, 0]
    assert lines[1]["failures"] == ["lost: one of them"]
    whole = results.total(lines)
    assert (whole.rounds, whole.checked, whole.count("lost"), whole.notes["refused"]) == (6, 60, 1, 6)


def test_the_table_fits_a_terminal() -> None:
    outcome = Outcome(rounds=123_456, checked=12_345_678, stall_ms=123.4, control_ms=234.5)
    outcome.notes["delivered again after a kill, by a broker that was started again"] = 12_345_678
    for line in report.table({"kill": outcome}).splitlines():
        assert len(line) <= 80


def test_the_pages_show_the_results_that_are_on_record() -> None:
    again = "renew it: .venv/bin/python -m tests.campaign.report"
    assert report.markdown(report.on_record(), findings.read()) in report.PAGE.read_text(), again
    assert report.blows(report.on_record()) in report.REPLICATION.read_text(), again


def line(date: str, seed: int, *failures: str, rounds: int = 10) -> dict[str, Any]:
    outcome = Outcome(rounds=rounds, checked=rounds)
    for text in failures:
        outcome.fail("lost", text)
    return results.line_of("kill", seed, seed, outcome, 1.0) | {"date": f"2026-11-18 {date}"}


def test_the_table_counts_rounds_since_the_last_defect_was_mended_and_all_that_is_open() -> None:
    lines = [line("01:00", 1, "a message"), line("02:00", 2), line("04:00", 3), line("05:00", 4, "another")]
    found = [findings.Finding("kill", (1,), "aaaa", "bbbb", "2026-11-18 03:00", "an acknowledged message lost")]

    counted = findings.since_mended(lines, "kill", found)
    page = report.markdown(lines, found)

    assert [one["seeds"][0] for one in counted] == [3, 4]
    assert "| kill | 20 | 20 messages | 1 | 0 | 0 | 0 |" in page
    assert "| 40 |" in page
    assert "another" in page.partition("Failures that are open:")[2]
    assert "kill, seen at aaaa, seed 1, mended 2026-11-18 03:00 by bbbb: an acknowledged message lost." in page
    assert findings.since_mended(lines[:1], "kill", []) == lines[:1], "a failure that nobody explained counts"


def test_the_rounds_that_count_ran_on_what_was_mended() -> None:
    def git(*words: str) -> int:
        return subprocess.run(["git", *words], cwd=results.ROOT, capture_output=True, check=False).returncode

    found = findings.read()
    if git("cat-file", "-e", f"{found[0].mended}^{{commit}}"):
        pytest.skip("the history of these files is not here")
    for kind in {finding.kind for finding in found}:
        last = findings.last_mended(kind, found)
        assert last is not None
        assert git("merge-base", "--is-ancestor", last.mended, "HEAD") == 0, last
        lines = [one for one in report.on_record() if one["kind"] == kind]
        for commit in {one["commit"].rstrip("+") for one in findings.since_mended(lines, kind, found)}:
            if git("cat-file", "-e", f"{commit}^{{commit}}") == 0:
                assert git("merge-base", "--is-ancestor", last.mended, commit) == 0, f"{kind}: {commit} is older"
