"""``verniermq group``, ``cluster``, ``health``, ``topic show`` and ``completion``, as an operator types them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from click.testing import CliRunner, Result

from tests.client.place import Place
from verniermq.cli import main
from verniermq.cli.moments import Position, parse_position
from verniermq.client import Admin, PushConsumer, ReceivedMessage
from verniermq.client.errors import ClientError


@pytest.fixture
def topic(place: Place) -> Iterator[str]:
    name = place.name("cli")
    assert run(place, "topic", "create", name, "--queues", "1").exit_code == 0
    assert run(place, "send", name, "hello", "--count", "5", "--keys", "k1").exit_code == 0
    return name


@pytest.fixture
def group(place: Place, topic: str) -> str:
    """Has consumed two of the five messages."""
    name = place.name("group")

    async def consume() -> None:
        async with Admin(namesrv=place.namesrv) as admin:
            await admin.create_group(name)
            await admin.set_offsets(name, dict.fromkeys(await admin.topic_offsets(topic), 2))

    anyio.run(consume)
    return name


def run(place: Place, *arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(main, [*arguments, "--namesrv", place.namesrv], input=stdin)


def lines(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.output.splitlines()]


def places(place: Place, group: str, topic: str) -> list[int]:
    (shown,) = lines(run(place, "group", "show", group, "--json"))
    return [row["committed"] for row in shown["queues"] if row["topic"] == topic]


# --- groups ---------------------------------------------------------------------------------


def test_groups_are_listed_with_their_lag_though_nobody_consumes(place: Place, group: str, topic: str) -> None:
    (found,) = [one for one in lines(run(place, "group", "list", "--json")) if one["group"] == group]
    table = run(place, "group", "list")

    assert (found["members"], found["lag"], found["topics"]) == (0, 3, [topic])
    assert found["behind_ms"] >= 0
    assert group in table.output
    assert "TOOLS_CONSUMER" not in table.output


def test_a_group_is_shown_queue_by_queue(place: Place, group: str, topic: str) -> None:
    (shown,) = lines(run(place, "group", "show", group, "--json"))
    text = run(place, "group", "show", group, "--topic", topic)
    unknown = run(place, "group", "show", "nobody")

    (row,) = shown["queues"]
    assert (row["topic"], row["committed"], row["end"], row["lag"]) == (topic, 2, 5, 3)
    assert "0 members, lag 3" in text.output
    assert (unknown.exit_code, "there is no group 'nobody'" in unknown.output) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(("--max-lag", "3"), 0), (("--max-lag", "2"), 1), (("--min-members", "1"), 1), (("--max-age", "1d"), 0)],
)
def test_a_check_of_a_group_is_an_exit_code(place: Place, group: str, arguments: tuple[str, ...], code: int) -> None:
    assert run(place, "group", "check", group, *arguments).exit_code == code
    assert run(place, "group", "check", group).exit_code == 2


@pytest.mark.parametrize(
    ("to", "after"), [("start", 0), ("end", 5), ("4", 4), ("+1", 3), ("-1", 1), ("99", 5), ("1h", 0)]
)
def test_a_reset_does_what_its_plan_said(place: Place, group: str, topic: str, to: str, after: int) -> None:
    plan = lines(run(place, "group", "reset", group, "--topic", topic, "--to", to, "--dry-run", "--json"))
    unchanged = places(place, group, topic)
    done = run(place, "group", "reset", group, "--topic", topic, "--to", to, "--yes")

    assert [(move["from"], move["to"]) for move in plan] == [(2, after)]
    assert unchanged == [2]
    assert done.exit_code == 0, done.output
    assert places(place, group, topic) == [after]


def test_a_group_goes_back_to_where_it_was(place: Place, group: str, topic: str, tmp_path: Path) -> None:
    before, other = tmp_path / "before.json", tmp_path / "other.json"
    before.write_text(run(place, "group", "show", group, "--json").output)
    other.write_text("{}")
    run(place, "group", "reset", group, "--topic", topic, "--to", "end", "--yes")
    moved = places(place, group, topic)
    back = run(place, "group", "reset", group, "--topic", topic, "--to", f"@{before}", "--yes")
    wrong = run(place, "group", "reset", group, "--topic", topic, "--to", f"@{other}", "--yes")
    absent = run(place, "group", "reset", group, "--topic", topic, "--to", f"@{tmp_path}/none", "--yes")

    assert (moved, back.exit_code, places(place, group, topic)) == ([5], 0, [2])
    assert "3 again" in back.output
    assert (wrong.exit_code, "is not what group show --json prints" in wrong.output) == (2, True)
    assert (absent.exit_code, "cannot be read" in absent.output) == (2, True)


async def test_a_group_is_shown_with_the_member_that_has_each_queue(place: Place, topic: str) -> None:
    name = place.name("group")
    consumer = PushConsumer(name, namesrv=place.namesrv, start="first")
    consumer.subscribe(topic)
    consumer.on_message(consumed)

    async with consumer:
        with anyio.fail_after(20):
            while True:
                result = await anyio.to_thread.run_sync(lambda: run(place, "group", "show", name, "--json"))
                shown = json.loads(result.output) if result.exit_code == 0 else {"queues": []}
                if any(row["owner"] for row in shown["queues"] if row["topic"] == topic):
                    break
                await anyio.sleep(0.1)
        text = await anyio.to_thread.run_sync(lambda: run(place, "group", "show", name))

    assert shown["clients"] == [row["owner"] for row in shown["queues"] if row["topic"] == topic]
    assert "group " + name + ": 1 member," in text.output
    assert f"  1  {shown['clients'][0]}" in text.output


async def consumed(message: ReceivedMessage) -> None:
    """It is done with it at once."""


def test_nothing_is_changed_where_nobody_can_be_asked(place: Place, group: str, topic: str) -> None:
    refused = [
        run(place, "group", "reset", group, "--topic", topic, "--to", "end"),
        run(place, "group", "delete", group),
        run(place, "group", "clone", group, "copy"),
    ]

    assert [result.exit_code for result in refused] == [2, 2, 2]
    assert all("say --yes" in result.output for result in refused)
    assert places(place, group, topic) == [2]


def test_a_group_is_cloned_and_deleted(place: Place, group: str, topic: str) -> None:
    copy = place.name("copy")
    cloned = run(place, "group", "clone", group, copy, "--yes")
    begins = places(place, copy, topic)
    deleted = run(place, "group", "delete", copy, "--yes")
    names = {one["group"] for one in lines(run(place, "group", "list", "--json"))}

    assert (cloned.exit_code, begins, deleted.exit_code) == (0, [2], 0)
    assert copy not in names
    assert group in names


def test_places_are_read_as_people_write_them() -> None:
    assert parse_position("start") == Position("first")
    assert parse_position("latest") == Position("last")
    assert parse_position("4711") == Position(number=4711)
    assert parse_position("-100") == Position(number=-100, relative=True)
    assert isinstance(parse_position("2026-03-01T12:30").moment, int)
    assert isinstance(parse_position("2h").moment, int)
    with pytest.raises(ClientError, match="'yesterday' is no place"):
        parse_position("yesterday")


# --- the others -----------------------------------------------------------------------------


def test_the_brokers_are_shown(place: Place) -> None:
    (broker,) = lines(run(place, "cluster", "--json"))
    table = run(place, "cluster")

    assert (broker["broker"], broker["role"], broker["trouble"]) == ("broker-a", "master", "")
    assert "putTps" in broker["figures"]
    assert (table.exit_code, "broker-a" in table.output) == (0, True)


def test_health_is_an_exit_code(place: Place, topic: str) -> None:
    well = run(place, "health", "--topic", topic)
    as_json = lines(run(place, "health", "--json"))
    nobody = CliRunner().invoke(main, ["health", "--namesrv", "127.0.0.1:1", "--json"])

    assert (well.exit_code, well.output.count("ok  ")) == (0, 3)
    assert as_json[0]["ok"] is True
    assert nobody.exit_code == 1
    assert json.loads(nobody.output)["ok"] is False


def test_a_topic_is_shown_with_its_queues_and_groups(place: Place, group: str, topic: str) -> None:
    (shown,) = lines(run(place, "topic", "show", topic, "--json"))
    text = run(place, "topic", "show", topic)

    assert [(row["first"], row["end"]) for row in shown["queues"]] == [(0, 5)]
    assert shown["groups"] == [{"group": group, "members": 0, "lag": 3}]
    assert 0 < shown["queues"][0]["first_ms"] <= shown["queues"][0]["last_ms"]
    assert shown["settings"]["broker-a"]["write queues"] == "1"
    assert "1 queue, read, write, 5 messages" in text.output


def test_the_tables_of_topics_and_groups_fit_into_80_columns(
    place: Place, group: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = [
        run(place, "topic", "show", topic), run(place, "group", "show", group), run(place, "group", "list"),
        run(place, "group", "reset", group, "--topic", topic, "--to", "start", "--dry-run"),
    ]  # fmt: skip

    lines = [line for result in shown for line in result.output.splitlines()]
    rows = [line for line in lines if "broker-a  " in line]
    assert max(map(len, lines)) <= 80
    assert len(rows) == 3
    # A row that is too wide is folded: its date and its time are on two lines.
    assert [len(re.findall(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", row)) for row in rows] == [2, 1, 0]


def test_messages_are_found_by_a_key_without_an_option(place: Place, topic: str) -> None:
    found = lines(run(place, "message", "query", topic, "k1", "--json"))
    by_option = lines(run(place, "message", "query", topic, "--key", "k1", "--json"))
    without = run(place, "message", "query", topic)

    assert len(found) == len(by_option) == 5
    assert without.exit_code == 2
    assert f"say one key: verniermq message query {topic} KEY" in without.output


def test_the_tail_of_a_topic_that_may_not_be_read_says_so(place: Place) -> None:
    name = place.name("closed")
    assert run(place, "topic", "create", name, "--perm", "2").exit_code == 0
    shown = run(place, "tail", name, "--from-start", "--no-wait")

    assert shown.exit_code == 2
    assert f"topic {name} may not be read: its permission is write" in shown.output


def test_a_level_beyond_eighteen_is_the_brokers_to_judge(place: Place, topic: str) -> None:
    assert run(place, "send", topic, "later", "--delay-level", "19").exit_code == 0


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_completion(shell: str) -> None:
    made = CliRunner().invoke(main, ["completion", shell])

    assert made.exit_code == 0
    assert "_VERNIERMQ_COMPLETE" in made.output


def test_where_clients_find_the_name_server_is_no_setting_of_a_broker() -> None:
    shown = CliRunner().invoke(main, ["config", "show"], env={"VERNIERMQ_NAMESRV": "127.0.0.1:9876"})

    assert shown.exit_code == 0, shown.output
