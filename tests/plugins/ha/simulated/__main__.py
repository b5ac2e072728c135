"""``python -m tests.plugins.ha.simulated``: run histories, first those that failed once; seeds that fail are kept."""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator

from tests.plugins.ha.simulated.history import history
from tests.plugins.ha.simulated.seeds import SEEDS, failed_seeds, keep

Found = tuple[int, list[str], Counter[str]]


def _one(seed: int) -> Found:
    logging.disable(logging.CRITICAL)
    try:
        found = history(seed)
    except Exception as error:
        return seed, [f"{type(error).__name__}: {error}"], Counter()
    counts = Counter(found.counts)
    counts["sends"] += len(found.sent)
    counts["acknowledged"] += sum(told.ok for told in found.sent)
    counts["terms"] += len(found.leaders)
    return seed, found.problems, counts


def _results(seeds: list[int], jobs: int) -> Iterator[Found]:
    if jobs == 1:
        yield from map(_one, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=200) as pool:
        yield from pool.imap_unordered(_one, seeds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--histories", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=1, help="The first seed; the others follow it.")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    seeds = [*failed_seeds(), *range(options.first, options.first + options.histories)]
    counts: Counter[str] = Counter()
    failed, began = 0, time.monotonic()
    for done, (seed, problems, found) in enumerate(_results(seeds, options.jobs), 1):
        counts += found
        if problems:
            failed += 1
            keep(seed)
            print(f"seed {seed}: {'; '.join(problems[:3])}", flush=True)
        if done % 100 == 0:
            print(f"{done} histories, {failed} failed, {time.monotonic() - began:.0f} s", flush=True)
    print(f"{len(seeds)} histories from seed {options.first}: {failed} failed")
    print(", ".join(f"{count:,} {what}" for what, count in counts.most_common()))
    if failed:
        print(f"their seeds are in {SEEDS.name}; they run first from now on")
        sys.exit(1)


if __name__ == "__main__":
    main()
