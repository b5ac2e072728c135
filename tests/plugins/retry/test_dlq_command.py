"""``verniermq dlq`` against a real broker and its name server."""

from __future__ import annotations

import json
import zlib
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from click.testing import CliRunner, Result

from tests.plugins.peer import Peer, served
from tests.spoiling import spoil
from verniermq.cli import main
from verniermq.kernel import Broker, TopicConfig
from verniermq.plugins.retry.deadletters import Pace
from verniermq.testing import ManualClock

pytestmark = pytest.mark.anyio

DEAD = "%DLQ%billing"


async def verniermq(broker: Broker, *words: str) -> Result:
    """Run the command in a thread of its own, as it brings its own event loop."""
    arguments = ["dlq", *words, "--namesrv", broker.name_servers[0]]
    return await anyio.to_thread.run_sync(partial(CliRunner().invoke, main, arguments))


async def kill(client: Peer, count: int = 3) -> None:
    """Have a group fail on messages until they are dead."""
    for number in range(count):
        names = {"KEYS": f"k{number} both", "UNIQ_KEY": f"U{number}", "TAGS": "new"}
        await client.sent("orders", f"order {number}".encode(), **names)
    for message in await client.pull("orders"):
        await client.fail(message, "billing", level=-1, failureReason="ValueError: no such customer")


async def test_list_counts_the_dead_letters_of_each_group(tmp_path: Path) -> None:
    async with served(tmp_path) as (broker, client):
        nothing = await verniermq(broker, "list")
        await kill(client)
        result = await verniermq(broker, "list", "--json")

        assert "no group has dead letters" in nothing.output
        assert json.loads(result.output) == {"group": "billing", "letters": 3}


async def test_where_there_are_no_dead_letters_a_line_says_so_and_the_exit_code_is_1(tmp_path: Path) -> None:
    async with served(tmp_path) as (broker, _):
        shown = await verniermq(broker, "show", "nope", "--json")
        resent = await verniermq(broker, "resend", "nope", "--all")

        assert (shown.exit_code, resent.exit_code) == (1, 1)
        assert "group nope has no dead letters; 'verniermq dlq list' shows" in shown.stderr
        assert "group nope has no dead letters; 'verniermq dlq list' shows" in resent.stderr


async def test_show_tells_where_a_letter_came_from_and_why_it_died(tmp_path: Path) -> None:
    async with served(tmp_path) as (broker, client):
        await kill(client)
        result = await verniermq(broker, "show", "billing", "--key", "k1")

        assert result.exit_code == 0
        assert "from orders" in result.output
        assert "'order 1'" in result.output
        assert "attempt 1 failed: ValueError: no such customer" in result.output
        assert "order 2" not in result.output


async def test_export_writes_everything_as_json_lines(tmp_path: Path) -> None:
    async with served(tmp_path / "store") as (broker, client):
        await kill(client, 2)
        text = "long " * 2000
        await client.sent("orders", zlib.compress(text.encode()), flags=0x301, UNIQ_KEY="Z")
        await client.sent("orders", b"\xff\xfe", UNIQ_KEY="B")
        for message in await client.pull("orders", offset=2):
            await client.fail(message, "billing", level=-1)
        result = await verniermq(broker, "export", "billing", "--output", str(tmp_path / "letters.jsonl"))

        letters = [json.loads(line) for line in (tmp_path / "letters.jsonl").read_text().splitlines()]
        assert result.exit_code == 0
        assert [letter["uniqueKey"] for letter in letters] == ["U0", "U1", "Z", "B"]
        assert letters[0]["keys"] == ["k0", "both"]
        assert letters[0]["reasons"] == {"1": "ValueError: no such customer"}
        assert (letters[0]["topic"], letters[0]["attempts"]) == ("orders", 1)
        assert letters[2]["body"] == text
        assert letters[3]["bodyBase64"] == "//4="


