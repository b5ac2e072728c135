"""Brokers of the sources of another commit, beside ours and with the same Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from verniermq.kernel.config.environment import PURE_VARIABLE

FOLDERS = ("kernel", "protocol", "plugins", "client", "cli", "testing", "contrib")
PROGRAM = """
import sys
sys.meta_path[:] = [one for one in sys.meta_path if "editable" not in repr(one)]  # it would lead to our own sources
from verniermq.{room} import main
main(["broker", "--port", "0", "--namesrv-port", "0", *sys.argv[1:]])
"""
PATIENCE = 30.0


class Sources(NamedTuple):
    folder: Path
    pure: bool = False
    """Without what is compiled."""

    def process(
        self, links: Path, *arguments: str, options: tuple[str, ...] = (), **more: object
    ) -> subprocess.Popen[bytes]:
        """``verniermq broker`` of these sources; ``links`` is a folder for links to them."""
        package = links / "verniermq"
        if not package.exists():
            package.mkdir(parents=True)
            for name in FOLDERS:
                if (self.folder / name).is_dir():
                    (package / name).symlink_to(self.folder.resolve() / name)
        room = "cli" if (self.folder / "cli").is_dir() else "kernel.cli"
        environment = {**os.environ, "PYTHONPATH": str(links), **({PURE_VARIABLE: "1"} if self.pure else {})}
        if not self.pure:
            environment.pop(PURE_VARIABLE, None)
        command = [sys.executable, *options, "-c", PROGRAM.format(room=room), *arguments]
        return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, **more)


class Running(NamedTuple):
    broker: str
    """Its address."""
    pid: int


@contextmanager
def running(sources: Sources, *arguments: str) -> Iterator[Running]:
    """A broker of these sources, with a store of its own, once it is ready."""
    with tempfile.TemporaryDirectory() as folder:
        ready = Path(folder) / "ready"
        process = sources.process(
            Path(folder) / "links", "--ready-file", str(ready), "--store", f"{folder}/store", *arguments
        )
        try:
            end = time.monotonic() + PATIENCE
            while not ready.exists() or not ready.read_text():
                if process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(f"the broker of {sources.folder} did not start")
                time.sleep(0.05)
            yield Running(json.loads(ready.read_text())["broker"], process.pid)
        finally:
            process.terminate()
            process.wait()
