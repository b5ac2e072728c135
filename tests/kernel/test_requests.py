"""Requests as classes: what is written is read again, from both forms of header, and errors name the field."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verniermq.kernel import BadField, Command, FrameDecoder, MessageQueue, MissingField, RequestCode, requests
from verniermq.kernel.requests import Request, SendMessage, boolean, integer, request, text
from verniermq.protocol.lock import LockBatchMQ

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
numbers = st.integers(-(2**63), 2**63 - 1)
LONG = {
    "producerGroup": "p", "topic": "own", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "queueId": "1",
    "sysFlag": "0", "bornTimestamp": "5", "flag": "0", "properties": "", "reconsumeTimes": "0",
}  # fmt: skip


@request
class Sample(Request):
    code = RequestCode.GET_MAX_OFFSET
    topic: str = text("topic")
    queue_id: int = integer("queueId", at_least=0, at_most=7)
    note: str | None = text("note", default=None)
    is_small: bool = boolean("small", default=True)


def over_the_wire(command: Command, *, binary: bool) -> Command:
    command.binary = binary
    (received,) = FrameDecoder().feed(command.encode())
    return received


@given(
    group=texts, topic=texts, queue_id=numbers, born=numbers, flag=numbers, sys_flag=numbers, properties=texts,
    times=numbers, most=st.none() | st.integers(0, 1000), binary=st.booleans(),
    code=st.sampled_from(
        [
            RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE,
            RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2,
        ]
    ),
)  # fmt: skip
def test_a_send_is_read_as_it_was_written_in_both_spellings_and_both_forms_of_header(
    group: str, topic: str, queue_id: int, born: int, flag: int, sys_flag: int, properties: str, times: int,
    most: int | None, binary: bool, code: RequestCode,
) -> None:  # fmt: skip
    send = SendMessage(
        group=group, topic=topic, queue_id=queue_id, born_timestamp=born, default_topic="TBW102", sys_flag=sys_flag,
        flag=flag, properties=properties, reconsume_times=times, max_reconsume_times=most,
    )  # fmt: skip
    received = over_the_wire(send.command(code), binary=binary)
    read = SendMessage.of(received)

    assert (read.group, read.topic, read.queue_id, read.properties) == (group, topic, queue_id, properties)
    assert (read.born_timestamp, read.flag, read.sys_flag) == (born, flag, sys_flag)
    assert (read.reconsume_times, read.max_reconsume_times, read.default_queues) == (times, most, 4)
    assert SendMessage.of(received) is read


@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE], ids=lambda code: code.name)
@pytest.mark.parametrize("first", [True, False], ids=["before", "behind"])
def test_a_send_has_one_spelling_and_fields_in_the_other_one_count_for_nothing(code: int, first: bool) -> None:
    other = {"b": "others", "e": "3", "a": "them", "i": "X\x01y\x02", "l": "9"}
    read = SendMessage.of(Command.request(code, {**other, **LONG} if first else {**LONG, **other}))

    assert (read.topic, read.queue_id, read.group, read.properties) == ("own", 1, "p", "")
    assert read.max_reconsume_times is None
    short = Command.request(RequestCode.SEND_MESSAGE_V2, {**SendMessage.of(Command.request(10, LONG)).ext(), **LONG})
    short.ext["topic"] = "others"
    assert SendMessage.of(short).topic == "own"


@given(topic=texts, queue_id=st.integers(0, 7), note=st.none() | texts, is_small=st.booleans(), binary=st.booleans())
def test_a_request_is_read_as_it_was_written(
    topic: str, queue_id: int, note: str | None, is_small: bool, binary: bool
) -> None:
    sample = Sample(topic=topic, queue_id=queue_id, note=note, is_small=is_small)
    read = Sample.of(over_the_wire(sample.command(), binary=binary))

    assert (read.topic, read.queue_id, read.note, read.is_small) == (topic, queue_id, note, is_small)


def test_errors_name_the_field_as_the_wire_has_it_and_its_value() -> None:
    with pytest.raises(MissingField, match=r"GET_MAX_OFFSET \(30\) lacks the field 'topic'"):
        Sample.of(Command.request(30, {"queueId": "1"}))
    with pytest.raises(BadField, match="field 'queueId' is 8, expected 0 to 7"):
        Sample.of(Command.request(30, {"topic": "t", "queueId": "8"}))
    with pytest.raises(BadField, match="field 'queueId' is 'x', expected a decimal number of at most 64 bits"):
        Sample.of(Command.request(30, {"topic": "t", "queueId": "x"}))
    with pytest.raises(BadField, match="field 'bornTimestamp' is 'x'"):
        SendMessage.of(Command.request(10, {**LONG, "bornTimestamp": "x"}))
    with pytest.raises(MissingField, match="lacks the field 'b'"):
        SendMessage.of(Command.request(310, {}))


def test_a_request_is_made_with_all_that_it_needs_and_nothing_else() -> None:
    make: Any = Sample
    with pytest.raises(TypeError, match="Sample lacks queue_id"):
        make(topic="t")
    with pytest.raises(TypeError, match="Sample has no queue"):
        make(topic="t", queue_id=1, queue=1)
    assert repr(make(topic="t", queue_id=1)) == "Sample(topic='t', queue_id=1, note=None, is_small=True)"
    assert not hasattr(make(topic="t", queue_id=1), "__dict__")


def test_a_command_cannot_be_read_as_two_kinds_of_request() -> None:
    command = Sample(topic="t", queue_id=1).command()
    Sample.of(command)
    with pytest.raises(TypeError, match="was decoded as Sample, and is asked for as GetMinOffset"):
        requests.GetMinOffset.of(command)


@given(
    pull=st.builds(
        requests.PullMessage, group=texts, topic=texts, queue_id=numbers, offset=numbers, max_messages=numbers,
        sys_flag=st.integers(0, 31), commit_offset=numbers, wait_ms=numbers, expression=st.none() | texts,
        expression_type=st.sampled_from(["TAG", "SQL92"]), sub_version=numbers, broker_name=st.none() | texts,
    )
)  # fmt: skip
def test_a_pull_is_read_as_it_was_written(pull: requests.PullMessage) -> None:
    read = requests.PullMessage.of(pull.command())

    for name in ("group", "topic", "queue_id", "offset", "max_messages", "sys_flag", "wait_ms", "expression"):
        assert getattr(read, name) == getattr(pull, name), name
    flags = pull.sys_flag
    assert read.commit_offset == (pull.commit_offset if flags & pull.COMMIT_OFFSET else -1)
    assert read.sub_version == (0 if flags & pull.SUBSCRIPTION_INCLUDED else pull.sub_version)


def test_requests_with_a_body_are_read_as_they_were_written() -> None:
    lock = LockBatchMQ.of_queues("g", "c", [MessageQueue("t", "b", 1)]).command()
    assert LockBatchMQ.of(lock).queues == [{"topic": "t", "brokerName": "b", "queueId": 1}]
    beat = requests.Heartbeat(client_id="c", producer_groups=["p"], consumers=[{"groupName": "g"}]).command()
    read = requests.Heartbeat.of(beat)
    assert (read.client_id, read.producer_groups, read.consumers) == ("c", ["p"], [{"groupName": "g"}])
    assert not read.without_subscriptions
