"""``python -m tests.repeats``: run the timed tests again and again, and keep a record from which the next run goes on.

The record has a line per test: how often it ran since its source changed, in how many seconds, at which commit and day
last, and how often it failed at which commit. Failures of an earlier source stay: the record tells what was mended.

A session is a process that runs tests of one file several times; what they share, as a broker beside them, starts once.
Several sessions go on at a time, since most of these tests wait. What costs the least to finish comes first.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as xml
from collections import Counter, defaultdict
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from datetime import date
from pathlib import Path
from typing import Any, Final, TypeAlias

import click
from attrs import frozen

from tests.repeats.timed import ROOT, timed_tests

RECORD: Final = ROOT / "bench" / "results" / "repeats.json"
SESSION: Final = 90.0
"""Seconds that a session shall take, by what its tests took before; one that never ran is run once."""
SLOW: Final = 5.0
"""A test that takes so many seconds has sessions of its own, so that others of its file need not wait for it."""
FRESH: Final = frozenset({"tests/adapters/test_django.py", "tests/celery/test_worker.py"})
"""They move the time of a broker that the session shares, and wait for what is due by the wall: once a session."""
SESSION_LIMIT: Final = 1800
Record: TypeAlias = dict[str, dict[str, Any]]
"""``file::test`` → its line."""


@frozen
class Session:
    file: str
    tests: tuple[str, ...]
    times: int
    cost: float
    """Seconds that are missing until these tests have all their rounds."""


def read(record: Path) -> Record:
    found: Record = json.loads(record.read_text()) if record.exists() else {}
    return found


def write(record: Path, lines: Record) -> None:
    """A line per test, so that a change of one shows as one line."""
    texts = (f"{json.dumps(name)}: {json.dumps(lines[name])}" for name in sorted(lines))
    record.write_text("{\n" + ",\n".join(texts) + "\n}\n")


def known(lines: Record, name: str, digest: str) -> dict[str, Any]:
    """What the record has of a test; its runs count only for the source that it has now."""
    line = lines.get(name, {})
    if line.get("digest") == digest:
        return line
    return {"digest": digest, "runs": 0, "seconds": 0.0, "failed": line.get("failed", {})}


def add(lines: Record, name: str, digest: str, ran: dict[str, Any]) -> None:
    """Put a session's runs and failures to those of a test."""
    line = known(lines, name, digest)
    failed = Counter(line["failed"])
    if ran["failed"]:
        failed[ran["commit"]] += ran["failed"]
    lines[name] = {
        "digest": digest, "runs": line["runs"] + ran["runs"], "seconds": round(line["seconds"] + ran["seconds"], 2),
        "date": date.today().isoformat(), "commit": ran["commit"], "failed": dict(failed),
    }  # fmt: skip


def sessions(lines: Record, tests: dict[str, str], rounds: int, busy: set[str]) -> list[Session]:
    """What is left to do, the cheapest first; ``busy`` are files that run now."""
    left: dict[tuple[str, str], list[tuple[str, int, float]]] = defaultdict(list)
    for name, digest in tests.items():
        line = known(lines, name, digest)
        file, _, test = name.partition("::")
        if line["runs"] < rounds and file not in busy:
            each = line["seconds"] / line["runs"] if line["runs"] else 0.0
            kind = test if each > SLOW else "again" if line["runs"] else "first"
            left[file, kind].append((test, rounds - line["runs"], each))
    return sorted((_session(file, found) for (file, _), found in left.items()), key=lambda one: one.cost)


def _session(file: str, left: list[tuple[str, int, float]]) -> Session:
    together = sum(each for _, _, each in left)
    times = 1 if not together or file in FRESH else max(1, int(SESSION / together))
    cost = sum(missing * each for _, missing, each in left)
    return Session(file, tuple(test for test, _, _ in left), min(times, *(missing for _, missing, _ in left)), cost)


