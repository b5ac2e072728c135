"""Reading spans over the network and from files, without Spark: all of it, once, whatever happens meanwhile."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.arrow.conftest import WITH_PLUGIN, Source
from tests.arrow.producing import Producing
from verniermq.contrib.arrow.cluster import Bounds, Cluster
from verniermq.contrib.arrow.errors import BrokerGone, DataLost, NoSuchTopic, OffsetOutOfRange
from verniermq.contrib.arrow.fetch import PluginNeeded
from verniermq.contrib.arrow.offsets import Span
from verniermq.contrib.arrow.options import ReadOptions
from verniermq.contrib.arrow.plan import Plan, place_of, reader_of
from verniermq.kernel import MessageQueue, RequestCode
from verniermq.testing import BrokerProcess, broker_process

SMALL_SEGMENTS = ("--set=store.segment_size=64KiB", "--set=store.max_message_size=32KiB")


def read_all(options: ReadOptions, spans: list[Span], column: str = "body") -> list[Any]:
    reader = reader_of(options)
    try:
        return [value for span in spans for one in reader.batches(span, (column,)) for value in one[0].to_pylist()]
    finally:
        reader.close()


def offsets_of(topic: str, offset: int) -> str:
    return json.dumps({topic: {"broker-a": {"0": offset}}})


@contextmanager
def planned(options: ReadOptions) -> Iterator[Plan]:
    place = place_of(options)
    try:
        yield Plan(options, place)
    finally:
        place.close()


def spans_of(options: ReadOptions) -> list[Span]:
    with planned(options) as plan:
        return plan.batch()


def bounds_of(options: ReadOptions, queue: MessageQueue) -> Bounds:
    with planned(options) as plan:
        return plan.place.bounds([queue])[queue]


def read(given: dict[str, str], column: str = "body") -> list[Any]:
    options = ReadOptions.parse(given, streaming=False)
    return read_all(options, spans_of(options), column)


@pytest.mark.parametrize("reader", ["range", "pull"])
def test_every_message_of_a_topic_comes_once(producing: Producing, topic: str, source: Source, reader: str) -> None:
    bodies = producing.send_many(topic, 300, size=1000)

    found = read(source(subscribe=topic, reader=reader, chunkSize="65536", minPartitions="5"))

    assert sorted(found) == sorted(bodies)


@pytest.mark.parametrize("reader", ["range", "pull"])
def test_offsets_bound_what_is_read(producing: Producing, topic: str, source: Source, reader: str) -> None:
    bodies = producing.send_many(topic, 20, queues=1)
    given = source(subscribe=topic, reader=reader)
    given |= {"startingOffsets": offsets_of(topic, 3), "endingOffsets": offsets_of(topic, 11)}

    assert read(given) == bodies[3:11]


@pytest.mark.parametrize("reader", ["range", "pull"])
def test_tags_are_compared_as_texts(producing: Producing, topic: str, source: Source, reader: str) -> None:
    producing.create(topic, 1)
    for tags in ("Aa", "BB", "other"):  # the first two have the same hash
        producing.send(topic, tags.encode(), TAGS=tags)

    assert read(source(subscribe=topic, subExpression="Aa || x", reader=reader)) == [b"Aa"]


def test_properties_can_be_tested_by_the_broker(producing: Producing, topic: str, source: Source) -> None:
    producing.create(topic, 1)
    for number in range(5):
        producing.send(topic, b"%d" % number, n=str(number))

    assert read(source(subscribe=topic, subExpression="n > 2", expressionType="SQL92")) == [b"3", b"4"]


def test_a_time_finds_its_offset(producing: Producing, topic: str, source: Source) -> None:
    bodies = producing.send_many(topic, 10, queues=1)
    stored = read(source(subscribe=topic), "storeTimestamp")
    moment = int(stored[5].timestamp() * 1000)

    found = read(source(subscribe=topic, startingTimestamp=str(moment)))

    assert found == bodies[stored.index(stored[5]) :]


def test_topics_that_do_not_exist_are_told_with_those_that_do(producing: Producing, source: Source) -> None:
    topic = "0_is_the_first_of_the_topics"  # those of the other tests are there too, and not all of them are listed
    producing.create(topic)

    with pytest.raises(NoSuchTopic, match=f"'nobody' does not exist.*{topic}"):
        read(source(subscribe=f"{topic},nobody"))
    with pytest.raises(NoSuchTopic, match="broker-a:9"):
        read(source(assign=json.dumps({topic: {"broker-a": [9]}})))


def test_offsets_out_of_range_are_refused_or_moved(producing: Producing, topic: str, source: Source) -> None:
    bodies = producing.send_many(topic, 4, queues=1)
    given = source(subscribe=topic, endingOffsets=offsets_of(topic, 99))

    with pytest.raises(OffsetOutOfRange, match=r"offset 99.*has 0 to 4"):
        read(given)
    assert read(given | {"failOnDataLoss": "false"}) == bodies


def test_a_broker_without_the_plugin_is_read_with_pulls(tmp_path: Path) -> None:
    with broker_process(tmp_path / "store") as process, Producing(process.broker) as producing:
        bodies = producing.send_many("orders", 100)
        given = {"subscribe": "orders", "nameServer": process.namesrv}

        assert sorted(read(given)) == sorted(bodies)
        with pytest.raises(PluginNeeded, match=r"broker\.toml"):
            read(given | {"reader": "range"})


def delete_oldest_messages(process: BrokerProcess) -> None:
    """What retention does: the files' time is over."""
    first = sorted((process.store / "commitlog").iterdir())[0]
    first.unlink()
    process.stop()
    process.start()


