"""What rounds found, and which commit mended it: ``bench/results/findings.json``.

A failure on record that no finding names is open. The table counts the rounds since the last one was mended.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import orjson

from tests.campaign import results

FINDINGS = results.RESULTS / "findings.json"


@attrs.frozen
class Finding:
    """One defect, of a broker or of the round itself."""

    kind: str
    seeds: tuple[int, ...] = attrs.field(converter=tuple)
    """The rounds on record that failed because of it; none if it was found by hand."""
    commit: str
    """Where it was seen first."""
    mended: str
    """The commit without it."""
    date: str
    """Of that commit, or of the last round without it, as in the record: rounds that ended later count."""
    was: str


def read(path: Path = FINDINGS) -> list[Finding]:
    return [Finding(**members) for members in orjson.loads(path.read_bytes())]


def explained(line: dict[str, Any], found: list[Finding]) -> list[Finding]:
    """The findings that a line with failures is because of."""
    first, last = line["seeds"]
    return [
        finding for finding in found
        if finding.kind == line["kind"] and any(first <= seed <= last for seed in finding.seeds)
    ]  # fmt: skip


def last_mended(kind: str, found: list[Finding]) -> Finding | None:
    return max((finding for finding in found if finding.kind == kind), key=lambda finding: finding.date, default=None)


def since_mended(lines: list[dict[str, Any]], kind: str, found: list[Finding]) -> list[dict[str, Any]]:
    """Of the lines of a kind: those of rounds after its last defect was mended, and failures that none explains."""
    last = last_mended(kind, found)
    after = "" if last is None else last.date
    return [line for line in lines if line["date"] > after or (line["failures"] and not explained(line, found))]
