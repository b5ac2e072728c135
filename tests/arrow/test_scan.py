"""A topic as a table that DuckDB, Polars and pyarrow read, as the manual shows it."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import duckdb
import polars
import pyarrow as pa
import pytest
from click.testing import CliRunner

from tests.arrow.conftest import Source
from tests.arrow.producing import Producing
from verniermq.cli import main
from verniermq.contrib.arrow import scan
from verniermq.contrib.arrow.errors import BadOption, NoArrow, NoSuchTopic, UnknownTableOption
from verniermq.contrib.arrow.schema import COLUMNS
from verniermq.testing import broker_process

MANUAL = Path(__file__).parents[2] / "docs" / "arrow.md"


def test_a_topic_is_a_reader_of_all_columns(producing: Producing, topic: str, source: Source) -> None:
    bodies = producing.send_many(topic, 25, TAGS="paid")

    with scan(topic, source()["nameServer"]) as reader:
        assert isinstance(reader, pa.RecordBatchReader)
        assert tuple(reader.schema.names) == COLUMNS
        table = reader.read_all()

    assert sorted(table["body"].to_pylist()) == sorted(bodies)
    queues = list(zip(table["queueId"].to_pylist(), table["queueOffset"].to_pylist(), strict=True))
    assert queues == sorted(queues)


@pytest.mark.parametrize("library", ["duckdb", "polars"])
def test_the_manual_s_query_runs(
    producing: Producing, topic: str, source: Source, library: str, capsys: pytest.CaptureFixture[str]
) -> None:
    producing.send_many(topic, 6, TAGS="paid")
    producing.send(topic, b"back", TAGS="refunded")
    blocks = re.findall(r"```python\n(.*?)```", MANUAL.read_text(), re.DOTALL)
    program = next(block for block in blocks if f"import {library}" in block)
    assert 'scan("orders")' in program
    here = program.replace('scan("orders")', f'scan("{topic}", "{source()["nameServer"]}")')

    exec(compile(here, str(MANUAL), "exec"), {})

    assert re.findall(r"\b(paid|refunded)\b\D+(\d+)", capsys.readouterr().out) == [("paid", "6"), ("refunded", "1")]


def test_a_query_reads_while_it_runs_and_may_stop_early(producing: Producing, topic: str, source: Source) -> None:
    producing.send_many(topic, 300, queues=1, size=1000)
    small = scan(topic, columns="queueOffset,body", **source(chunkSize="65536"))

    first = small.read_next_batch()
    small.close()

    assert 0 < first.num_rows < 300


def test_what_is_read_can_be_narrowed(producing: Producing, topic: str, source: Source) -> None:
    producing.send_many(topic, 8, queues=1, TAGS="paid")
    producing.send(topic, b"back", TAGS="refunded")

    paid = scan(topic, columns="keys,queueOffset", subExpression="paid", **source(startingOffsets="earliest"))
    found = duckdb.from_arrow(paid).aggregate("count(*), max(queueOffset)").fetchall()
    frame = polars.from_arrow(scan(topic, columns="body", subExpression="refunded", **source()).read_all())

    assert found == [(8, 7)]
    assert isinstance(frame, polars.DataFrame)
    assert frame["body"].to_list() == [b"back"]


def test_mistakes_are_told_before_anything_is_read(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NoSuchTopic, match="'nowhere' does not exist"):
        scan("nowhere", **source())
    with pytest.raises(UnknownTableOption, match="did you mean 'columns'"):
        scan("orders", column="body", **source())
    with pytest.raises(BadOption, match="one of subscribe, subscribePattern or assign"):
        scan(**source())
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(NoArrow, match=r"pip install 'verniermq\[arrow\]'"):
        scan("orders", **source())


def test_the_way_from_a_broker_to_iceberg_and_duckdb_is_as_the_manual_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = MANUAL.read_text()
    commands, program = re.findall(r"```(?:python)?\n(.*?)```", text[text.index("<!-- walk -->") :], re.DOTALL)[:2]

    with broker_process(tmp_path / "store") as process:
        monkeypatch.setenv("VERNIERMQ_NAMESRV", process.namesrv)
        for line in commands.replace("/data/mq", str(tmp_path / "mq")).splitlines():
            done = CliRunner().invoke(main, shlex.split(line)[1:])
            assert done.exit_code == 0, done.output
    exec(compile(program.replace("/data/mq", str(tmp_path / "mq")), str(MANUAL), "exec"), {})

    rows = re.findall(r"(refund|sale) *│ *(\d+) │ *(\d+)", capsys.readouterr().out)
    assert rows == [("refund", "1", "5"), ("sale", "2", "50")]
