"""The examples of test suites in other languages run: JUnit 5 and Go, each with a broker of its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from .toolchains import run_tool

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(autouse=True)
def _verniermq_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


def test_the_junit_example_passes(tmp_path: Path) -> None:
    home = f"-DargLine=-Duser.home={tmp_path}"
    run_tool("mvn", "-B", "-q", "test", f"-Dbuild.folder={tmp_path / 'target'}", home, cwd=EXAMPLES / "junit")


def test_the_go_example_passes() -> None:
    run_tool("go", "test", "-count=1", "./...", cwd=EXAMPLES / "go_test")
