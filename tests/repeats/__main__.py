"""``python -m tests.repeats``: run the timed tests again and again, and keep a record from which the next run goes on.

The record is a line per session: the commit, the file, how often each of its tests ran, and which failed. A file whose
content changed begins anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as xml
from collections import Counter
from pathlib import Path
from typing import Any, Final

import click

from tests.repeats.timed import ROOT, timed_tests

RECORD: Final = ROOT / "build" / "repeats.jsonl"
TIMES: Final = 10
"""Runs of each test in one session, at most; so many tests that it is rather 100 runs together have fewer."""
FRESH: Final = frozenset({"tests/adapters/test_django.py", "tests/celery/test_worker.py"})
"""They move the time of a broker that the session shares, and wait for what is due by the wall: once a session."""
SESSION_SECONDS: Final = 1800
_AGAIN: Final = re.compile(r"\[again\d+\]$|-again\d+|again\d+-")


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def read(record: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []


def runs_so_far(lines: list[dict[str, Any]], files: list[Path]) -> dict[Path, int]:
    """How often each file's tests ran since the file changed last."""
    done: Counter[tuple[str, str]] = Counter()
    for line in lines:
        done[line["file"], line["digest"]] += line["times"]
    return {path: done[path.relative_to(ROOT).as_posix(), digest(path)] for path in files}


def times_of(path: Path, names: list[str]) -> int:
    return 1 if path.relative_to(ROOT).as_posix() in FRESH else max(1, min(TIMES, 100 // len(names)))


def session(path: Path, names: list[str], times: int) -> dict[str, Any]:
    """Run the tests of one file some times in a process of their own."""
    nodes = [f"{path}::{name.replace('.', '::')}" for name in names]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        options = ["-q", "-p", "tests.repeats.plugin", "-p", "no:cacheprovider", f"--junitxml={report}"]
        began = time.monotonic()
        try:
            ended = subprocess.run(
                [sys.executable, "-m", "pytest", *options, *nodes], cwd=ROOT, capture_output=True, text=True,
                timeout=SESSION_SECONDS, env={**os.environ, "REPEATS_TIMES": str(times)}, check=False,
            )  # fmt: skip
            output, cases = ended.stdout, list(xml.parse(report).iter("testcase")) if report.exists() else []
        except subprocess.TimeoutExpired as error:
            output, cases = str(error), []
    failed = Counter(_AGAIN.sub("", case.attrib["name"]) for case in cases if case.find("failure") is not None)
    failed.update(_AGAIN.sub("", case.attrib["name"]) for case in cases if case.find("error") is not None)
    if not cases:
        failed["(no test ran)"] += 1
    if failed:
        click.echo(output[-20000:])
    return {
        "file": path.relative_to(ROOT).as_posix(), "digest": digest(path), "times": times, "tests": len(cases),
        "failed": dict(failed), "seconds": round(time.monotonic() - began), "commit": _commit(),
    }  # fmt: skip


def _commit() -> str:
    return subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True).strip()


@click.command()
@click.option("--minutes", default=60.0, help="How long; a session that has begun is finished.")
@click.option("--rounds", default=100, help="How often each test shall have run in the end.")
@click.option("--only", default="", help="Only files whose path contains this.")
@click.option("--record", type=click.Path(path_type=Path), default=RECORD)
@click.option("--list", "only_list", is_flag=True, help="Say which tests these are.")
def main(minutes: float, rounds: int, only: str, record: Path, only_list: bool) -> None:
    """Run the tests that use threads, processes, sleeps or the wall clock many times."""
    found = {path: names for path, names in timed_tests().items() if only in path.as_posix()}
    if only_list:
        for path, names in found.items():
            click.echo(f"{len(names):4} {path.relative_to(ROOT)}")
        click.echo(f"{sum(map(len, found.values()))} tests in {len(found)} files")
        return
    record.parent.mkdir(exist_ok=True)
    deadline = time.monotonic() + minutes * 60
    done = runs_so_far(read(record), list(found))
    while (left := [path for path in found if done[path] < rounds]) and time.monotonic() < deadline:
        path = min(left, key=done.__getitem__)
        line = session(path, found[path], min(times_of(path, found[path]), rounds - done[path]))
        with record.open("a") as file:
            file.write(json.dumps(line) + "\n")
        done[path] += line["times"]
    show(read(record), done, rounds)


def show(lines: list[dict[str, Any]], done: dict[Path, int], rounds: int) -> None:
    whole = sum(count >= rounds for count in done.values())
    click.echo(f"{whole} of {len(done)} files have run {rounds} times; the least often run: {min(done.values())} times")
    for line in lines:
        for name, count in line["failed"].items():
            click.echo(f"failed {count} of {line['times']} at {line['commit']}: {line['file']}::{name}")


if __name__ == "__main__":
    main()
