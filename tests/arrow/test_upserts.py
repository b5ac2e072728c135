"""Tables with one row for each key: the newest message counts, markers delete, and a replay gives the same table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable

from tests.arrow.conftest import Source
from tests.arrow.producing import Producing
from tests.arrow.test_export import export
from verniermq.cli import main
from verniermq.contrib.arrow.compaction import compact
from verniermq.contrib.arrow.errors import BadFormat, BadOption, FormatChanged
from verniermq.contrib.arrow.tables.iceberg import open_catalog
from verniermq.contrib.arrow.typedtopics import parse_typed
from verniermq.contrib.arrow.upserts import NoKey

FORMATS = pytest.mark.parametrize("form", ["iceberg", "delta"])


def rows_of(out: Path, form: str, topic: str) -> dict[str, dict[str, Any]]:
    if form == "delta":
        rows = DeltaTable(out / "messages" / f"topic={topic}").to_pyarrow_table().to_pylist()
    else:
        rows = open_catalog(out).load_table(("mq", topic)).scan().to_arrow().to_pylist()
    found = {row["key"]: row for row in rows}
    assert len(found) == len(rows), "a key is there twice"
    return found


def bodies_of(out: Path, form: str, topic: str) -> dict[str, bytes]:
    return {key: row["body"] for key, row in rows_of(out, form, topic).items()}


@FORMATS
def test_the_newest_message_of_a_key_counts_and_a_replay_gives_the_same(
    producing: Producing, topic: str, source: Source, tmp_path: Path, form: str
) -> None:
    producing.create(topic, 2)
    upsert = {"format": form, "mode": "upsert", "key": "keys"}
    for number in range(30):
        producing.send(topic, b"%d" % number, number % 2, KEYS=f"k{number % 6}")
    producing.send(topic, b"", 0, KEYS="k0")
    producing.send(topic, b"", 1, KEYS="nobody")

    export(tmp_path / "small", source, topic, **upsert, batch_rows=7)
    first = bodies_of(tmp_path / "small", form, topic)
    producing.send(topic, b"again", 0, KEYS="k0")
    producing.send(topic, b"gone", 1, KEYS="k1", TAGS="void")
    export(tmp_path / "small", source, topic, **upsert, delete_tag="void")
    export(tmp_path / "large", source, topic, **upsert, delete_tag="void")

    assert first == {f"k{key}": b"%d" % (24 + key) for key in range(1, 6)}
    expected = {"k0": b"again", **{f"k{key}": b"%d" % (24 + key) for key in range(2, 6)}}
    assert bodies_of(tmp_path / "small", form, topic) == bodies_of(tmp_path / "large", form, topic) == expected
    assert not list((tmp_path / "small" / "messages").glob("topic=*/dt=*/batch=*"))


@FORMATS
def test_a_batch_that_runs_again_is_not_merged_again(
    producing: Producing, topic: str, source: Source, tmp_path: Path, form: str
) -> None:
    producing.create(topic, 1)
    producing.send(topic, b"old", KEYS="k")
    upsert = {"format": form, "mode": "upsert", "key": "keys"}
    export(tmp_path, source, topic, **upsert)

    # As if it had been killed after the merge, before its end was noted; somebody else deletes the row meanwhile.
    (tmp_path / "_checkpoint" / "commits" / "0").unlink()
    if form == "delta":
        DeltaTable(tmp_path / "messages" / f"topic={topic}").delete("key = 'k'")
    else:
        open_catalog(tmp_path).load_table(("mq", topic)).delete("key = 'k'")
    export(tmp_path, source, topic, **upsert)

    assert bodies_of(tmp_path, form, topic) == {}
    assert not list((tmp_path / "messages").glob("topic=*/dt=*/batch=*"))


@FORMATS
def test_keys_can_be_properties_or_members_of_values_that_grow(
    producing: Producing, topic: str, source: Source, tmp_path: Path, form: str
) -> None:
    producing.create(topic, 1)
    schema = tmp_path / "orders.ddl"
    schema.write_text("id int")
    upsert = {"format": form, "mode": "upsert"}
    producing.send(topic, b'{"id": 1}', ACCOUNT="a")
    producing.send(topic, b"poison", ACCOUNT="b")
    typed = lambda: parse_typed([f"{topic}={schema}"], "table")  # noqa: E731

    export(tmp_path / "property", source, topic, **upsert, key="property:ACCOUNT")
    export(tmp_path / "value", source, topic, **upsert, key="value:id", typed=typed())
    schema.write_text("id int, note string")
    producing.send(topic, b'{"id": 1, "note": "new"}', ACCOUNT="a")
    producing.send(topic, b'{"id": 2}', ACCOUNT="b")
    export(tmp_path / "value", source, topic, **upsert, key="value:id", typed=typed())

    assert bodies_of(tmp_path / "property", form, topic) == {"a": b'{"id": 1}', "b": b"poison"}
    values = {key: row["value"] for key, row in rows_of(tmp_path / "value", form, topic).items()}
    assert values == {"1": {"id": 1, "note": "new"}, "2": {"id": 2, "note": None}}


@FORMATS
def test_tables_with_keys_can_be_compacted(
    producing: Producing, topic: str, source: Source, tmp_path: Path, form: str
) -> None:
    producing.create(topic, 1)
    upsert = {"format": form, "mode": "upsert", "key": "keys"}
    for number in range(12):
        producing.send(topic, b"%d" % number, KEYS=f"k{number}")
    export(tmp_path, source, topic, **upsert, batch_rows=3)

    compact(tmp_path, (), 1 << 27, None, "", "mq")
    producing.send(topic, b"new", KEYS="k0")
    export(tmp_path, source, topic, **upsert)

    assert bodies_of(tmp_path, form, topic) == {**{f"k{n}": b"%d" % n for n in range(1, 12)}, "k0": b"new"}


def test_a_message_without_a_key_is_told_or_left_out(
    producing: Producing, topic: str, source: Source, tmp_path: Path
) -> None:
    producing.create(topic, 1)
    producing.send(topic, b"with", KEYS="k")
    producing.send(topic, b"without")
    upsert = {"format": "delta", "mode": "upsert", "key": "keys"}

    with pytest.raises(NoKey, match=f"message 1 of queue 0 of {topic} has no keys"):
        export(tmp_path, source, topic, **upsert)
    export(tmp_path, source, topic, **upsert, on_error="skip")

    assert bodies_of(tmp_path, "delta", topic) == {"k": b"with"}


def test_what_cannot_have_keys_is_refused(producing: Producing, topic: str, source: Source, tmp_path: Path) -> None:
    producing.create(topic, 1)
    producing.send(topic, b"x", KEYS="k")

    with pytest.raises(BadFormat, match="none of iceberg, delta"):
        export(tmp_path / "a", source, topic, mode="upsert", key="keys")
    with pytest.raises(BadOption, match="keys, property:NAME or value:member"):
        export(tmp_path / "b", source, topic, format="delta", mode="upsert", key="body")
    with pytest.raises(BadOption, match="nothing, without --mode upsert"):
        export(tmp_path / "c", source, topic, format="delta", key="keys")
    with pytest.raises(BadOption, match="--topic"):
        export(tmp_path / "d", source, format="delta", mode="upsert", key="keys")
    export(tmp_path / "e", source, topic, format="delta")
    with pytest.raises(FormatChanged, match="upsert by keys"):
        export(tmp_path / "e", source, topic, format="delta", mode="upsert", key="keys")
    export(tmp_path / "f", source, topic, format="delta", mode="upsert", key="keys")
    with pytest.raises(FormatChanged, match="has an export as upsert by keys"):
        export(tmp_path / "f", source, topic, format="delta")


def test_the_command_merges(producing: Producing, topic: str, source: Source, tmp_path: Path) -> None:
    producing.create(topic, 1)
    producing.send(topic, b"old", KEYS="k")
    producing.send(topic, b"new", KEYS="k")
    base = ["export", str(tmp_path), "--namesrv", source()["nameServer"], "--topic", topic, "--format", "iceberg"]

    done = CliRunner().invoke(main, [*base, "--mode", "upsert", "--key", "keys"])

    assert done.exit_code == 0, done.output
    assert bodies_of(tmp_path, "iceberg", topic) == {"k": b"new"}
