"""Histories in several processes. A spawned process does not find what is in a package's ``__main__``."""

from __future__ import annotations

import logging
import multiprocessing
from collections import Counter
from collections.abc import Iterator

from tests.plugins.ha.simulated.history import history

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


def results(seeds: list[int], jobs: int) -> Iterator[Found]:
    if jobs == 1:
        yield from map(_one, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=100) as pool:
        yield from pool.imap_unordered(_one, seeds)
