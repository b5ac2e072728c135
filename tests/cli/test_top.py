"""``verniermq top`` and ``verniermq bench``."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import anyio
import pytest
from click.testing import CliRunner, Result

from tests.client.place import PATIENCE, Place
from verniermq.cli import main
from verniermq.cli.bench import SendPace, quantiles
from verniermq.cli.top import ClusterLook, ClusterView
from verniermq.client import Admin
from verniermq.client.admin import GroupProgress, QueueLag
from verniermq.kernel import MessageQueue


@pytest.fixture
def topic(place: Place) -> Iterator[str]:
    name = place.name("cli")
    assert run(place, "topic", "create", name, "--queues", "2").exit_code == 0
    return name


def run(place: Place, *arguments: str) -> Result:
    return CliRunner().invoke(main, [*arguments, "--namesrv", place.namesrv])


# --- top ------------------------------------------------------------------------------------


def progress(group: str, lag: int) -> GroupProgress:
    return GroupProgress(group, (), 0.0, (QueueLag(MessageQueue("t", "b", 0), 0, lag, 0),))


def test_rates_are_what_changed_between_two_looks() -> None:
    before = ClusterLook(10.0, [], {"a": (100, 50), "b": (7, 7)}, [progress("slow", 10), progress("fine", 0)])
    after = ClusterLook(
        12.0, [], {"a": (140, 90), "b": (7, 7), "new": (9, 9)}, [progress("slow", 30), progress("fine", 0)]
    )

    view = ClusterView.between(before, after)

    assert [(row.topic, row.rate, row.messages) for row in view.topics] == [
        ("a", 20.0, 90), ("new", 0.0, 9), ("b", 0.0, 7)
    ]  # fmt: skip
    assert [(row.group, row.lag, row.growth) for row in view.groups] == [("slow", 30, 10.0), ("fine", 0, 0.0)]


def test_a_cluster_is_shown_once(place: Place, topic: str) -> None:
    run(place, "send", topic, "x", "--count", "3")
    group = place.name("group")

    async def fall_behind() -> None:
        async with Admin(namesrv=place.namesrv) as admin:
            await admin.create_group(group)
            await admin.set_offsets(group, dict.fromkeys(await admin.topic_offsets(topic), 0))

    anyio.run(fall_behind)
    text = run(place, "top", "--once", "--interval", "0.1", "--rows", "1000")
    shown: dict[str, Any] = json.loads(
        run(place, "top", "--once", "--json", "--interval", "0.1", "--rows", "1000").output
    )

    assert text.exit_code == 0, text.output
    assert all(name in text.output for name in (topic, group, "broker-a"))
    assert {row["topic"]: row["messages"] for row in shown["topics"]}[topic] == 3
    assert {row["group"]: row["lag"] for row in shown["groups"]}[group] == 3
    assert [row["broker"] for row in shown["brokers"]] == ["broker-a"]
    assert 0 < shown["brokers"][0]["disk"] < 1
    assert max(map(len, text.output.splitlines())) <= 80


def test_a_terminal_shows_it_until_q_is_pressed(place: Place, topic: str) -> None:
    leader, follower = pty.openpty()
    arguments = ["top", "--interval", "0.1", "--rows", "500", "--namesrv", place.namesrv]
    command = [sys.executable, "-m", "verniermq.cli", *arguments]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "1000"}
    process = subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower, env=environment)
    os.close(follower)
    try:
        printed = b""
        deadline = time.monotonic() + PATIENCE
        while topic.encode() not in printed and time.monotonic() < deadline:
            printed += os.read(leader, 4096)
        os.write(leader, b"q")
        code = _ended(process, leader)
    finally:
        process.kill()
        process.wait()
        os.close(leader)

    assert topic.encode() in printed
    assert code == 0


def _ended(process: subprocess.Popen[bytes], leader: int) -> int | None:
    """Its exit code, once all that it still prints is read."""
    try:
        while os.read(leader, 4096):
            pass
    except OSError:
        pass  # the other side is closed
    return process.wait(PATIENCE)


def test_top_without_a_name_server_is_an_error() -> None:
    nobody = CliRunner().invoke(main, ["top", "--once", "--namesrv", "127.0.0.1:1"])

    assert nobody.exit_code == 2


# --- bench ----------------------------------------------------------------------------------


def test_sends_are_counted_and_are_there(place: Place, topic: str) -> None:
    result = run(place, "bench", "pub", topic, "--messages", "50", "--size", "100", "--clients", "2", "--json")
    batches = run(place, "bench", "pub", topic, "--messages", "20", "--batch", "10", "--seconds", "30")
    read = run(place, "bench", "sub", topic, "--json", "--seconds", "30")

    sent, found = json.loads(result.output), json.loads(read.output)
    assert (sent["messages"], sent["failed"], result.exit_code) == (50, 0, 0)
    assert set(sent["milliseconds"]["send"]) == {"p50", "p90", "p99", "p999", "max"}
    assert "pub " in batches.output
    assert batches.exit_code == 0
    assert (found["messages"], found["lost"]) == (70, 0)


def test_latency_is_measured_from_the_send_to_a_waiting_reader(place: Place, topic: str) -> None:
    result = run(place, "bench", "latency", topic, "--rate", "50", "--seconds", "0.5", "--json")

    found = json.loads(result.output)
    assert (result.exit_code, found["lost"], found["failed"]) == (0, 0, 0)
    assert 0 < found["messages"] <= 26
    assert found["milliseconds"]["end to end"]["p50"] > 0


def test_a_bench_that_is_interrupted_twice_says_goodbye_and_tells_its_figures(place: Place, topic: str) -> None:
    """timeout -s INT sends two signals, one right behind the other."""
    command = [sys.executable, "-m", "verniermq.cli", "bench", "pub", topic, "--seconds", "60", "--json"]
    with subprocess.Popen(
        [*command, "--namesrv", place.namesrv], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        while not json.loads(run(place, "topic", "show", topic, "--json").output)["queues"][0]["end"]:
            time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        time.sleep(0.001)
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=30)

    assert (process.returncode, errors) == (130, "")
    told = json.loads(out)
    assert told["messages"] > 0
    assert 0 < told["seconds"] < 30


def test_a_topic_is_made_for_a_bench_and_an_empty_one_says_so(place: Place, topic: str) -> None:
    made = place.name("bench")
    sent = run(place, "bench", "pub", made, "--messages", "1")
    empty = run(place, "bench", "sub", topic)

    assert sent.exit_code == 0, sent.output
    assert made in run(place, "topic", "list").output
    assert (empty.exit_code, "gave no message" in empty.stderr) == (2, True)


def test_figures_are_of_what_was_measured() -> None:
    assert quantiles([]) == {}
    assert quantiles([0.001] * 99 + [0.5]) == {"p50": 1.0, "p90": 1.0, "p99": 500.0, "p999": 500.0, "max": 500.0}


def test_a_pace_ends_with_its_number_or_its_time() -> None:
    async def turns(pace: SendPace) -> int:
        count = 0
        while await pace.next():
            count += 1
        return count

    assert anyio.run(turns, SendPace(60, 5, None)) == 5
    assert anyio.run(turns, SendPace(0.2, None, 50)) <= 11
