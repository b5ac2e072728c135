"""The commands that operators type, on Apache's broker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from verniermq.client import Admin

from .apache import ApacheBroker

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheBroker]:
    """One for all: each test has topics and groups of its own."""
    with ApacheBroker(tmp_path_factory.mktemp("apache")) as running:
        yield running


def verniermq(namesrv: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "verniermq.cli", *arguments]
    environment = {**os.environ, "VERNIERMQ_NAMESRV": namesrv}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_groups_topics_and_brokers_of_apache_are_shown_and_changed(apache: ApacheBroker) -> None:
    def run(*arguments: str) -> str:
        done = verniermq(apache.namesrv, *arguments)
        assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout

    def rows(*arguments: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in run(*arguments, "--json").splitlines()]

    async def consume_two() -> None:
        async with Admin(namesrv=apache.namesrv) as admin:
            await admin.create_group("billing")
            await admin.set_offsets("billing", dict.fromkeys(await admin.topic_offsets("orders"), 2))

    def committed(group: str) -> list[int]:
        (shown,) = rows("group", "show", group)
        return [queue["committed"] for queue in shown["queues"] if queue["topic"] == "orders"]

    run("topic", "create", "orders", "--queues", "1")
    run("send", "orders", "hello", "--count", "5")
    anyio.run(consume_two)

    listed = {one["group"]: one["lag"] for one in rows("group", "list")}
    too_far = verniermq(apache.namesrv, "group", "check", "billing", "--max-lag", "2").returncode
    run("group", "check", "billing", "--max-lag", "3")
    before = committed("billing")
    run("group", "clone", "billing", "copy", "--yes")
    run("group", "reset", "billing", "--topic", "orders", "--to", "4", "--yes")
    after, copied = committed("billing"), committed("copy")
    run("group", "delete", "copy", "--yes")
    left = {one["group"] for one in rows("group", "list")}
    brokers, topic = rows("cluster"), rows("topic", "show", "orders")
    run("health", "--topic", "orders")

    assert listed["billing"] == 3
    assert (too_far, before, after, copied) == (1, [2], [4], [2])
    assert "copy" not in left
    assert [broker["address"] for broker in brokers] == [apache.broker]
    assert "billing" in json.dumps(topic)


def test_definitions_messages_benches_and_the_live_view_work_on_apaches_broker(
    apache: ApacheBroker, tmp_path: Path
) -> None:
    definitions, bundle = tmp_path / "cluster.toml", tmp_path / "bundle.zip"

    def run(*arguments: str, code: int = 0) -> str:
        done = verniermq(apache.namesrv, *arguments)
        assert done.returncode == code, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout

    run("topic", "create", "bills", "--queues", "1")
    (sent,) = [json.loads(line) for line in run("send", "bills", "hello", "--keys", "k1", "--json").splitlines()]
    printed = run("tail", "bills", "--from-start", "--no-wait", "-f", "{queue}@{offset} {keys} {body}")
    nothing = verniermq(apache.namesrv, "tail", "bills", "--from-start", "--no-wait", "--key", "other").stdout
    found = run("message", "query", "bills", "k1")
    traced = run("trace", sent["id"], "--topic", "bills", "--json")
    (top,) = [json.loads(line) for line in run("top", "--once", "--json").splitlines()]

    definitions.write_text(run("definitions", "export"))
    run("definitions", "diff", str(definitions))
    with definitions.open("a") as file:
        file.write('\n[[topics]]\nname = "made"\nqueues = 2\n')
    run("definitions", "diff", str(definitions), code=1)
    run("definitions", "import", str(definitions), "--yes")
    run("definitions", "diff", str(definitions))
    listed = run("topic", "list")

    for kind in ("pub", "latency"):
        bench = json.loads(run("bench", kind, "bills", "--seconds", "1", "--size", "100", "--json"))
        assert bench["messages"] > 0, bench
    assert json.loads(run("bench", "sub", "bills", "--seconds", "2", "--json"))["messages"] > 0
    run("debug", "bundle", "-o", str(bundle))

    assert printed.strip() == "0@0 k1 hello"
    assert nothing == ""
    assert "hello" in found
    assert "bills" in traced
    assert top
    assert "made" in listed
    with zipfile.ZipFile(bundle) as files:
        assert "errors.json" in files.namelist() or len(files.namelist()) > 3