async def test_a_damaged_dead_letter_is_left_out_of_what_is_exported(tmp_path: Path) -> None:
    async with served(tmp_path / "store") as (broker, client):
        await kill(client, 2)
        spoil(tmp_path / "store", b"order 0")
        result = await verniermq(broker, "export", "billing", "--output", str(tmp_path / "letters.jsonl"))

        letters = [json.loads(line) for line in (tmp_path / "letters.jsonl").read_text().splitlines()]
        assert result.exit_code == 0
        assert [letter["body"] for letter in letters] == ["order 1"]


async def test_resend_by_key_sends_that_one_to_where_it_came_from_and_says_so(tmp_path: Path) -> None:
    async with served(tmp_path) as (broker, client):
        await kill(client)
        result = await verniermq(broker, "resend", "billing", "--key", "U1")
        found = [message for queue in range(4) for message in await client.pull("orders", queue)]
        again = next(m for m in found if "DLQ_RESENT_FROM" in m.properties)

        assert result.exit_code == 0, result.output
        assert len(found) == 4
        assert (again.body, again.tags, again.unique_key, again.reconsume_times) == (b"order 1", "new", "U1", 0)
        assert again.properties["DLQ_RESENT_FROM"] == DEAD
        assert again.properties["DLQ_RESENT_TIMES"] == "1"
        assert again.properties["DLQ_ORIGIN_TOPIC"] == "orders"
        assert "RETRY_TOPIC" not in again.properties
        assert "RETRY_REASON_1" not in again.properties


async def test_what_dies_again_counts_how_often_it_was_sent(tmp_path: Path) -> None:
    async with served(tmp_path) as (broker, client):
        await kill(client, 1)
        for topic in ("second", "third"):
            broker.topics.put(TopicConfig(topic, 1, 1))
        await verniermq(broker, "resend", "billing", "--all", "--topic", "second")
        (second,) = await client.pull("second")
        await client.fail(second, "billing", level=-1)
        await verniermq(broker, "resend", "billing", "--all", "--topic", "third")
        third = await client.pull("third")

        assert sorted(message.properties["DLQ_RESENT_TIMES"] for message in third) == ["1", "2"]


async def test_resend_to_the_group_alone_uses_its_retry_topic(tmp_path: Path) -> None:
    async with served(tmp_path) as (broker, client):
        await kill(client, 1)
        await verniermq(broker, "resend", "billing", "--all", "--to-group")
        (message,) = await client.pull("%RETRY%billing")

        assert message.body == b"order 0"
        assert message.properties["RETRY_TOPIC"] == "orders"


async def test_a_pace_is_kept_and_a_pause_not_made_up_for() -> None:
    clock = ManualClock(100.0)
    pace = Pace(4, clock)
    times = []

    async def work() -> None:
        for number in range(5):
            if number == 3:
                await clock.sleep(10)
            await pace.turn()
            times.append(clock.now() - 100)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work)
        await clock.advance(20)

    assert times == [0, 0.25, 0.5, 10.5, 10.75]


async def test_a_topic_that_is_gone_is_said_to_be_so(tmp_path: Path) -> None:
    async with served(tmp_path) as (broker, client):
        await kill(client, 1)
        result = await verniermq(broker, "resend", "billing", "--all", "--topic", "nowhere")

        assert result.exit_code == 2
        assert "'nowhere' does not exist" in result.output


async def test_a_dry_run_sends_nothing_and_a_vague_wish_is_refused(tmp_path: Path) -> None:
    async with served(tmp_path) as (broker, client):
        await kill(client)
        dry = await verniermq(broker, "resend", "billing", "--all", "--dry-run")
        vague = await verniermq(broker, "resend", "billing")
        late = await verniermq(broker, "show", "billing", "--since", "2999-01-01")

        assert dry.output.count("would go to orders") == 3
        assert len(await client.pull("orders")) == 3
        assert vague.exit_code == 2
        assert "--all" in vague.output
        assert "no such dead letters" in late.output
