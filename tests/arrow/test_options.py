"""Options: what is taken, what is refused, and that the refusal says what to do."""

from __future__ import annotations

import pytest

from verniermq.contrib.arrow.errors import BadOption, UnknownTableOption
from verniermq.contrib.arrow.offsets import EARLIEST, LATEST
from verniermq.contrib.arrow.options import ReadOptions
from verniermq.contrib.arrow.schema import COLUMNS
from verniermq.contrib.spark.writeoptions import WriteOptions
from verniermq.kernel import MessageQueue


def parsed(streaming: bool = False, **given: str) -> ReadOptions:
    return ReadOptions.parse({"subscribe": "orders", **given}, streaming=streaming)


def test_defaults_read_everything_and_insist_on_it() -> None:
    options = parsed()

    assert options.topics.names == ("orders",)
    assert (options.starting, options.ending) == (EARLIEST, LATEST)
    assert options.fail_on_data_loss
    assert options.columns == COLUMNS
    assert options.name_servers == ("127.0.0.1:9876",)
    assert parsed(streaming=True).starting == LATEST


def test_the_case_of_names_does_not_matter() -> None:
    assert parsed(STARTINGOFFSETS="Latest").starting == LATEST


def test_several_name_servers_and_topics_can_be_named() -> None:
    options = ReadOptions.parse({"subscribe": "a, b,a", "nameServer": "one:9876;two:9876"}, streaming=False)

    assert options.topics.names == ("a", "b")
    assert options.name_servers == ("one:9876", "two:9876")


def test_offsets_and_queues_come_as_json() -> None:
    queue = MessageQueue("orders", "broker-a", 1)
    options = ReadOptions.parse(
        {
            "assign": '{"orders": {"broker-a": [1]}}',
            "startingOffsets": '{"orders": {"broker-a": {"1": 5}}}',
            "endingOffsets": '{"orders": {"broker-a": {"1": -1}}}',
        },
        streaming=False,
    )

    assert options.topics.queues == (queue,)
    assert options.starting == {queue: 5}
    assert options.ending == {queue: LATEST}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"failOnDataLoss": "yes"}, "failOnDataLoss.*'yes'.*true or false"),
        ({"minPartitions": "0"}, "minPartitions.*1 or more"),
        ({"maxOffsetsPerTrigger": "many"}, "maxOffsetsPerTrigger.*whole number"),
        ({"startingOffsets": "newest"}, "startingOffsets.*earliest, latest"),
        ({"startingOffsets": '{"orders": {"a": {"0": -5}}}'}, "-5 is no offset"),
        ({"columns": "topic,bodi"}, "'bodi' is none"),
        ({"reader": "fast"}, "auto or range or pull"),
        ({"nameServer": "somewhere"}, "host:port"),
        ({"retryTimeout": "soon"}, "30s"),
        ({"assign": "{}"}, "one of subscribe, subscribePattern or assign"),
        ({"subscribe": ""}, "given: none"),
        ({"subscribe": "", "subscribePattern": "("}, "regular expression"),
        ({"subscribe": "", "assign": '["orders"]'}, "JSON such as"),
    ],
)
def test_wrong_values_are_refused_with_what_was_expected(given: dict[str, str], expected: str) -> None:
    with pytest.raises(BadOption, match=expected):
        parsed(**given)


def test_unknown_options_are_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownTableOption, match="did you mean 'startingOffsets'"):
        parsed(startingOffset="earliest")
    with pytest.raises(UnknownTableOption, match="did you mean 'topic'"):
        WriteOptions.parse({"topics": "orders"})


def test_a_stream_has_no_end() -> None:
    with pytest.raises(BadOption, match="a stream has no end"):
        parsed(streaming=True, endingOffsets="latest")


def test_headers_and_columns_can_be_left_out() -> None:
    assert "properties" not in parsed(includeHeaders="false").columns
    assert parsed(columns="body, TOPIC").columns == ("body", "topic")


@pytest.mark.parametrize(
    ("pattern", "topic", "matches"),
    [
        ("ord.*", "orders", True),
        ("ord", "orders", False),
        (".*", "%DLQ%billing", False),
        ("%DLQ%.*", "%DLQ%billing", True),
        (".*", "SCHEDULE_TOPIC_XXXX", False),
        (".*", "RMQ_SYS_TRANS_HALF_TOPIC", False),
    ],
)
def test_patterns_leave_the_brokers_own_topics_alone(pattern: str, topic: str, matches: bool) -> None:
    options = ReadOptions.parse({"subscribePattern": pattern}, streaming=False)

    assert options.topics.matches(topic) is matches
