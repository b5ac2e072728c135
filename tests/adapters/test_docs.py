"""The examples of the pages run as they are written, in processes of their own, beside a real broker."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.adapters.pages import ADDRESS, PAGES, examples
from verniermq.testing import BrokerProcess

PATIENCE = 60.0
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MODULE = re.compile(r"^# (\w+\.py)\n")
MODULES = {"taskiq": "taskiq", "dramatiq": "dramatiq", "django-admin": "django"}
"""What each command is, as a module."""


@pytest.mark.parametrize("page", ["starlette", "codecs", "cloudevents", "opentelemetry"])
def test_an_example_prints_what_the_page_says(page: str, verniermq_broker: BrokerProcess) -> None:
    ((program, expected),) = examples(page, verniermq_broker.namesrv)

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)

    assert done.stdout == expected, done.stderr


@pytest.mark.parametrize("page", ["taskiq", "dramatiq", "django"])
def test_a_worker_prints_what_the_page_says(page: str, verniermq_broker: BrokerProcess, tmp_path: Path) -> None:
    text = (PAGES / f"{page}.md").read_text().replace(ADDRESS, verniermq_broker.namesrv)
    program = ""
    expected: list[str] = []
    command: list[str] = []
    for kind, block in BLOCK.findall(text):
        if kind == "python" and (module := MODULE.match(block)):
            (tmp_path / module[1]).write_text(block)
        elif kind == "python":
            program = block
        elif kind == "text":
            expected = sorted(block.splitlines())
        else:
            command = block.split()
    environment = {
        **os.environ, "PYTHONPATH": str(tmp_path), "DJANGO_SETTINGS_MODULE": "settings", "PYTHONUNBUFFERED": "1",
    }  # fmt: skip
    output = tmp_path / "worker.out"

    def printed() -> list[str]:
        """What the page shows of it: logs are written in between, and lines of two threads may run together."""
        return sorted(re.findall("|".join(map(re.escape, expected)), output.read_text()))

    with output.open("wb") as out:
        worker = subprocess.Popen(
            [sys.executable, "-m", MODULES[command[0]], *command[1:]],
            cwd=tmp_path, env=environment, stdout=out, stderr=out, start_new_session=True,
        )  # fmt: skip
    try:
        subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environment, check=True, timeout=100)
        deadline = time.monotonic() + PATIENCE
        while printed() != expected and time.monotonic() < deadline:
            time.sleep(0.05)
    finally:
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()

    assert printed() == expected, output.read_text()
