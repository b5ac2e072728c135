"""``verniermq console``: the same pages beside a cluster, which may go away and come back."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.console.looking import visitor
from verniermq.cli import main
from verniermq.testing import running_broker

pytestmark = pytest.mark.anyio


@contextmanager
def console_process(*options: str) -> Iterator[str]:
    """A console in a process of its own; its address."""
    command = [sys.executable, "-m", "verniermq.cli", "console", "--listen", "127.0.0.1:0", *options]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().partition("http://")[2].partition(",")[0]
            process.terminate()
            assert process.wait(30) == 0
        finally:
            process.kill()


async def test_it_shows_a_cluster_under_the_name_of_its_environment(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        name_server, address = broker.name_servers[0], broker.address
        with console_process("--namesrv", name_server, "--label", "staging <1>", "--colour", "amber") as at:
            async with visitor(at) as somebody:
                page = (await somebody.get("/cluster")).text
                assert address in page
                assert '<div class="environment amber" role="note">staging &lt;1&gt;</div>' in page


async def test_it_says_when_nobody_answers_and_goes_on_when_somebody_does(tmp_path: Path) -> None:
    async with running_broker(tmp_path / "1") as broker:
        name_server = broker.name_servers[0]
    with console_process("--namesrv", name_server) as at:
        async with visitor(at) as somebody:
            assert name_server in (await somebody.get("/", 502)).text
            assert "error" in (await somebody.get("/topics.json", 502)).json()
            events = somebody.events("/index.live")
            assert (await anext(events))[0] == "trouble"

            port = int(name_server.rpartition(":")[2])
            async with running_broker(tmp_path / "2", plugins__namesrv__port=port):
                async for kind, html in events:
                    if kind == "main" and "broker-a" in html:
                        break
                assert "broker-a" in (await somebody.get("/")).text


async def test_it_does_not_listen_where_everybody_could_use_it() -> None:
    for listen in ("0.0.0.0:0", "nowhere"):
        done = CliRunner().invoke(main, ["console", "--listen", listen])

        assert done.exit_code == 1
        assert done.output.startswith("Error: ")
        assert listen in done.output
