"""``verniermq spark shell``, with the machine's Java and with the one that pip brings."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.arrow.producing import Producing
from verniermq.testing import broker_process

TOOLS = ("bash", "sh", "env", "dirname", "basename", "readlink", "cat", "ls", "ps", "nice", "uname", "tr", "head", "id")
"""What Spark's own scripts call; a path that has nothing else has no Java."""


def path_without_java(folder: Path) -> str:
    folder.mkdir()
    for tool in TOOLS:
        if found := shutil.which(tool):
            (folder / tool).symlink_to(found)
    return str(folder)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("java", ["of the machine", "of pip"])
def test_the_shell_has_a_session_and_a_reader(tmp_path: Path, java: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME" or java == "of the machine"}
    if java == "of pip":
        environment |= {"PATH": path_without_java(tmp_path / "tools"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    shell = [sys.executable, "-m", "verniermq.cli", "spark", "shell", "--master", "local[1]"]
    program = "print('rows', read('orders').where('queueId = 1').count(), 'on', spark.version)"
    with broker_process(tmp_path / "store", '--set=plugins.enable=["default", "spark"]') as broker:
        with Producing(broker.broker) as producing:
            producing.send_many("orders", 8)

        done = subprocess.run(
            [*shell, "--namesrv", broker.namesrv, "-c", program],
            capture_output=True, text=True, check=False, timeout=500, env=environment,
        )  # fmt: skip

    assert "rows 4 on 4" in done.stdout, done.stderr[-4000:]
    assert bool(list(tmp_path.glob("cache/verniermq/java-*"))) == (java == "of pip")
