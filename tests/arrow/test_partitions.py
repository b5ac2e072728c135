"""``--partition-by``: the folders of an export, and the partitions of its tables."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.dataset
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from tests.arrow.conftest import Source
from tests.arrow.producing import Producing
from tests.arrow.test_export import export
from verniermq.cli import main
from verniermq.contrib.arrow import compaction
from verniermq.contrib.arrow.errors import BadOption, PartitionsChanged, TooManyFolders
from verniermq.contrib.arrow.partitions import Partition, Partitions
from verniermq.contrib.arrow.tables.iceberg import open_catalog
from verniermq.contrib.arrow.typedtopics import parse_typed

REGIONS = ["north", "south", "", "a/b=c %"]


def typed_orders(producing: Producing, topic: str, folder: Path) -> str:
    """Orders of each region, one without and one that is no order; returns what ``--typed`` takes."""
    for region in REGIONS:
        producing.send(topic, b'{"id": 1, "at": {"region": "%s"}}' % region.encode(), TAGS="sale")
    producing.send(topic, b'{"id": 2}', TAGS="refund")
    producing.send(topic, b"no order")
    schema = folder / "orders.ddl"
    schema.write_text("id long, at struct<region: string>, amount decimal(9,2)")
    return f"{topic}={schema}"


@pytest.mark.parametrize("form", ["parquet", "iceberg", "delta"])
def test_columns_and_members_of_values_are_folders_and_partitions(
    producing: Producing, topic: str, source: Source, tmp_path: Path, form: str
) -> None:
    typed = parse_typed([typed_orders(producing, topic, tmp_path)], "table")
    out, by = tmp_path / "out", ("value:at.region", "tags", "hour")

    export(out, source, topic, format=form, typed=typed, partition_by=by)
    producing.send(topic, b'{"id": 3, "at": {"region": "north"}}', TAGS="sale")
    export(out, source, topic, format=form, typed=typed, partition_by=by)

    none = "__HIVE_DEFAULT_PARTITION__"
    folders = {
        tuple(part.partition("=")[2] for part in path.relative_to(out / "messages").parts[:3])
        for path in (out / "messages").glob("topic=*/by_value_at_region=*/by_tags=*/hour=*/batch=*/*.parquet")
    }
    names = ["north", "south", "__EMPTY__", "a%2Fb%3Dc %25"]
    assert folders == {
        *((topic, name, "sale") for name in names), (topic, none, "refund"), (f"{topic}__errors", none, none),
    }  # fmt: skip
    if form == "parquet":
        rows = pyarrow.dataset.dataset(out / "messages", partitioning="hive").to_table()
        rows = rows.filter(pa.compute.equal(rows["topic"], topic))
    elif form == "iceberg":
        table = open_catalog(out).load_table(("mq", topic))
        assert [field.name for field in table.spec().fields] == ["by_value_at_region", "by_tags", "storeHour"]
        assert len(list(table.scan(row_filter="value_at_region = 'north'").plan_files())) == 2
        assert len(list(table.scan(row_filter="value_at_region is null").plan_files())) == 1
        rows = table.scan().to_arrow()
    else:
        delta = DeltaTable(out / "messages" / f"topic={topic}")
        assert delta.metadata().partition_columns == ["by_value_at_region", "by_tags", "hour"]
        assert len(delta.file_uris(file_pruning_predicate=[("by_value_at_region", "=", "north")])) == 2
        rows = delta.to_pyarrow_table()
    found = duckdb.sql("select value.id, value.at.region, tags from rows order by all").fetchall()
    regions = [(1, region, "sale") for region in sorted(REGIONS)]
    assert found == [*regions, (2, None, "refund"), (3, "north", "sale")]


@pytest.mark.parametrize("form", ["iceberg", "delta"])
def test_files_are_put_together_within_their_partition(
    producing: Producing, topic: str, source: Source, tmp_path: Path, form: str
) -> None:
    for number in range(4):
        producing.send(topic, b"%d" % number, TAGS=f"tag {number % 2}")
        export(tmp_path, source, topic, format=form, partition_by=("tags",))

    (done,) = compaction.compact(tmp_path, [topic], 1 << 20, None, "", "mq")

    assert (done.before, done.after) == (4, 2)
    if form == "iceberg":
        table = open_catalog(tmp_path).load_table(("mq", topic))
        assert len(list(table.scan(row_filter="tags = 'tag 1'").plan_files())) == 1
        assert all("/by_tags=" in task.file.file_path for task in table.scan().plan_files())
        rows = table.scan().to_arrow()
    else:
        rows = DeltaTable(tmp_path / "messages" / f"topic={topic}").to_pyarrow_table()
    assert sorted(zip(rows["tags"].to_pylist(), rows["body"].to_pylist(), strict=True)) == [
        ("tag 0", b"0"), ("tag 0", b"2"), ("tag 1", b"1"), ("tag 1", b"3"),
    ]  # fmt: skip


def test_an_export_stays_by_the_columns_it_began_with(
    producing: Producing, topic: str, source: Source, tmp_path: Path
) -> None:
    producing.send_many(topic, 4)
    export(tmp_path / "tags", source, topic, partition_by=("tags",))
    export(tmp_path / "day", source, topic)

    with pytest.raises(PartitionsChanged, match=r"has an export by tags; to export by dt, use another folder"):
        export(tmp_path / "tags", source, topic)
    with pytest.raises(PartitionsChanged, match=r"has an export by dt; to export by queueId, dt"):
        export(tmp_path / "day", source, topic, partition_by=("queueId", "dt"))
    assert export(tmp_path / "tags", source, topic, partition_by=("tags",)) == 0


def test_a_column_with_too_many_values_is_told_and_nothing_is_there(
    producing: Producing, topic: str, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("verniermq.contrib.arrow.layout.MOST_FOLDERS", 3)
    producing.send_many(topic, 6)

    with pytest.raises(TooManyFolders, match=r"has more than 3 folders of .* by queueOffset, queueId"):
        export(tmp_path, source, topic, partition_by=("queueOffset", "queueId"))
    assert not any(path.is_file() for path in (tmp_path / "messages").rglob("*"))


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (["body"], "dt, hour, value:MEMBER or one of queueId"),
        (["storeTimestamp"], "dt, hour"),
        (["topic"], "dt, hour"),
        (["dt", "hour"], "an hour says its day as well"),
        (["tags", "tags"], "each column once"),
        (["value:none"], "a member of a topic's typed values"),
        (["value:amount"], "a text, a whole number, a date or a boolean, and this is decimal128"),
        (["value:at"], "and this is struct"),
    ],
)
def test_columns_that_cannot_be_folders_are_refused(tmp_path: Path, columns: list[str], expected: str) -> None:
    schema = tmp_path / "orders.ddl"
    schema.write_text("id long, at struct<region: string>, amount decimal(9,2)")

    with pytest.raises(BadOption, match=expected):
        Partitions.parse(columns, parse_typed([f"orders={schema}"], "table"))


def test_the_command_has_one_line_for_what_does_not_fit(
    producing: Producing, topic: str, source: Source, tmp_path: Path
) -> None:
    producing.send_many(topic, 2)
    command = ["export", str(tmp_path), "--namesrv", source()["nameServer"], "--topic", topic]

    done = CliRunner().invoke(main, [*command, "--partition-by", "tags", "--partition-by", "dt"])
    wrong = CliRunner().invoke(main, [*command, "--partition-by", "size,tags"])

    assert done.exit_code == 0, done.output
    assert len(list(tmp_path.glob("messages/topic=*/by_tags=*/dt=*/batch=*/*.parquet"))) >= 1
    assert "option 'partition-by' is 'size,tags'" in f"{wrong.output}{wrong.exception}"


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([None, "", "a", "b/c"])), max_size=30))
def test_every_row_is_in_one_folder_in_its_order(given_rows: list[tuple[int, str | None]]) -> None:
    by = Partitions((Partition("queueId"), Partition("tags")))
    numbers = pa.array(range(len(given_rows)), pa.int64())
    columns = [pa.array([row[at] for row in given_rows], kind) for at, kind in ((0, pa.int32()), (1, pa.string()))]
    rows = pa.record_batch([*columns, numbers], ["queueId", "tags", "queueOffset"])

    found = dict(by.split(rows))

    for texts, some in found.items():
        assert by.texts_of(Path("topic=a") / by.folder(texts)) == texts
        assert some["queueOffset"].to_pylist() == sorted(some["queueOffset"].to_pylist())
        same = {
            (str(queue), "__EMPTY__" if tag == "" else tag)
            for queue, tag in zip(*map(pa.Array.to_pylist, some.columns[:2]), strict=True)
        }
        assert same == {texts}
    assert sum(some.num_rows for some in found.values()) == len(given_rows)
