"""What the search for timed tests finds, and what a session of repeats writes down."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.repeats import __main__ as repeats
from tests.repeats import timed

SAMPLE = """
import subprocess
from time import monotonic as now, sleep
import anyio
import pytest

def helper():
    subprocess.run(["true"])

@pytest.fixture
def server():
    helper()

def test_by_a_fixture(server):
    pass

def test_by_the_clock():
    assert now() > 0

class Server:
    def wait(self):
        sleep(1)

    def stop(self):
        pass

def test_by_a_method():
    Server().wait()

def test_by_another_method():
    Server().stop()

async def test_that_lets_others_have_a_turn():
    await anyio.sleep(0)

class TestGroup:
    async def test_by_a_sleep(self):
        await anyio.sleep(0.1)

def test_of_sums():
    assert 1 + 1 == 2
"""


@pytest.fixture
def sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "tests").mkdir()
    path = tmp_path / "tests" / "test_sample.py"
    path.write_text(SAMPLE)
    monkeypatch.setattr(timed, "ROOT", tmp_path)
    return path


def test_tests_are_found_by_what_they_and_their_fixtures_use(sample: Path) -> None:
    found = timed.timed_tests(sample.parent)

    assert {path: list(tests) for path, tests in found.items()} == {
        sample: ["test_by_a_fixture", "test_by_the_clock", "test_by_a_method", "TestGroup.test_by_a_sleep"]
    }


def test_tests_of_this_tree_are_found() -> None:
    found = {path.relative_to(timed.ROOT).as_posix(): tests for path, tests in timed.timed_tests().items()}

    assert "test_a_program_that_forgets_to_close_ends_all_the_same" in found["tests/client/test_sync.py"]
    assert "tests/kernel/test_config_units.py" not in found


def test_the_digest_of_a_test_changes_with_what_it_uses_alone(sample: Path) -> None:
    before = timed.timed_in(sample)
    sample.write_text(SAMPLE.replace('["true"]', '["false"]'))
    timed.read.cache_clear()
    after = timed.timed_in(sample)

    assert {name for name in before if before[name] != after[name]} == {"test_by_a_fixture"}


def test_a_session_says_how_often_a_test_ran_and_which_failed() -> None:
    folder = Path(timed.__file__).parent.relative_to(timed.ROOT).as_posix()
    found = repeats.run(repeats.Session(f"{folder}/failing.py", ("test_every_second_time", "test_always"), 4, 0))

    assert {name: (one["runs"], one["failed"]) for name, one in found.items()} == {
        "test_every_second_time": (4, 2), "test_always": (4, 0),
    }  # fmt: skip


@pytest.mark.parametrize(("test", "failed"), [("test_crashing", 2), ("test_ended", 0)])
def test_a_session_that_somebody_ended_says_nothing_and_one_that_crashed_failed(test: str, failed: int) -> None:
    folder = Path(timed.__file__).parent.relative_to(timed.ROOT).as_posix()
    found = repeats.run(repeats.Session(f"{folder}/failing.py", (test,), 2, 0))

    assert (found[test]["runs"], found[test]["failed"]) == (0, failed)


def test_runs_add_up_and_a_test_that_changed_begins_anew(tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    for _ in range(2):
        lines = repeats.read(record)
        repeats.add(lines, "a.py::test", "old", {"runs": 10, "failed": 1, "seconds": 2.5, "commit": "abc"})
        repeats.write(record, lines)
    line = repeats.known(repeats.read(record), "a.py::test", "old")
    assert (line["runs"], line["seconds"], line["failed"]) == (20, 5.0, {"abc": 2})

    line = repeats.known(repeats.read(record), "a.py::test", "new")
    assert (line["runs"], line["failed"]) == (0, {"abc": 2})


def test_the_cheapest_goes_first_and_what_never_ran_before_it() -> None:
    ran = {"a.py::cheap": (10, 1.0), "b.py::dear": (90, 180.0), "b.py::slow": (1, 60.0), "c.py::done": (100, 1.0)}
    lines = {name: {"digest": "", "runs": runs, "seconds": took} for name, (runs, took) in ran.items()}
    left = repeats.sessions(lines, dict.fromkeys([*ran, "a.py::never"], ""), 100, busy=set())

    assert [(one.tests, one.times) for one in left] == [
        (("never",), 1),
        (("cheap",), 90),
        (("dear",), 10),
        (("slow",), 1),
    ]