@pytest.mark.parametrize("reader", ["range", "pull"])
def test_deleted_messages_are_told_or_skipped_forward(tmp_path: Path, reader: str) -> None:
    with broker_process(tmp_path / "store", WITH_PLUGIN, *SMALL_SEGMENTS) as process:
        with Producing(process.broker) as producing:
            bodies = producing.send_many("orders", 300, queues=1, size=500)
        options = ReadOptions.parse(
            {"subscribe": "orders", "nameServer": process.namesrv, "reader": reader}, streaming=False
        )
        spans = spans_of(options)
        delete_oldest_messages(process)
        low = bounds_of(options, spans[0].queue).low

        assert low > 0
        with pytest.raises(DataLost, match=f"offsets 0 to {low} of orders@broker-a:0 are lost"):
            read_all(options, spans)
        given = {"subscribe": "orders", "nameServer": process.namesrv, "reader": reader, "failOnDataLoss": "false"}
        assert read_all(ReadOptions.parse(given, streaming=False), spans) == bodies[low:]


def test_a_broker_that_comes_back_is_read_on(tmp_path: Path) -> None:
    with broker_process(tmp_path / "store", WITH_PLUGIN) as process:
        with Producing(process.broker) as producing:
            bodies = producing.send_many("orders", 400, queues=1, size=1000)
        given = {"subscribe": "orders", "nameServer": process.namesrv, "chunkSize": "65536"}
        options = ReadOptions.parse(given, streaming=False)
        spans = spans_of(options)
        reader = reader_of(options)
        batches = reader.batches(spans[0], ("body",))
        found = next(batches)[0].to_pylist()

        process.kill()
        restart = threading.Timer(0.5, process.start)
        restart.start()
        found += [body for one in batches for body in one[0].to_pylist()]
        restart.join()
        reader.close()

    assert found == bodies


