"""``verniermq trace`` and ``verniermq debug bundle``."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import anyio
import pytest
from click.testing import CliRunner, Result

from tests.client.place import PATIENCE, Place
from verniermq.cli import main
from verniermq.cli.debug import masked
from verniermq.client import Admin, Message, PushConsumer
from verniermq.testing import running_broker


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


# --- trace ----------------------------------------------------------------------------------


def test_a_message_is_followed_from_its_producer_to_its_groups(place: Place) -> None:
    topic, fast, slow = place.name("traced"), place.name("fast"), place.name("slow")

    async def send_and_consume() -> str:
        async with Admin(namesrv=place.namesrv) as admin:
            await admin.create_topic(topic, queues=1)
        async with place.producer("traced-senders", plugins={"enable": ["trace"]}) as producer:
            await producer.send(Message(topic, b"first"))
            sent = await producer.send(Message(topic, b"hello"))
        received = anyio.Event()
        consumer = PushConsumer(fast, namesrv=place.namesrv, start="first", plugins=["trace"])
        consumer.subscribe(topic)

        @consumer.on_message
        async def take(message: Any) -> None:
            if message.body == b"hello":
                received.set()

        async with consumer:
            with anyio.fail_after(PATIENCE):
                await received.wait()
        async with Admin(namesrv=place.namesrv) as admin:
            await admin.create_group(slow)
            await admin.set_offsets(slow, dict.fromkeys(await admin.topic_offsets(topic), 0))
        return sent.message_id

    async def traced(message_id: str) -> dict[str, Any]:
        """Once both traces, which travel as messages, are found by their keys."""
        arguments = ("trace", message_id, "--topic", topic, "--json", "--namesrv", place.namesrv)
        with anyio.fail_after(PATIENCE):
            while True:
                result = await anyio.to_thread.run_sync(lambda: run(*arguments))
                found: dict[str, Any] = json.loads(result.output)
                if len(found["trace"]) >= 2:
                    return found
                await anyio.sleep(0.1)

    message_id = anyio.run(send_and_consume)
    found = anyio.run(traced, message_id)
    text = run("trace", message_id, "--topic", topic, "--namesrv", place.namesrv)

    assert found["message"]["body"] == "hello"
    assert {state["group"]: (state["has_it"], state["before"]) for state in found["groups"]} == {
        fast: (True, 0), slow: (False, 1),
    }  # fmt: skip
    assert [(event["what"], event["group"], event["ended"]) for event in found["trace"]] == [
        ("sent", "traced-senders", "success"), ("consumed", fast, "success"),
    ]  # fmt: skip
    assert all(event["took_ms"] >= 0 for event in found["trace"])
    assert "waits; 1 before it" in text.output
    assert max(map(len, text.output.splitlines())) <= 80


def test_a_message_without_traces_is_shown_with_its_groups(place: Place) -> None:
    topic = place.name("untraced")
    sent = json.loads(run("send", topic, "x", "--json", "--namesrv", place.namesrv).output)

    shown = run("trace", sent["id"], "--topic", topic, "--namesrv", place.namesrv)
    missing = run("trace", "F" * 32, "--namesrv", place.namesrv)

    assert shown.exit_code == 0, shown.output
    assert "no group consumes its topic" in shown.output
    assert "no traces" in shown.output
    assert missing.exit_code == 1
    assert "name its topic with --topic" in missing.output


# --- debug bundle ---------------------------------------------------------------------------


async def test_a_bundle_has_what_is_needed_and_no_secrets(tmp_path: Path) -> None:
    config, log, target = tmp_path / "broker.toml", tmp_path / "broker.log", tmp_path / "bundle.zip"
    config.write_text('[plugins.namesrv]\nsecret = "a-very-secret-word-of-brokers"\n')
    log.write_text("INFO started\nWARNING login failed user=bob password=hunter2 peer=10.0.0.1\n")
    async with running_broker(plugins__enable=["default", "http"], plugins__http__listen="127.0.0.1:0") as broker:
        http = broker.host.active["http"].instance.address_of("/readyz")
        arguments = [
            "debug", "bundle", "-o", str(target), "--config", str(config), "--namesrv", broker.name_servers[0],
            "--http", http, "--log", str(log),
        ]  # fmt: skip
        made = await anyio.to_thread.run_sync(lambda: run(*arguments))
        again = await anyio.to_thread.run_sync(lambda: run(*arguments))

    with zipfile.ZipFile(target) as archive:
        files = {name: archive.read(name).decode() for name in archive.namelist()}
    assert made.exit_code == 0, made.output
    assert set(files) == {
        "versions.json", "environment.json", "config.toml", "plugins.json", "cluster.json", "livez.json", "readyz.json",
        "logs/0-broker.log", "errors.json",
    }  # fmt: skip
    assert json.loads(files["errors.json"]) == {}
    assert json.loads(files["readyz.json"])["broker"] == "broker-a"
    assert json.loads(files["cluster.json"])["brokers"][0]["name"] == "broker-a"
    assert "verniermq" in json.loads(files["versions.json"])["packages"]
    assert "login failed user=bob password=******** peer=10.0.0.1" in files["logs/0-broker.log"]
    assert [name for name, text in files.items() if "a-very-secret" in text or "hunter2" in text] == []
    assert target.stat().st_mode & 0o777 == 0o600
    assert (again.exit_code, "cannot be written: File exists" in again.output) == (1, True)


def test_a_bundle_is_made_though_nothing_answers(tmp_path: Path) -> None:
    target = tmp_path / "bundle.zip"
    made = run("debug", "bundle", "-o", str(target), "--namesrv", "127.0.0.1:1", "--metrics", "127.0.0.1:1")

    with zipfile.ZipFile(target) as archive:
        errors = json.loads(archive.read("errors.json"))
        names = archive.namelist()
    assert made.exit_code == 0
    assert set(errors) == {"cluster.json", "metrics.txt"}
    assert "config.toml" in names


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('secret_key = "abc def"', "secret_key = ********"),
        ('{"accessKey": "AK", "x": 1}', '{"accessKey": ********, "x": 1}'),
        ("Authorization: Bearer abc.def", "Authorization: ********"),
        ("url=amqp://bob:pw@10.0.0.1/x", "url=amqp://********@10.0.0.1/x"),
        ("password=hunter2&next=1", "password=********&next=1"),
        ("topic=orders secretary=bob", "topic=orders secretary=********"),
        ("nothing to hide", "nothing to hide"),
    ],
)
def test_what_looks_like_a_secret_is_masked(text: str, expected: str) -> None:
    assert masked(text) == expected
