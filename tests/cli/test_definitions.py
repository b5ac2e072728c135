"""``verniermq definitions``: topics and groups as a file, compared and put back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from click.testing import CliRunner, Result

from verniermq.cli import main
from verniermq.cli.definitionfile import DefinitionError, Definitions, compare, read, write
from verniermq.client import Admin
from verniermq.testing import broker_process

BROKERS = ["broker-a", "broker-b"]
FILE = """\
[[topics]]
name = "orders"
queues = 4
attributes = { "message.type" = "FIFO" }

[[groups]]
name = "billing"
max_reconsume_times = 3
"""


def topic(queues: int, **settings: Any) -> dict[str, Any]:
    return {"queues": queues, "write_queues": queues, "perm": 6, "order": False, "attributes": {}, **settings}


# --- the file -------------------------------------------------------------------------------


def test_what_is_written_is_read_again() -> None:
    definitions: Definitions = {
        ("topic", "same", "broker-a"): topic(8),
        ("topic", "same", "broker-b"): topic(8),
        ("topic", "different", "broker-a"): topic(8, attributes={"message.type": "FIFO"}),
        ("topic", "different", "broker-b"): topic(4, write_queues=2, order=True),
        ("topic", 'odd "name"', "broker-b"): topic(1, perm=4),
    }

    text = write(definitions, BROKERS)

    assert read(text, BROKERS, "file") == definitions
    assert write(read(text, BROKERS, "file"), BROKERS) == text
    assert '[[topics]]\nname = "same"\nqueues = 8\n' in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[topic]]\nname = 'a'", "'topic' is unknown"),
        ("[topics]\nname = 'a'", r"begins with \[\[topics\]\]"),
        ("[[topics]]\nqueues = 1", "has no name"),
        ("[[topics]]\nname = 'a'", "does not say how many queues"),
        ("[[topics]]\nname = 'a'\nqueues = 'x'", "queues = 'x', expected such as 8"),
        ("[[topics]]\nname = 'a'\nqueus = 1", "has no setting 'queus'"),
        ("[[topics]]\nname = 'a'\nqueues = 1\nbrokers = ['c']", "there are broker-a, broker-b"),
        ("[[topics]]\nname = 'a'\nqueues = 1\nattributes = {a = 1}", "values of attributes are texts"),
        ("[[groups]]\nname = 'a'\n[[groups]]\nname = 'a'", "is there twice"),
        ("[[groups", "is no TOML"),
    ],
)
def test_a_file_that_cannot_be_used_says_why(text: str, message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        read(text, BROKERS, "file")


def test_only_what_differs_is_changed_and_only_what_should_go_is_deleted() -> None:
    there: Definitions = {("topic", name, "broker-a"): topic(4) for name in ("fine", "small", "old")}
    wanted: Definitions = {
        ("topic", "fine", "broker-a"): topic(4), ("topic", "small", "broker-a"): topic(8),
        ("topic", "new", "broker-a"): topic(1),
    }  # fmt: skip

    assert [str(change) for change in compare(there, wanted, prune=True)] == [
        "+ topic new on broker-a: queues 1",
        "- topic old on broker-a: queues 4",
        "~ topic small on broker-a: queues 4 -> 8, write_queues 4 -> 8",
    ]
    assert [change.name for change in compare(there, wanted, prune=False)] == ["new", "small"]


# --- with a broker --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def namesrv() -> Iterator[str]:
    with broker_process(None) as process:
        yield process.namesrv


def run(namesrv: str, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["definitions", *arguments, "--namesrv", namesrv])


def test_a_cluster_is_made_as_the_file_says_and_a_second_import_does_nothing(namesrv: str, tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(FILE)

    differs = run(namesrv, "diff", str(file))
    asked = run(namesrv, "import", str(file))
    planned = run(namesrv, "import", str(file), "--dry-run", "--json")
    empty = run(namesrv, "export").output
    done = run(namesrv, "import", str(file), "--yes")
    again = run(namesrv, "import", str(file), "--yes")
    same = run(namesrv, "diff", str(file))
    exported = run(namesrv, "export", "-o", str(tmp_path / "exported.toml"))

    assert (differs.exit_code, asked.exit_code, done.exit_code, same.exit_code) == (1, 2, 0, 0), done.output
    assert "+ topic orders on broker-a: queues 4" in differs.output
    assert [json.loads(line)["action"] for line in planned.stdout.splitlines()] == ["create", "create"]
    assert "orders" not in empty
    assert "2 changes are done" in done.output
    assert again.output == "the cluster is as the file says\n"
    assert (tmp_path / "exported.toml").read_text() == FILE
    assert "1 topics, 1 groups" in exported.output


def test_settings_are_changed_attributes_go_and_what_a_file_cannot_say_stays(namesrv: str, tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(FILE)
    assert run(namesrv, "import", str(file), "--yes").exit_code == 0

    async def set_policy() -> None:
        async with Admin(namesrv=namesrv) as admin:
            known = (await admin.group_configs())["broker-a"]["billing"]
            policy = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1000]}}
            known = {member: value for member, value in known.items() if value is not None}
            await admin.put_group("broker-a", "billing", {**known, "attributes": {}, "groupRetryPolicy": policy})

    async def look() -> dict[str, Any]:
        async with Admin(namesrv=namesrv) as admin:
            return {
                "topic": (await admin.topic_configs())["broker-a"]["orders"],
                "group": (await admin.group_configs())["broker-a"]["billing"],
            }

    anyio.run(set_policy)
    changed = FILE.replace("queues = 4", "queues = 6").replace("times = 3", "times = 7")
    file.write_text(changed.replace("attributes", "# attributes"))
    done = run(namesrv, "import", str(file), "--yes")
    found = anyio.run(look)

    assert done.exit_code == 0, done.output
    assert (found["topic"]["readQueueNums"], found["topic"]["attributes"]) == (6, {})
    assert found["group"]["retryMaxTimes"] == 7
    assert found["group"]["groupRetryPolicy"]["type"] == "CUSTOMIZED"


def test_what_the_file_does_not_have_is_deleted_on_request(namesrv: str, tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(FILE)
    assert run(namesrv, "import", str(file), "--yes").exit_code == 0
    file.write_text("")

    kept = run(namesrv, "import", str(file), "--yes")
    pruned = run(namesrv, "import", str(file), "--prune", "--yes")

    assert kept.output == "the cluster is as the file says\n"
    assert "- topic orders on broker-a" in pruned.output
    assert "- group billing on broker-a" in pruned.output
    assert run(namesrv, "export").output == "\n"