def run(one: Session) -> dict[str, dict[str, Any]]:
    """Run a session in a process of its own; test → what became of it, summed up over its parameters.

    A session that somebody ended says nothing; one whose process crashed says that its tests failed.
    """
    nodes = [f"{ROOT / one.file}::{test.replace('.', '::')}" for test in one.tests]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        options = ["-q", "-p", "tests.repeats.plugin", "-p", "no:cacheprovider", f"--junitxml={report}"]
        try:
            ended = subprocess.run(
                [sys.executable, "-m", "pytest", *options, *nodes], cwd=ROOT, capture_output=True, text=True,
                timeout=SESSION_LIMIT, env={**os.environ, "REPEATS_TIMES": str(one.times)}, check=False,
            )  # fmt: skip
            output, cases = ended.stdout, list(xml.parse(report).iter("testcase")) if report.exists() else []
            is_told_to_end = -ended.returncode in (signal.SIGTERM, signal.SIGINT)
        except subprocess.TimeoutExpired as error:
            output, cases, is_told_to_end = str(error), [], False
    if any(case.find("failure") is not None or case.find("error") is not None for case in cases) or not cases:
        click.echo(output[-20000:])
    commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True).strip()
    if is_told_to_end:
        return {test: {"runs": 0, "failed": 0, "seconds": 0.0, "commit": commit} for test in one.tests}
    return {test: {**_summed(test, cases, one.times), "commit": commit} for test in one.tests}


def _summed(test: str, cases: list[xml.Element], times: int) -> dict[str, Any]:
    """A run of a test with parameters is one of each; a run that was skipped or never came is none."""
    method = test.rpartition(".")[2]
    group = test.rpartition(".")[0]
    own = [
        case
        for case in cases
        if case.attrib["name"].partition("[")[0] == method and (not group or case.attrib["classname"].endswith(group))
    ]
    failed = sum(case.find("failure") is not None or case.find("error") is not None for case in own)
    ran = [case for case in own if case.find("skipped") is None]
    numbers = {found[1] for case in ran if (found := re.search(r"again(\d+)", case.attrib["name"]))}
    seconds = sum(float(case.attrib["time"]) for case in own)
    return {"runs": len(numbers), "failed": failed or (0 if own else times), "seconds": seconds}


@click.command()
@click.option("--minutes", default=60.0, help="How long; sessions that have begun are finished.")
@click.option("--rounds", default=100, help="How often each test shall have run in the end.")
@click.option("--workers", default=4, help="Sessions at a time.")
@click.option("--only", default="", help="Only tests whose path or name contains this.")
@click.option("--record", type=click.Path(path_type=Path), default=RECORD)
@click.option("--list", "only_list", is_flag=True, help="Say which tests these are.")
def main(minutes: float, rounds: int, workers: int, only: str, record: Path, only_list: bool) -> None:
    """Run the tests that use threads, processes, sleeps or the wall clock many times."""
    every = {
        f"{path.relative_to(ROOT).as_posix()}::{test}": digest
        for path, tests in timed_tests().items()
        for test, digest in tests.items()
    }
    tests = {name: digest for name, digest in every.items() if only in name}
    if only_list:
        click.echo("\n".join(tests))
    else:
        _run_all(tests, time.monotonic() + minutes * 60, rounds, workers, record)
    show(read(record), tests, rounds)


def _run_all(tests: dict[str, str], deadline: float, rounds: int, workers: int, record: Path) -> None:
    left = dict(tests)
    under_way: dict[Future[dict[str, dict[str, Any]]], Session] = {}
    with ThreadPoolExecutor(workers) as pool:
        while True:
            busy = {session.file for session in under_way.values()}
            if time.monotonic() < deadline:
                for session in sessions(read(record), left, rounds, busy):
                    if len(under_way) < workers and session.file not in busy:
                        busy.add(session.file)
                        under_way[pool.submit(run, session)] = session
            if not under_way:
                return
            for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                session = under_way.pop(future)
                ran = future.result()
                lines = read(record)
                for test, result in ran.items():
                    name = f"{session.file}::{test}"
                    add(lines, name, tests[name], result)
                    if not result["runs"]:
                        del left[name]  # skipped on this machine, or it cannot be collected
                write(record, lines)


def show(lines: Record, tests: dict[str, str], rounds: int) -> None:
    runs = [known(lines, name, digest)["runs"] for name, digest in tests.items()]
    whole = sum(one >= rounds for one in runs)
    click.echo(f"{whole} of {len(runs)} tests have run {rounds} times; {sum(runs):,} runs in all")
    for name, digest in tests.items():
        for commit, count in known(lines, name, digest)["failed"].items():
            click.echo(f"failed {count} times at {commit}: {name}")


if __name__ == "__main__":
    main()
