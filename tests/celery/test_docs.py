"""The page's application, worker and program run as they are written."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from verniermq.testing import BrokerProcess

PAGE = Path(__file__).parents[2] / "docs" / "adapters" / "celery.md"


def test_the_page_runs(verniermq_broker: BrokerProcess, tmp_path: Path) -> None:
    text = PAGE.read_text().replace("127.0.0.1:9876", verniermq_broker.namesrv)
    tasks, program = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (command,) = re.findall(r"^```\ncelery (.*?)\n```$", text, re.MULTILINE)
    (expected,) = re.findall(r"^```text\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "tasks.py").write_text(tasks)
    environment = {**os.environ, "PYTHONWARNINGS": "ignore", "PYTHONPATH": str(tmp_path)}

    with (tmp_path / "worker.log").open("wb") as log:
        worker = subprocess.Popen(
            [sys.executable, "-m", "celery", *command.split(), "-c", "2"],
            cwd=tmp_path, env=environment, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    try:
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100
        )
    finally:
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()

    assert done.stdout == expected, done.stderr + (tmp_path / "worker.log").read_text()
    assert done.stderr == ""
