"""``python -m tests.plugins.ha.simulated``: run histories, first those that failed once; seeds that fail are kept.

With ``--record`` each hundred is a line of ``bench/results/simulation.jsonl``, with its seeds and commit, and the next
call goes on behind the last seed that stands there.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from tests.plugins.ha.simulated.runs import results
from tests.plugins.ha.simulated.seeds import SEEDS, failed_seeds, keep

RECORD = Path(__file__).parents[4] / "bench" / "results" / "simulation.jsonl"
LINE = 100
"""Histories of a line."""


def _behind_record() -> int:
    """The first seed that is not on record."""
    lines = RECORD.read_text().splitlines() if RECORD.exists() else []
    return max((line["first"] + line["histories"] for line in map(json.loads, lines)), default=1)


def _commit() -> str:
    asked = ["git", "-C", str(RECORD.parent), "rev-parse", "--short", "HEAD"]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()


def _run(seeds: list[int], jobs: int) -> tuple[Counter[str], list[int]]:
    counts: Counter[str] = Counter()
    failed = []
    for seed, problems, found in results(seeds, jobs):
        counts += found
        if problems:
            failed.append(seed)
            keep(seed)
            print(f"seed {seed}: {'; '.join(problems[:3])}", flush=True)
    return counts, failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--histories", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=1, help="The first seed; the others follow it.")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--record", action="store_true", help="Go on behind the record until it has --histories.")
    options = parser.parse_args()
    first, stop, commit = options.first, options.first + options.histories, _commit()
    counts, failed = _run(failed_seeds(), 1)
    if options.record:
        first, stop = _behind_record(), 1 + options.histories
    for begin in range(first, stop, LINE):
        seeds = list(range(begin, min(begin + LINE, stop)))
        began = time.monotonic()
        found, wrong = _run(seeds, options.jobs)
        counts, failed = counts + found, failed + wrong
        print(f"seeds {begin} to {seeds[-1]}, {len(wrong)} failed, {time.monotonic() - began:.0f} s", flush=True)
        if options.record:
            line = {
                "first": begin, "histories": len(seeds), "failed": wrong, "commit": commit,
                "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"), "counts": dict(sorted(found.items())),
            }  # fmt: skip
            with RECORD.open("a") as file:
                file.write(json.dumps(line) + "\n")
    print(f"seeds {first} to {stop - 1}, and those that failed once: {len(failed)} failed")
    print(", ".join(f"{count:,} {what}" for what, count in counts.most_common()))
    if failed:
        print(f"their seeds are in {SEEDS.name}; they run first from now on")
        sys.exit(1)


if __name__ == "__main__":
    main()
