"""``make kernel-size`` counts code, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "bench" / "kernel_size.py"

MODULE = '''"""A docstring

of three lines."""

import os  # counts

# A comment.
LIMIT = 3
"""A docstring of an attribute."""


def twice(
    number: int,
) -> str:
    """A docstring."""
    text = """a string

    with a blank line in it"""
    return text * 2 * number
'''
CODE_LINES = 9


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), "--folder", str(folder), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "inner").mkdir()
    (tmp_path / "top.py").write_text(MODULE)
    (tmp_path / "inner" / "one.py").write_text(MODULE)
    (tmp_path / "inner" / "empty.py").write_text("")
    return tmp_path


def test_blank_lines_comments_and_docstrings_do_not_count(folder: Path) -> None:
    lines = run(folder).stdout.splitlines()

    assert lines[-2].split() == ["total", str(2 * CODE_LINES), "3", "files"]
    assert lines[-1].split()[-1] == "1"
    assert max(map(len, lines)) <= 80
    assert run(folder, "--without", "inner").stdout.splitlines()[-2].split()[1] == str(CODE_LINES)


def test_a_limit_that_is_crossed_is_an_exit_code_and_a_sentence(folder: Path) -> None:
    fine = run(folder, "--check", "--max-lines", "18", "--max-root-files", "1")
    over = run(folder, "--check", "--max-lines", "17", "--max-root-files", "0")

    assert (fine.returncode, fine.stderr) == (0, "")
    assert over.returncode == 1
    assert over.stderr == "18 code lines exceed the limit of 17\n1 files at the root exceed the limit of 0\n"


def test_the_kernel_has_no_more_than_fifteen_files_at_its_root() -> None:
    assert run(SCRIPT.parent.parent / "kernel", "--check", "--max-root-files", "15").stderr == ""
