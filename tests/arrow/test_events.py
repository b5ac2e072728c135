"""Dispatch events: where messages are, how large and when, without their bodies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.arrow.conftest import WITH_PLUGIN, Source
from tests.arrow.producing import Producing
from tests.arrow.records import entry, records
from tests.arrow.test_fetch import spans_of
from verniermq.contrib.arrow import scan
from verniermq.contrib.arrow.decode import decode_columns, decode_heads
from verniermq.contrib.arrow.errors import BadOption
from verniermq.contrib.arrow.fetch import Fetcher
from verniermq.contrib.arrow.options import ReadOptions
from verniermq.contrib.arrow.requests import ENTRY, HEAD_BYTES
from verniermq.contrib.arrow.schema import EVENT_COLUMNS
from verniermq.kernel import CorruptRecord
from verniermq.testing import broker_process


@pytest.mark.parametrize("reader", ["range", "pull"])
def test_events_are_the_columns_of_messages_without_their_contents(
    producing: Producing, topic: str, source: Source, reader: str
) -> None:
    producing.send_many(topic, 300, TAGS="paid")

    events = scan(topic, **source(events="true", reader=reader)).read_all()
    messages = scan(topic, **source(reader="pull")).read_all()

    assert events.column_names == list(EVENT_COLUMNS)
    assert events.num_rows == 300
    assert events.equals(messages.select(list(EVENT_COLUMNS)))


def test_bodies_are_neither_read_nor_sent(producing: Producing, topic: str, source: Source) -> None:
    producing.send_many(topic, 20, queues=1, size=100_000)
    options = ReadOptions.parse(source(subscribe=topic, events="true"), streaming=False)
    fetcher = Fetcher(options)

    (chunk,) = fetcher.chunks(spans_of(options)[0], heads=True)
    fetcher.close()

    assert len(chunk.body) == 20 * (HEAD_BYTES + ENTRY.size)


def test_events_come_from_a_shared_disk_too(tmp_path: Path) -> None:
    small = ("--set=store.segment_size=64KiB", "--set=store.max_message_size=32KiB")
    with broker_process(tmp_path / "store", WITH_PLUGIN, *small) as process, Producing(process.broker) as producing:
        producing.send_many("orders", 300, size=500)
        asked = scan("orders", process.namesrv, events="true").read_all()

    read = scan("orders", path=str(tmp_path / "store"), events="true").read_all()

    assert read.num_rows == 300
    assert read.sort_by("commitLogOffset").equals(asked.sort_by("commitLogOffset"))


def test_all_that_flows_is_there_if_no_topic_is_named(tmp_path: Path) -> None:
    with broker_process(tmp_path / "store", WITH_PLUGIN) as process, Producing(process.broker) as producing:
        producing.send_many("orders", 3)
        producing.send("orders", b"later", DELAY="18")
        producing.create("%DLQ%billing")
        producing.send("%DLQ%billing", b"failed", times=16)

        events = scan("", process.namesrv, events="true").read_all()

    topics = events["topic"].value_counts().to_pylist()
    assert sorted((pair["values"], pair["counts"]) for pair in topics) == [
        ("%DLQ%billing", 1), ("SCHEDULE_TOPIC_XXXX", 1), ("orders", 3)
    ]  # fmt: skip


@given(st.lists(records(), min_size=1, max_size=20))
def test_heads_tell_what_whole_records_do(made: list[bytes]) -> None:
    entries = b"".join([entry(record, number) for number, record in enumerate(made)])
    whole = b"".join(made)
    heads = b"".join([record[:HEAD_BYTES] for record in made])
    names = tuple(name for name in EVENT_COLUMNS if name != "topic")

    expected = decode_columns(whole + entries, names, record_bytes=len(whole))
    found = decode_heads(heads + entries, names, "any", len(heads))

    assert found.equals(expected)


def test_heads_of_other_records_are_refused() -> None:
    nothing = np.zeros(1, dtype=">i4").tobytes()
    entries = ENTRY.pack(0, 200, 0)

    with pytest.raises(CorruptRecord, match="112 bytes of heads, and there are 4"):
        decode_heads(nothing + entries, ("size",), "any", 4)
    with pytest.raises(CorruptRecord, match="of no record"):
        decode_heads(bytes(HEAD_BYTES) + entries, ("size",), "any", HEAD_BYTES)


def test_events_have_neither_bodies_nor_values() -> None:
    with pytest.raises(BadOption, match="'body' is none"):
        ReadOptions.parse({"events": "true", "columns": "size,body"}, streaming=False)
    with pytest.raises(BadOption, match="nothing with events"):
        ReadOptions.parse({"events": "true", "valueFormat": "json", "valueSchema": "a int"}, streaming=False)
    assert ReadOptions.parse({"events": "true"}, streaming=True).topics.everything


def test_a_reader_of_few_columns_reads_heads_alone(producing: Producing, topic: str, source: Source) -> None:
    producing.send_many(topic, 5, TAGS="paid")

    sizes = scan(topic, **source(columns="size,queueOffset")).read_all()
    tagged = scan(topic, **source(columns="size", subExpression="paid")).read_all()

    assert sizes.schema.names == ["size", "queueOffset"]
    assert pa.types.is_int32(sizes.schema.field("size").type)
    assert tagged.num_rows == sizes.num_rows == 5
