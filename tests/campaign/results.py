"""The file of results: one line for each batch of rounds, with its date, commit, machine and seeds."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from tests.campaign.outcome import Failure, Outcome
from verniermq.kernel.accel.lane import compiled_lane

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results"
MOST_FAILURES = 5
"""Kept in a line; their number is always right."""


def commit() -> str:
    """The commit that is tested, with a plus sign when files differ from it."""
    run = lambda *words: subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False).stdout  # noqa: E731
    changed = run("status", "--porcelain", "--untracked-files=no", "--", ".", ":!bench/results", ":!docs")
    return (run("rev-parse", "--short=10", "HEAD").strip() or "unknown") + ("+" if changed.strip() else "")


def path() -> str:
    """How the brokers of this machine serve plain sends; see ``Broker.path``."""
    return "plain" if compiled_lane() is None else "compiled"


def machine() -> str:
    pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return (
        f"{os.cpu_count()} cores, {pages / 2**30:.0f} GiB, {platform.system()} {platform.release().split('-')[0]}, "
        f"Python {platform.python_version()}"
    )


def line_of(kind: str, first: int, last: int, outcome: Outcome, seconds: float) -> dict[str, Any]:
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        "commit": commit(),
        "machine": machine(),
        "path": path(),
        "kind": kind,
        "seeds": [first, last],
        "seconds": round(seconds),
        "rounds": outcome.rounds,
        "checked": outcome.checked,
        "lost": outcome.count("lost"),
        "wrong": outcome.count("wrong"),
        "passed": outcome.count("passed"),
        "stalled": outcome.count("stalled"),
        "stall_ms": round(outcome.stall_ms, 1),
        "control_ms": round(outcome.control_ms, 1),
        "hold_ms": round(outcome.hold_ms, 1),
        "hold_control_ms": round(outcome.hold_control_ms, 1),
        "notes": dict(sorted(outcome.notes.items())),
        "failures": [_one_line(f"{failure.category}: {failure.text}") for failure in outcome.failures[:MOST_FAILURES]],
    }


def _one_line(text: str) -> str:
    """Short, and without the names of this machine's folders."""
    text = re.sub(r"/\S*campaign-[^/\s]*/", "", text.replace("\n", " "))
    return re.sub(r'"/[^"\s]*/([^/"\s]+)"', r'"\1"', text)[:300]


def append(line: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(orjson.dumps(line) + b"\n")


def read(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [orjson.loads(text) for text in path.read_bytes().splitlines() if text.strip()]


def next_seed(kind: str, path: Path) -> int:
    """The first seed that no run has tried yet."""
    return 1 + max((line["seeds"][1] for line in read(path) if line["kind"] == kind), default=0)


def total(lines: list[dict[str, Any]]) -> Outcome:
    """All lines of a kind together."""
    whole = Outcome(rounds=0)
    for line in lines:
        failures = [
            Failure(category, "")
            for category in ("lost", "wrong", "passed", "stalled")
            for _ in range(line[category])
        ]  # fmt: skip
        held = (line.get("hold_ms", 0.0), line.get("hold_control_ms", 0.0))
        waits = (line["stall_ms"], line["control_ms"])
        whole.add(Outcome(line["rounds"], line["checked"], *waits, *held, Counter(line["notes"]), failures))
    return whole
