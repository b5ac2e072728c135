"""``verniermq message``, run as a user runs it, against a broker process."""

from __future__ import annotations

import json
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from tests.plugins.peer import peer
from verniermq.testing import BrokerProcess, broker_process


def message(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "verniermq.cli", "message", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path_factory.mktemp("broker") / "store") as running:
        yield running


async def _send(process: BrokerProcess, topic: str, body: bytes, flags: int = 0, **properties: str) -> dict[str, str]:
    async with peer(process.broker) as client:
        return await client.sent(topic, body, flags=flags, **properties)


def send(process: BrokerProcess, topic: str, body: bytes, flags: int = 0, **properties: str) -> dict[str, str]:
    return anyio.run(lambda: _send(process, topic, body, flags, **properties))


def test_a_message_is_shown_by_its_offset_id(process: BrokerProcess) -> None:
    sent = send(process, "shown", "grüße".encode(), KEYS="a b", TAGS="new", colour="blue", UNIQ_KEY="U-shown")

    result = message("get", sent["msgId"])

    assert result.returncode == 0, result.stderr
    lines = {line[:15].strip(): line[15:] for line in result.stdout.splitlines()}
    assert lines["topic"] == "shown  queue 0  offset 0"
    assert (lines["id"], lines["offset id"], lines["tags"], lines["keys"]) == ("U-shown", sent["msgId"], "new", "a b")
    assert "colour=blue" in lines["properties"]
    assert lines["body"] == "grüße"


def test_a_message_is_shown_by_its_unique_key_if_its_topic_is_named(process: BrokerProcess) -> None:
    unique = "0A000009126718B4AAC247B760000003"
    send(process, "unique", b"by key", UNIQ_KEY=unique)

    found = message("get", unique, "--topic", "unique", "--namesrv", process.namesrv, "--json")
    missed = message("get", unique)

    assert json.loads(found.stdout)["body"] == "by key"
    assert missed.returncode == 1
    assert "name its topic with --topic" in missed.stderr


def test_messages_are_found_by_key_and_time(process: BrokerProcess) -> None:
    for body in (b"one", b"two", b"three"):
        send(process, "queried", body, KEYS="order-7")
    here = ("--namesrv", process.namesrv)

    everything = message("query", "queried", "--key", "order-7", "--json", *here)
    newest = message("query", "queried", "--key", "order-7", "--max", "1", "--begin", "1h", *here)
    earlier = message("query", "queried", "--key", "order-7", "--end", "2020-01-01", *here)

    assert [json.loads(line)["body"] for line in everything.stdout.splitlines()] == ["one", "two", "three"]
    assert "three" in newest.stdout
    assert "two" not in newest.stdout
    assert earlier.returncode == 1
    assert earlier.stderr == "Error: topic queried has no message with the key order-7 in that time\n"


def test_a_body_that_would_fill_the_memory_is_an_error_that_names_its_message(process: BrokerProcess) -> None:
    bomb = send(process, "bodies", zlib.compress(bytes((64 << 20) + 1), 9), flags=1)

    result = message("get", bomb["msgId"], "--json")

    assert result.returncode == 2
    assert f"the body of {bomb['msgId']} does not decompress" in result.stderr
    assert "more than the 67108864 that are allowed" in result.stderr


def test_a_compressed_body_is_shown_as_it_was_sent_and_bytes_as_base64(process: BrokerProcess) -> None:
    text = send(process, "bodies", zlib.compress(b"long " * 100), flags=1)
    raw = send(process, "bodies", b"\xff\xfe")

    assert json.loads(message("get", text["msgId"], "--json").stdout)["body"] == "long " * 100
    assert json.loads(message("get", raw["msgId"], "--json").stdout)["body_base64"] == "//4="


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("query", "nowhere", "--key", "k"), "nowhere"),
        (("query", "shown", "--key", "k", "--begin", "soon"), "'soon' is no time"),
        (("query", "shown"), "say one key"),
        (("get", "hello"), "there is no message with the id hello"),
    ],
)
def test_what_cannot_be_found_is_said_in_one_line(
    process: BrokerProcess, arguments: tuple[str, ...], complaint: str
) -> None:
    result = message(*arguments, "--namesrv", process.namesrv)

    assert result.returncode in (1, 2)
    assert complaint in result.stderr
    assert "Traceback" not in result.stderr


def test_a_name_server_that_is_not_there_is_named(tmp_path: Path) -> None:
    result = message("query", "shown", "--key", "k", "--namesrv", "127.0.0.1:1")

    assert result.returncode == 2
    assert "127.0.0.1:1" in result.stderr