def test_a_broker_that_stays_away_is_told_with_what_happened(tmp_path: Path) -> None:
    with broker_process(tmp_path / "store", WITH_PLUGIN) as process:
        with Producing(process.broker) as producing:
            producing.send_many("orders", 10, queues=1)
        given = {"subscribe": "orders", "nameServer": process.namesrv, "retryTimeout": "300ms"}
        options = ReadOptions.parse(given, streaming=False)
        spans = spans_of(options)
        process.kill()

        with pytest.raises(BrokerGone, match=r"offsets 0 to 10, stopped at 0: tried for 0.3 s"):
            read_all(options, spans)
        with pytest.raises(BrokerGone, match="find topic 'orders'"):
            spans_of(options)
        process.start()


def test_files_on_a_shared_disk_are_read_without_the_broker(tmp_path: Path) -> None:
    settings = ("--set=store.queue_entries=100", *SMALL_SEGMENTS)
    with broker_process(tmp_path / "store", *settings) as process, Producing(process.broker) as producing:
        bodies = producing.send_many("orders", 300, size=500, TAGS="paid")
    given = {"subscribe": "orders", "path": str(tmp_path / "store")}

    stored = sorted(read(given, "storeTimestamp"))
    later = given | {"startingTimestamp": str(int(stored[200].timestamp() * 1000))}

    assert sorted(read(given)) == sorted(bodies)
    assert read(given | {"subExpression": "other"}) == []
    assert sorted(read(later, "storeTimestamp")) == stored[stored.index(stored[200]) :]
    with pytest.raises(NoSuchTopic, match="'nobody'"):
        read(given | {"subscribe": "nobody"})


def test_files_that_were_deleted_are_told(tmp_path: Path) -> None:
    with broker_process(tmp_path / "store", *SMALL_SEGMENTS) as process, Producing(process.broker) as producing:
        bodies = producing.send_many("orders", 300, queues=1, size=500)
    options = ReadOptions.parse({"subscribe": "orders", "path": str(tmp_path / "store")}, streaming=False)
    spans = spans_of(options)
    sorted((tmp_path / "store" / "commitlog").iterdir())[0].unlink()

    with pytest.raises(DataLost, match="offsets 0 to"):
        read_all(options, spans)
    low = bounds_of(options, spans[0].queue).low
    given = {"subscribe": "orders", "path": str(tmp_path / "store"), "failOnDataLoss": "false"}
    assert read_all(ReadOptions.parse(given, streaming=False), spans) == bodies[low:]


def test_a_micro_batch_reads_new_queues_and_tells_what_is_lost(
    producing: Producing, topic: str, source: Source
) -> None:
    producing.send_many(topic, 6, queues=2)
    options = ReadOptions.parse(source(subscribe=topic), streaming=False)
    first, second = (MessageQueue(topic, "broker-a", number) for number in (0, 1))

    with planned(options) as plan:
        spans = plan.between({first: 1}, {first: 3, second: 3})
        nothing = plan.between({first: 3, second: 3}, {first: 3, second: 3})

    assert spans == [Span(first, 1, 3), Span(second, 0, 3)]
    assert nothing == []


def test_a_group_can_be_told_how_far_it_is(producing: Producing, topic: str, source: Source) -> None:
    producing.send_many(topic, 4, queues=1)
    queue = MessageQueue(topic, "broker-a", 0)
    cluster = Cluster([source()["nameServer"]])

    cluster.commit("readers", {queue: 3})

    assert cluster.committed()["readers"][topic] == {"broker-a": {"0": 3}}
    fields = {"consumerGroup": "readers", "topic": topic, "queueId": "0"}
    assert producing.wire.ask(RequestCode.QUERY_CONSUMER_OFFSET, fields).ext["offset"] == "3"
    cluster.close()


def test_topics_that_have_the_name_of_a_cluster_or_a_broker_are_not_listed(
    producing: Producing, topic: str, source: Source
) -> None:
    producing.send_many(topic, 1, queues=1)
    cluster = Cluster([source()["nameServer"]])

    listed = cluster.topics()

    assert topic in listed
    assert not {"DefaultCluster", "broker-a"} & set(listed)
    cluster.close()
