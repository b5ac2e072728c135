"""``python -m tests.repeats``: run the timed tests again and again, and keep a record from which the next run goes on.

The record has a line per file: how often its tests ran since the file changed, in how many seconds, at which commit and
day last, and which failed. Failures of an earlier content stay, so that the record tells what was mended. The file with
the least seconds to go comes first.
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
from datetime import date
from pathlib import Path
from typing import Any, Final, TypeAlias

import click

from tests.repeats.timed import ROOT, timed_tests

RECORD: Final = ROOT / "bench" / "results" / "repeats.json"
TIMES: Final = 10
"""Runs of each test in one session, at most; so many tests that it is rather 100 runs together have fewer."""
FRESH: Final = frozenset({"tests/adapters/test_django.py", "tests/celery/test_worker.py"})
"""They move the time of a broker that the session shares, and wait for what is due by the wall: once a session."""
SESSION_SECONDS: Final = 1800
Record: TypeAlias = dict[str, dict[str, Any]]
_AGAIN: Final = re.compile(r"\[again\d+\]$|-again\d+|again\d+-")


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def read(record: Path) -> Record:
    found: Record = json.loads(record.read_text()) if record.exists() else {}
    return found


def write(record: Path, files: Record) -> None:
    """A line per file, so that a change of one shows as one line."""
    lines = (f"{json.dumps(name)}: {json.dumps(files[name])}" for name in sorted(files))
    record.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def known(files: Record, path: Path) -> dict[str, Any]:
    """What the record has of a file; its runs count only for the content that it has now."""
    line = files.get(path.relative_to(ROOT).as_posix(), {})
    if line.get("digest") == digest(path):
        return line
    return {"digest": digest(path), "runs": 0, "seconds": 0, "failed": line.get("failed", {})}


def add(files: Record, path: Path, ran: dict[str, Any]) -> None:
    """Put a session's runs and failures to those of its file; ``name at commit`` → how many runs failed."""
    line = known(files, path)
    failed = Counter(line["failed"])
    failed.update({f"{name} at {ran['commit']}": count for name, count in ran["failed"].items()})
    files[path.relative_to(ROOT).as_posix()] = {
        "digest": line["digest"], "runs": line["runs"] + ran["times"], "seconds": line["seconds"] + ran["seconds"],
        "tests": ran["tests"] // ran["times"], "date": date.today().isoformat(), "commit": ran["commit"],
        "failed": dict(failed),
    }  # fmt: skip


def cost(line: dict[str, Any], rounds: int) -> float:
    """The seconds that are missing to all rounds; of a file that never ran they are not known: 0."""
    return line["seconds"] / line["runs"] * (rounds - line["runs"]) if line["runs"] else 0


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
        "times": times, "tests": len(cases), "failed": dict(failed), "seconds": round(time.monotonic() - began, 1),
        "commit": _commit(),
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
    deadline = time.monotonic() + minutes * 60
    while time.monotonic() < deadline:
        files = read(record)
        left = [path for path in found if known(files, path)["runs"] < rounds]
        if not left:
            break
        path = min(left, key=lambda path: cost(known(files, path), rounds))
        so_far = known(files, path)["runs"]
        ran = session(path, found[path], min(times_of(path, found[path]), rounds - so_far) if so_far else 1)
        files = read(record)  # another process may have written meanwhile
        add(files, path, ran)
        write(record, files)
    show(read(record), list(found), rounds)


def show(files: Record, found: list[Path], rounds: int) -> None:
    done = [known(files, path)["runs"] for path in found]
    whole = sum(count >= rounds for count in done)
    click.echo(f"{whole} of {len(done)} files have run {rounds} times; the least often run: {min(done)} times")
    for path in found:
        for name, count in known(files, path)["failed"].items():
            click.echo(f"failed {count} times: {path.relative_to(ROOT)}::{name}")


if __name__ == "__main__":
    main()
