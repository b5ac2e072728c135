"""The export: every message once for any reader of Parquet, tables beside them, and losses that are told."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pyarrow.dataset
import pytest
from click.testing import CliRunner
from rich.console import Console

from tests.arrow.producing import Producing
from tests.arrow.test_export import bodies_in
from tests.arrow.test_fetch import SMALL_SEGMENTS, delete_oldest_messages
from tests.arrow.test_upserts import bodies_of
from tests.spark.conftest import WITH_PLUGIN, Source
from verniermq.cli import main
from verniermq.contrib.arrow import export as arrow
from verniermq.contrib.arrow.lock import ExportRuns
from verniermq.contrib.arrow.progress import BatchDone, ExportProgress
from verniermq.contrib.spark.batches import FileCount
from verniermq.contrib.spark.export import ExportFailed, SparkExport, from_the_first, reason_of, run
from verniermq.contrib.spark.progress import lag_of
from verniermq.kernel import RequestCode, ResponseCode
from verniermq.testing import broker_process

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def parquet(folder: Path) -> list[dict[str, Any]]:
    """What a reader that knows nothing of Spark finds."""
    if not folder.is_dir():
        return []
    rows: list[dict[str, Any]] = pyarrow.dataset.dataset(folder, partitioning="hive").to_table().to_pylist()
    return rows


@contextmanager
def progress() -> Iterator[ExportProgress]:
    with ExportProgress(Console(force_terminal=True, width=100)) as one:
        yield one


def export(out: Path, source: Source, *topics: str, **changes: Any) -> int:
    with progress() as shown:
        what = SparkExport(out=str(out), name_server=source()["nameServer"], topics=topics, **changes)
        return run(what, shown)


def test_every_message_is_in_parquet_once_and_the_next_run_cleans_up_and_goes_on(
    spark: SparkSession, producing: Producing, topic: str, source: Source, tmp_path: Path
) -> None:
    bodies = producing.send_many(topic, 30)
    dead = f"%DLQ%{topic}"
    producing.create(dead, 1)
    producing.send(dead, b"given up", times=16)
    fields = {"consumerGroup": topic, "topic": topic, "queueId": "0", "commitOffset": "5"}
    producing.wire.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)

    first = export(tmp_path, source, topic, dead, group="exporters")
    bodies += [b"later"]
    producing.send(topic, b"later")
    left_by_a_killed_run = tmp_path / "messages" / ".spark-staging-1234"
    (left_by_a_killed_run / "topic=x").mkdir(parents=True)
    (tmp_path / "_export.lock").write_text("[999999999]")
    second = export(tmp_path, source, topic, dead, group="exporters")

    assert (first, second) == (31, 1)
    assert not left_by_a_killed_run.exists()
    assert not (tmp_path / "_export.lock").exists()
    rows = parquet(tmp_path / "messages")
    assert sorted(row["body"] for row in rows if row["topic"] == topic) == sorted(bodies)
    assert [row["body"] for row in rows if row["topic"] == dead] == [b"given up"]
    topics = parquet(tmp_path / "topics")
    assert sum(row["messages"] for row in topics if row["topic"] == topic) == 31
    assert sum(row["retried"] for row in topics) == 1
    mine = [row for row in parquet(tmp_path / "groups") if row["group"] == topic]
    assert {(row["topic"], row["committed"]) for row in mine} == {(topic, 5)}
    assert sum(row["deadLetters"] for row in mine) == 1
    queue = {"consumerGroup": "exporters", "topic": topic, "queueId": "0"}
    assert producing.wire.ask(RequestCode.QUERY_CONSUMER_OFFSET, queue).ext["offset"] == "16"


def test_the_command_shows_rows_and_says_what_retention_took(spark: SparkSession, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with broker_process(tmp_path / "store", WITH_PLUGIN, *SMALL_SEGMENTS) as process:
        arguments = ["spark", "export", str(out), "--namesrv", process.namesrv, "--topic", "orders", "--no-tables"]
        with Producing(process.broker) as producing:
            producing.send_many("orders", 50, queues=1, size=500)
        well = CliRunner().invoke(main, arguments)
        with Producing(process.broker) as producing:
            producing.send_many("orders", 400, queues=1, size=500)
        delete_oldest_messages(process)
        going_on = CliRunner().invoke(main, [*arguments, "--skip-lost"])

    assert well.exit_code == 0, well.output
    assert "50 rows" in well.output
    assert "0 to come" in well.output
    assert going_on.exit_code == 0, going_on.output
    rows = parquet(out / "messages")
    assert len({row["queueOffset"] for row in rows}) == len(rows) < 450
    assert max(row["queueOffset"] for row in rows) == 449
    assert f"skipped: {450 - len(rows)} messages of orders, queue 0 were deleted" in going_on.output


@pytest.mark.parametrize("form", ["parquet", "iceberg", "delta"])
def test_an_export_without_spark_goes_on_with_it_and_back(
    spark: SparkSession, producing: Producing, topic: str, source: Source, tmp_path: Path, form: str
) -> None:
    bodies = producing.send_many(topic, 10)

    def in_one_process() -> int:
        with progress() as shown:
            small = arrow.Export(out=str(tmp_path), name_server=source()["nameServer"], topics=(topic,), format=form)
            return arrow.run(small, shown)

    first = in_one_process()
    producing.send(topic, b"for Spark")
    second = export(tmp_path, source, topic, format=form)
    producing.send(topic, b"for one process")
    third = in_one_process()

    assert (first, second, third) == (10, 1, 1)
    assert bodies_in(tmp_path, form, topic) == sorted([*bodies, b"for Spark", b"for one process"])
    topics = parquet(tmp_path / "topics")
    counts = {row["batch"].partition("-")[2]: row["messages"] for row in topics}
    assert counts == {"0": 10, "1": 1, "2": 1}


def test_an_export_that_began_with_spark_goes_on_without_it(
    spark: SparkSession, producing: Producing, topic: str, source: Source, tmp_path: Path
) -> None:
    bodies = producing.send_many(topic, 10)

    first = export(tmp_path, source, topic, format="iceberg")
    producing.send(topic, b"for one process")
    with progress() as shown:
        what = arrow.Export(out=str(tmp_path), name_server=source()["nameServer"], topics=(topic,), format="iceberg")
        second = arrow.run(what, shown)

    assert (first, second) == (10, 1)
    assert bodies_in(tmp_path, "iceberg", topic) == sorted([*bodies, b"for one process"])


@pytest.mark.parametrize("form", ["iceberg", "delta"])
def test_a_batch_is_in_its_table_once_though_it_runs_again(
    spark: SparkSession, producing: Producing, topic: str, source: Source, tmp_path: Path, form: str
) -> None:
    dead = f"%DLQ%{topic}"
    bodies = producing.send_many(topic, 10)
    producing.create(dead, 1)
    producing.send(dead, b"given up", times=16)

    first = export(tmp_path, source, topic, dead, format=form)
    # As if it had been killed after the tables' commits and before its end was noted, but for one table.
    (tmp_path / "_checkpoint" / "commits" / "0").unlink()
    (tmp_path / "_checkpoint" / "commits" / ".0.crc").unlink(missing_ok=True)
    producing.send(topic, b"later")
    second = export(tmp_path, source, topic, dead, format=form)

    assert first == 11
    assert second >= 1
    assert bodies_in(tmp_path, form, topic) == sorted([*bodies, b"later"])
    assert bodies_in(tmp_path, form, dead) == [b"given up"]
    topics = parquet(tmp_path / "topics")
    assert {row["topic"] for row in topics} == {topic, dead}
    assert sum(row["messages"] for row in topics if row["topic"] == topic) == 11


def test_an_export_can_keep_the_newest_message_of_each_key(
    spark: SparkSession, producing: Producing, topic: str, source: Source, tmp_path: Path
) -> None:
    producing.create(topic, 2)
    for number in range(12):
        producing.send(topic, b"%d" % number, number % 2, KEYS=f"k{number % 4}")
    producing.send(topic, b"", 0, KEYS="k0")
    base = ["spark", "export", str(tmp_path), "--namesrv", source()["nameServer"], "--topic", topic]

    done = CliRunner().invoke(
        main, [*base, "--format", "delta", "--mode", "upsert", "--key", "keys", "--batch-rows", "5", "--skip-lost"]
    )

    assert done.exit_code == 0, done.output
    assert "skipped:" not in done.output
    assert bodies_of(tmp_path, "delta", topic) == {"k1": b"9", "k2": b"10", "k3": b"11"}
    assert sum(row["messages"] for row in parquet(tmp_path / "topics")) == 13


def retention_by_request() -> tuple[str, ...]:
    """Settings with which messages go as soon as an operator says so, and never by themselves."""
    another_hour = (datetime.now().hour + 12) % 24
    return (
        "--set=plugins.retention.max_age=0s", f"--set=plugins.retention.delete_when={another_hour:02d}",
        "--set=plugins.retention.disk_delete_at=100", "--set=plugins.retention.force=false",
    )  # fmt: skip


class DeletingAfterTheFirstBatch(ExportProgress):
    """Has the broker delete all old files while the export runs."""

    def __init__(self, producing: Producing) -> None:
        self.printed = StringIO()
        super().__init__(Console(file=self.printed, width=200))
        self._producing = producing

    def batch(self, one: BatchDone) -> None:
        if not self.rows:
            answer = self._producing.wire.ask(RequestCode.DELETE_EXPIRED_COMMITLOG)
            assert answer.code == ResponseCode.SUCCESS, answer
        super().batch(one)


def test_retention_under_a_running_export_is_told(spark: SparkSession, tmp_path: Path) -> None:
    out = tmp_path / "out"
    settings = (WITH_PLUGIN, *SMALL_SEGMENTS, *retention_by_request())
    with broker_process(tmp_path / "store", *settings) as process, Producing(process.broker) as producing:
        what = SparkExport(out=str(out), name_server=process.namesrv, topics=("orders",), batch_rows=150, tables=False)
        producing.send_many("orders", 400, size=500)
        with pytest.raises(ExportFailed, match=r"offsets \d+ to \d+ of orders@broker-a:\d are lost: .*deleted"):
            run(what, DeletingAfterTheFirstBatch(producing))
        stopped = parquet(out / "messages")

        producing.send_many("orders", 400, size=500)
        going_on = DeletingAfterTheFirstBatch(producing)
        run(attrs.evolve(what, fail_on_data_loss=False), going_on)

    rows = parquet(out / "messages")
    assert 0 < len(stopped) < 400
    assert len({(row["queueId"], row["queueOffset"]) for row in rows}) == len(rows)
    printed = going_on.printed.getvalue()
    for queue in (0, 1):
        told = re.findall(rf"skipped: (\d+) messages of orders, queue {queue} were deleted", printed)
        assert sum(map(int, told)) == 400 - sum(row["queueId"] == queue for row in rows)
    assert going_on.lost == 800 - len(rows) > 0
    assert f"{going_on.lost} were deleted before they were read" in printed


def test_a_second_export_to_the_same_folder_is_refused(source: Source, tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sys; sys.stdin.read()", "spark", "export"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as other:
        (tmp_path / "_export.lock").write_text(json.dumps([other.pid]))
        with pytest.raises(ExportRuns, match=str(other.pid)):
            export(tmp_path, source, "orders")
        other.communicate()


def test_a_failure_is_told_with_its_reason(spark: SparkSession, source: Source, tmp_path: Path) -> None:
    arguments = ["spark", "export", str(tmp_path), "--namesrv", source()["nameServer"], "--topic", "nobody"]

    failed = CliRunner().invoke(main, arguments)

    assert failed.exit_code == 2
    assert "topic 'nobody' does not exist" in failed.output + failed.stderr


def test_the_reason_is_found_among_stack_traces() -> None:
    text = 'Job aborted\n  File "x.py"\nverniermq.contrib.arrow.errors.DataLost: offsets 0 to 5 are lost\n\tat x'

    assert reason_of(text) == "offsets 0 to 5 are lost"
    assert reason_of(
        "Return Message: Traceback\n at x\nCaused by: a.B: in c\n at y\nCaused by: a.B$C: it is full\n at z"
    ) == ("it is full")
    assert reason_of("\n something else\n at x") == "something else"
    assert reason_of("") == "Spark gave no reason"


def test_lag_is_what_a_batch_did_not_reach() -> None:
    latest = {"orders": {"a": {"0": 10, "1": 7}}}
    end = {"orders": {"a": {"0": 4}}}

    assert lag_of({"latestOffset": latest, "endOffset": json.dumps(end)}) == 13
    assert lag_of({"latestOffset": None, "endOffset": end}) == 0


def test_the_first_batch_begins_at_the_same_place_however_often_it_is_tried(
    producing: Producing, topic: str, source: Source, tmp_path: Path
) -> None:
    producing.send_many(topic, 4, queues=1)
    what = SparkExport(out=str(tmp_path), name_server=source()["nameServer"], topics=(topic,), starting="latest")

    first = from_the_first(what)
    (tmp_path / "_checkpoint" / "offsets" / "0").write_text(f'v1\n{{}}\n{{"{topic}": {{"broker-a": {{"0": 5}}}}}}')
    producing.send(topic, b"fifth")
    after_a_crash = from_the_first(what)
    (tmp_path / "_checkpoint" / "commits" / "0").write_text("v1\n{}")

    assert json.loads(first.starting) == json.loads(after_a_crash.starting) == {topic: {"broker-a": {"0": 4}}}
    assert from_the_first(what).starting == "latest"


def test_a_batch_becomes_as_many_files_as_fill_the_target() -> None:
    of = FileCount.for_target

    assert of(None, 100.0, 1000, 8) == of(1000, 0.0, 1000, 8) == FileCount(None, 0)
    assert of(10_000, 100.0, 50, 8) == FileCount(1, 100)
    assert of(10_000, 100.0, 350, 8) == FileCount(4, 100)
    assert of(10_000, 100.0, 350_000, 8) == FileCount(8, 100)
    assert of(10, 100.0, 3, 8) == FileCount(8, 1)
