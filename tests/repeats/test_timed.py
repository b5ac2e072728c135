"""What the search for timed tests finds, and what a session of repeats writes down."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.repeats import __main__ as repeats
from tests.repeats import timed

SAMPLE = """
import subprocess
from time import monotonic as now
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

class TestGroup:
    async def test_by_a_sleep(self):
        await anyio.sleep(0)

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

    assert found == {sample: ["test_by_a_fixture", "test_by_the_clock", "TestGroup.test_by_a_sleep"]}


def test_tests_of_this_tree_are_found() -> None:
    found = {path.relative_to(timed.ROOT).as_posix(): names for path, names in timed.timed_tests().items()}

    assert "test_a_program_that_forgets_to_close_ends_all_the_same" in found["tests/client/test_sync.py"]
    assert "tests/kernel/test_config_units.py" not in found


def test_a_session_says_how_often_a_test_ran_and_which_failed() -> None:
    line = repeats.session(Path(timed.__file__).parent / "failing.py", ["test_every_second_time", "test_always"], 4)

    assert (line["tests"], line["failed"]) == (8, {"test_every_second_time": 2})


def test_runs_add_up_and_a_file_that_changed_begins_anew(sample: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "ROOT", timed.ROOT)
    record = sample.parent / "record.json"
    ran = {"times": 10, "tests": 30, "failed": {"test_by_the_clock": 1}, "seconds": 2.5, "commit": "abc"}
    for _ in range(2):
        files = repeats.read(record)
        repeats.add(files, sample, ran)
        repeats.write(record, files)
    line = repeats.known(repeats.read(record), sample)
    assert (line["runs"], line["seconds"], line["tests"]) == (20, 5.0, 3)

    sample.write_text(SAMPLE + "\n")

    line = repeats.known(repeats.read(record), sample)
    assert (line["runs"], line["failed"]) == (0, {"test_by_the_clock at abc": 2})


def test_the_cheapest_file_goes_first_and_one_that_never_ran_before_it() -> None:
    never, cheap, dear = ({"runs": runs, "seconds": seconds} for runs, seconds in [(0, 0), (10, 1.0), (90, 180.0)])

    assert repeats.cost(never, 100) < repeats.cost(cheap, 100) < repeats.cost(dear, 100)
