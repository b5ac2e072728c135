"""``verniermq topic``, ``send`` and ``tail`` from a terminal."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import anyio
import anyio.to_thread
import pytest
from click.testing import CliRunner, Result

from tests.client.place import Place
from verniermq.cli import main
from verniermq.client import Admin, PullConsumer
from verniermq.client.tail import follow
from verniermq.kernel import Command, RequestCode, connect


@pytest.fixture
def topic(place: Place) -> Iterator[str]:
    name = place.name("cli")
    assert run(place, "topic", "create", name, "--queues", "2").exit_code == 0
    return name


def run(place: Place, *arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(main, [*arguments, "--namesrv", place.namesrv], input=stdin)


async def test_a_topic_is_made_for_one_type_of_messages(place: Place) -> None:
    name = place.name("cli")

    created = await anyio.to_thread.run_sync(lambda: run(place, "topic", "create", name, "--type", "fifo"))
    wrong = await anyio.to_thread.run_sync(lambda: run(place, "topic", "create", name, "--type", "wild"))
    connection = await connect(place.broker)
    answer = await connection.request(Command.request(RequestCode.GET_TOPIC_CONFIG, {"topic": name}), 30)
    connection.close()

    assert created.exit_code == 0, created.output
    assert json.loads(answer.body)["attributes"] == {"message.type": "FIFO"}
    assert wrong.exit_code == 2


def test_topics_are_created_listed_and_deleted(place: Place) -> None:
    name = place.name("cli")

    created = run(place, "topic", "create", name, "--queues", "3")
    table = run(place, "topic", "list")
    lines = [json.loads(line) for line in run(place, "topic", "list", "--json").output.splitlines()]
    asked = run(place, "topic", "delete", name)
    planned = run(place, "topic", "delete", name, "--dry-run")
    still = run(place, "topic", "list")
    deleted = run(place, "topic", "delete", name, "--yes")
    without = run(place, "topic", "list")

    assert created.output == f"topic {name} has 3 queues on broker-a\n"
    assert name in table.output
    assert "TBW102" not in table.output
    assert {"topic": name, "queues": 3, "perm": 6, "brokers": ["broker-a"]} in lines
    plan = f"topic {name}: 0 messages in 3 queues on broker-a; consumed by no group\n"
    assert (asked.exit_code, "say --yes" in asked.output, planned.output) == (2, True, plan)
    assert name in still.output
    assert deleted.output == f"{plan}topic {name} is deleted\n"
    assert name not in without.output


def test_creating_a_topic_again_changes_only_what_is_named(place: Place, topic: str) -> None:
    """The fixture's topic has two queues."""
    settings = run(place, "topic", "create", topic, "--perm", "4", "--type", "fifo", "--order")
    again = run(place, "topic", "create", topic)
    grown = run(place, "topic", "create", topic, "--queues", "3", "--json")
    shown = json.loads(run(place, "topic", "show", topic, "--json").output)["settings"]["broker-a"]

    assert settings.output == f"topic {topic} has 2 queues on broker-a\n"
    assert again.output == f"topic {topic} has 2 queues on broker-a, as before\n"
    assert json.loads(grown.output) == {
        "topic": topic, "queues": 3, "perm": 4, "brokers": ["broker-a"], "changed": True, "hidden": 0,
    }  # fmt: skip
    assert shown == {
        "read queues": "3", "write queues": "3", "permission": "read", "order": "yes", "message.type": "FIFO",
    }  # fmt: skip


def test_a_topic_that_shrinks_says_what_goes_out_of_sight_and_asks(place: Place, topic: str) -> None:
    run(place, "send", topic, "x", "--count", "6")

    def seen() -> int:
        return len(run(place, "tail", topic, "--from-start", "--no-wait", "--json").output.splitlines())

    asked = run(place, "topic", "create", topic, "--queues", "1")
    planned = run(place, "topic", "create", topic, "--queues", "1", "--dry-run")
    untouched = seen()
    shrunk = run(place, "topic", "create", topic, "--queues", "1", "--yes")
    less = seen()
    grown = run(place, "topic", "create", topic, "--queues", "2")

    told = (
        f"topic {topic}: 3 messages of queue 1 on broker-a would go out of sight until there are as many queues again\n"
    )
    assert (asked.exit_code, told in asked.output, "say --yes" in asked.output) == (2, True, True)
    assert planned.output == f"{told}topic {topic} would have 1 queue on broker-a\n"
    assert shrunk.output == f"{told}topic {topic} has 1 queue on broker-a\n"
    assert (untouched, less, grown.exit_code, seen()) == (6, 3, 0, 6)


def test_a_message_is_sent_and_shown(place: Place, topic: str) -> None:
    sent = run(place, "send", topic, "hello", "--tags", "paid", "--keys", "K1 K2", "-p", "colour=red", "--count", "2")
    shown = run(place, "tail", topic, "--from-start", "-n", "2")
    as_json = run(place, "tail", topic, "--from-start", "--no-wait", "--json").output
    lines = [json.loads(line) for line in as_json.splitlines()]

    assert sent.output.count("SEND_OK") == 2
    assert shown.output.count("#paid [K1 K2] hello") == 2
    assert [line["properties"]["colour"] for line in lines] == ["red", "red"]
    assert {line["body"] for line in lines} == {"hello"}


