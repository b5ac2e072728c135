"""Apache's own filter as the judge: built once under ``build/interop/filter``, asked for many answers at a time."""

from __future__ import annotations

import functools
import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.interop.toolchains import BUILD, java_command, run_tool

HERE = Path(__file__).parent
TARGET = BUILD / "filter"

Question = dict[str, Any]
"""``{"expression": …, "properties": {…}}`` or ``{"tags": …}``; see ``Filter.java`` for the answers."""


@functools.cache
def judge() -> tuple[str, ...]:
    """Build the program, and say what to run."""
    run_tool("mvn", "-B", "-q", "compile", f"-Dfilter.build={TARGET}", cwd=HERE)
    classpath = f"{TARGET}/classes{os.pathsep}{TARGET}/lib/*"
    return java_command("-Xmx256m", "-cp", classpath, "verniermq.interop.Filter", home=BUILD / "home" / "filter")


def ask_apache(questions: Sequence[Question]) -> list[str]:
    """One answer per question."""
    lines = "".join([json.dumps(question) + "\n" for question in questions])
    done = subprocess.run(judge(), input=lines.encode(), stdout=subprocess.PIPE, check=True)
    answers = done.stdout.decode().splitlines()
    assert len(answers) == len(questions), done.stdout[-2000:]
    return answers
