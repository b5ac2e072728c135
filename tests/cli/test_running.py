"""A broker under a supervisor: JSON lines, systemd's socket, and the files in ``deploy`` that start it."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import anyio
import pytest

from verniermq.cli.logs import JsonFormatter
from verniermq.cli.sdnotify import Notifier
from verniermq.kernel.config import load
from verniermq.testing import SMALL

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "deploy" / "verniermq.service"
PATIENCE = 60


def line(text: str, *arguments: object, error: BaseException | None = None) -> dict[str, object]:
    trace = None if error is None else (type(error), error, error.__traceback__)
    record = logging.LogRecord("verniermq.x", logging.INFO, __file__, 1, text, arguments, trace)
    made: dict[str, object] = json.loads(JsonFormatter().format(record))
    return made


def test_a_line_has_its_event_and_its_values_as_members() -> None:
    made = line("segment rolled offset=%d took_ms=%.1f path=%s", 1073741824, 2.5, "/a b/c")

    assert (made["event"], made["level"], made["logger"]) == ("segment rolled", "INFO", "verniermq.x")
    assert (made["offset"], made["took_ms"], made["path"]) == (1073741824, 2.5, "/a b/c")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", str(made["ts"]))


@pytest.mark.parametrize(
    ("text", "arguments", "event", "fields"),
    [
        ("plain", (), "plain", {}),
        ("%s is full limit=%d", ("disk", 90), "disk is full", {"limit": 90}),
        ("100 %% full limit=%d", (90,), "100 % full", {"limit": 90}),
        ("no=%s inside a sentence", ("1",), "no=1 inside a sentence", {}),
        ("it failed event=%s", ("x",), "it failed event=x", {}),
        ("too few %s", (), "too few %s", {}),
        ("an object peer=%s", (Path("/x"),), "an object", {"peer": "/x"}),
    ],
)
def test_any_line_becomes_json(text: str, arguments: tuple[object, ...], event: str, fields: dict[str, object]) -> None:
    made = line(text, *arguments)

    assert made["event"] == event
    assert {key: value for key, value in made.items() if key not in ("ts", "level", "logger", "event")} == fields


def test_an_error_has_its_traceback() -> None:
    try:
        raise LookupError("gone")
    except LookupError as error:
        made = line("it failed", error=error)

    assert "LookupError: gone" in str(made["error"])


def test_systemd_hears_that_the_broker_is_ready_alive_and_stopping(tmp_path: Path) -> None:
    address = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(str(address))
        supervisor.settimeout(PATIENCE)
        settings = [f"--set={key}={value}" for key, value in SMALL.items() if key != "log.level"]
        command = [sys.executable, "-m", "verniermq.cli", "broker", "--store", str(tmp_path / "store"), *settings]
        environment = os.environ | {
            "NOTIFY_SOCKET": str(address), "WATCHDOG_USEC": "200000", "VERNIERMQ_LOG_FORMAT": "json",
        }  # fmt: skip
        process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        heard = [supervisor.recv(1024).decode() for _ in range(3)]
        process.send_signal(signal.SIGTERM)
        while "STOPPING=1" not in heard:
            heard.append(supervisor.recv(1024).decode())
        _, errors = process.communicate(timeout=PATIENCE)

    assert heard[0].startswith("READY=1\nSTATUS=serving 127.0.0.1:")
    assert heard[1:3] == ["WATCHDOG=1", "WATCHDOG=1"]
    events = [json.loads(text) for text in errors.splitlines() if text.startswith("{")]
    assert "broker started" in [event["event"] for event in events]
    assert process.returncode == 0


def test_without_systemd_nothing_is_told() -> None:
    assert Notifier({}).interval == 0
    Notifier({}).tell("READY=1")
    anyio.run(Notifier({"WATCHDOG_USEC": "1000000"}).keep_alive)
    assert Notifier({"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1", "NOTIFY_SOCKET": "/x"}).interval == 0
    Notifier({"NOTIFY_SOCKET": "/nobody/listens"}).tell("READY=1")


def test_a_broker_whose_standard_streams_are_closed_runs_and_ends_cleanly(tmp_path: Path) -> None:
    settings = " ".join(f"--set={key}={value}" for key, value in SMALL.items())
    ready, said = tmp_path / "ready", tmp_path / "said"
    command = f"{sys.executable} -m verniermq.cli broker --store {tmp_path / 'store'} --ready-file {ready} {settings}"
    for closed in ("<&-", "<&- >&- 2>&-"):
        process = subprocess.Popen(f"exec {command} 2>{said} {closed}", shell=True)
        try:
            while not ready.exists():
                assert process.poll() is None
                time.sleep(0.02)
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0, said.read_text()
        finally:
            if process.poll() is None:
                process.kill()
        ready.unlink()
        assert "Assertion" not in said.read_text()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "verniermq.service"
    unit.write_text(UNIT.read_text().replace("/opt/verniermq/bin/verniermq", sys.executable))
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=PATIENCE)

    mine = [text for text in done.stderr.splitlines() if "verniermq.service" in text]
    assert mine == []


def test_the_settings_of_the_image_are_settings() -> None:
    text = (ROOT / "deploy" / "Dockerfile").read_text()
    variables = dict(re.findall(r"(VERNIERMQ_[A-Z_]+)=(\S+)", text.partition("ENV ")[2].partition("USER")[0]))

    configuration = load(None, {}, variables)

    assert configuration.plugins.enable == ("default", "http", "metrics")
    assert (configuration.log.format, configuration.broker.host) == ("json", "0.0.0.0")
    assert "VERNIERMQ_BROKER_ADVERTISE" in text
    load(None, {}, {"VERNIERMQ_BROKER_ADVERTISE": "10.0.0.1"})


@pytest.mark.parametrize("file", re.findall(r"\]\(\.\./([\w./-]+)\)", (ROOT / "docs" / "running.md").read_text()))
def test_the_files_that_the_page_names_are_there(file: str) -> None:
    assert (ROOT / file).exists()


@pytest.mark.parametrize("option", ["--port", "--namesrv-port"])
def test_a_broker_that_cannot_listen_says_only_that(tmp_path: Path, option: str) -> None:
    other = "--port" if option == "--namesrv-port" else "--namesrv-port"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        arguments = ["broker", option, port, other, "0", "--store", str(tmp_path / "store")]
        command = [sys.executable, "-m", "verniermq.cli", *arguments]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert ended.returncode == 2
    assert ended.stderr.splitlines() == [
        f"verniermq: cannot listen on 127.0.0.1:{port}: the port is in use; stop what listens there, "
        "or choose another port (0 takes a free one)"
    ]
    assert not (tmp_path / "store").exists()