def test_lines_of_the_standard_input_are_messages(place: Place, topic: str) -> None:
    run(place, "send", topic, "-", "--json", stdin="one\ntwo\nthree\n")
    shown = run(place, "tail", topic, "--from-start", "--no-wait", "--tags", "*")

    assert sorted(line.split()[-1] for line in shown.output.splitlines()) == ["one", "three", "two"]


def test_tail_shows_only_the_tags_asked_for(place: Place, topic: str) -> None:
    for tag in ("a", "b"):
        run(place, "send", topic, tag, "--tags", tag)

    shown = run(place, "tail", topic, "--from-start", "--no-wait", "--tags", "a")

    assert [line.split()[-1] for line in shown.output.splitlines()] == ["a"]


def test_tail_with_a_group_keeps_its_place_and_without_one_leaves_no_trace(place: Place, topic: str) -> None:
    run(place, "send", topic, "x", "--count", "4")
    group = place.name("tail-group")

    first = run(place, "tail", topic, "--from-start", "--no-wait", "--group", group)
    second = run(place, "tail", topic, "--from-start", "--no-wait", "--group", group)

    async def groups() -> list[str]:
        async with Admin(namesrv=place.namesrv) as admin:
            return await admin.groups()

    run(place, "tail", topic, "--from-start", "--no-wait")
    assert (len(first.output.splitlines()), len(second.output.splitlines())) == (4, 0)
    assert group in anyio.run(groups)
    assert "TOOLS_CONSUMER" not in anyio.run(groups)


def test_who_reads_what_tail_prints_may_stop_early(place: Place, topic: str) -> None:
    run(place, "send", topic, "-", stdin="a\nb\n")
    command = [sys.executable, "-m", "verniermq.cli", "tail", topic, "--from-start", "--no-wait"]
    process = subprocess.Popen(
        [*command, "--namesrv", place.namesrv], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()

    assert (process.stderr.read(), process.wait(60)) == ("", 1)
    process.stderr.close()


def test_tail_waits_for_messages_to_come(place: Place, topic: str) -> None:
    async def both() -> list[bytes]:
        seen: list[bytes] = []
        async with PullConsumer(namesrv=place.namesrv) as consumer, anyio.create_task_group() as group:

            async def show(message: object) -> None:
                seen.append(message.body)  # type: ignore[attr-defined]

            async def send_later() -> None:
                await anyio.sleep(0.2)
                await place.send(topic, [b"later"])

            group.start_soon(send_later)
            await follow(consumer, topic, show, limit=1)
        return seen

    assert anyio.run(both) == [b"later"]


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        (("send", "t", "x", "--delay", "banana"), "'banana'"),
        (("send", "t", "x", "--delay", "-5s"), "'-5s'"),
        (("group", "check", "g", "--max-age", "banana"), "'banana'"),
        (("broker", "drain", "b", "--quiet", "banana", "--dry-run"), "'banana'"),
        (("broker", "drain", "b", "--timeout", "1x", "--dry-run"), "'1x'"),
    ],
)
def test_a_time_that_is_none_is_refused_before_anything_is_asked(arguments: tuple[str, ...], value: str) -> None:
    refused = CliRunner().invoke(main, [*arguments, "--namesrv", "127.0.0.1:1"])

    assert refused.exit_code == 2
    assert f"{value} is not a duration such as '500ms' or '1h30m'" in refused.stderr


def test_a_standard_input_that_is_closed_is_told(place: Place, topic: str) -> None:
    command = [sys.executable, "-m", "verniermq.cli", "send", topic, "-", "--namesrv", place.namesrv]
    done = subprocess.run(["sh", "-c", 'exec "$0" "$@" <&-', *command], capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert done.stderr == 'verniermq: BODY "-" reads the standard input, which is closed\n'


def test_commands_that_find_no_name_server_say_how_to_start_one() -> None:
    for words in (["ha", "status"], ["dlq", "list"]):
        refused = CliRunner().invoke(main, [*words, "--namesrv", "127.0.0.1:1"])

        assert refused.exit_code == 2
        assert "127.0.0.1:1: Connection refused; start one with: verniermq broker, or give" in refused.stderr


def test_a_switch_is_asked_about() -> None:
    asked = CliRunner().invoke(main, ["ha", "switch", "broker-a", "--to", "2", "--namesrv", "127.0.0.1:1"])

    assert asked.exit_code == 2
    assert "make replica 2 the master of broker-a? nobody is here to ask; say --yes" in asked.stderr


def test_errors_say_what_to_do(place: Place) -> None:
    missing = run(place, "tail", "absent")
    nobody = CliRunner().invoke(main, ["topic", "list", "--namesrv", "127.0.0.1:1"])
    bad = run(place, "topic", "create", "no spaces")
    wrong = run(place, "send", "t", "x", "-p", "nonsense")

    assert missing.exit_code == nobody.exit_code == bad.exit_code == wrong.exit_code == 2
    assert (
        f"topic 'absent' not found at {place.namesrv}; create it with: verniermq topic create absent "
        f"--namesrv {place.namesrv}" in missing.stderr
    )
    assert "no name server answered (127.0.0.1:1: Connection refused); start one with: verniermq" in nobody.stderr
    assert "not allowed" in bad.stderr
    assert "expected NAME=VALUE" in wrong.stderr
