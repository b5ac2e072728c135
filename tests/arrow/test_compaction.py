"""Small files become large ones, and readers see each row once, before, meanwhile and after."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable

from tests.arrow.conftest import Source
from tests.arrow.producing import Producing
from tests.arrow.test_export import bodies_in, export
from verniermq.cli import main
from verniermq.contrib.arrow.compaction import NothingThere, compact
from verniermq.contrib.arrow.tables.iceberg import open_catalog

MIB = 1 << 20


def files_of(out: Path, form: str, topic: str) -> int:
    if form == "delta":
        return len(DeltaTable(out / "messages" / f"topic={topic}").file_uris())
    return len(list(open_catalog(out).load_table(("mq", topic)).scan().plan_files()))


@pytest.mark.parametrize("form", ["iceberg", "delta"])
def test_small_files_become_one_and_the_export_goes_on(
    producing: Producing, topic: str, source: Source, tmp_path: Path, form: str
) -> None:
    bodies = producing.send_many(topic, 40)
    export(tmp_path, source, topic, format=form, batch_rows=10)
    before = files_of(tmp_path, form, topic)
    if form == "iceberg":
        reader = open_catalog(tmp_path).load_table(("mq", topic)).scan().to_arrow_batch_reader()
    else:
        reader = DeltaTable(tmp_path / "messages" / f"topic={topic}").to_pyarrow_dataset().scanner().to_reader()

    (done,) = compact(tmp_path, (), 128 * MIB, None, "", "mq")

    assert before >= 4
    assert (done.before, files_of(tmp_path, form, topic)) == (before, done.after)
    assert done.after < before
    assert sorted(reader.read_all()["body"].to_pylist()) == sorted(bodies), "a reader of the old snapshot"
    assert bodies_in(tmp_path, form, topic) == sorted(bodies)
    producing.send(topic, b"later")
    assert export(tmp_path, source, topic, format=form) == 1
    assert bodies_in(tmp_path, form, topic) == sorted([*bodies, b"later"])


@pytest.mark.parametrize("form", ["iceberg", "delta"])
def test_files_of_snapshots_that_expired_are_deleted(
    producing: Producing, topic: str, source: Source, tmp_path: Path, form: str
) -> None:
    bodies = producing.send_many(topic, 20)
    export(tmp_path, source, topic, format=form, batch_rows=5)
    folder = tmp_path / "messages" / f"topic={topic}"

    (done,) = compact(tmp_path, [topic], 128 * MIB, timedelta(0), "", "mq")

    assert done.removed == done.before >= 4
    assert len(list(folder.rglob("*.parquet"))) == done.after
    assert bodies_in(tmp_path, form, topic) == sorted(bodies)


def test_the_command_says_what_it_did(producing: Producing, topic: str, source: Source, tmp_path: Path) -> None:
    producing.send_many(topic, 6, queues=1)
    export(tmp_path, source, topic, format="delta", batch_rows=2)

    well = CliRunner().invoke(main, ["compact", str(tmp_path), "--target-file", "1MiB"])
    producing.send_many(topic, 4, queues=1)
    export(tmp_path, source, topic, format="delta", batch_rows=2)
    again = CliRunner().invoke(main, ["compact", str(tmp_path), "--target-file", "1MiB", "--json"])
    wrong = CliRunner().invoke(main, ["compact", str(tmp_path), "--expire", "a week"])

    assert well.output == f"{topic}: 3 files became 1, 0 old ones were deleted\n"
    assert json.loads(again.output) == {"table": topic, "before": 3, "after": 1, "removed": 0}
    assert wrong.exit_code == 2
    assert "'a week' is not a duration" in wrong.output


def test_files_without_a_table_are_left_alone(producing: Producing, topic: str, source: Source, tmp_path: Path) -> None:
    producing.send_many(topic, 2)
    export(tmp_path / "plain", source, topic)

    with pytest.raises(NothingThere, match="an export as parquet has no snapshots"):
        compact(tmp_path / "plain", (), MIB, None, "", "mq")
    with pytest.raises(NothingThere, match="there is no export"):
        compact(tmp_path / "nowhere", (), MIB, None, "", "mq")
