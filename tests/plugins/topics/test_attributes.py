"""Attributes of topics and groups, and what else of RocketMQ has no effect here: refused with the reason."""

from __future__ import annotations

import orjson
import pytest

from tests.plugins.peer import peer
from tests.plugins.topics.test_topics import put_topic
from verniermq.kernel import Attribute, RequestCode, ResponseCode
from verniermq.kernel.refusals import REFUSED_PROPERTIES, REFUSED_REQUESTS
from verniermq.plugins.topics.attributes import changed_attributes, parse_changes
from verniermq.testing import running_broker


@pytest.mark.parametrize(
    ("attribute", "why"),
    [
        ("queue.type=BatchCQ", "a batch is stored message by message"),
        ("cleanup.policy=COMPACTION", "topics are not compacted here"),
        ("reserve.time=7200000", "max_age in [plugins.retention]"),
        ("message.type=LITE", "lite topics are not supported"),
        ("lite.topic.expiration=5", "lite topics are not supported"),
        ("message.type=Normal", "expected one of UNSPECIFIED, NORMAL, FIFO, DELAY, TRANSACTION, MIXED"),
        ("message.typ=NORMAL", "is not known; did you mean 'message.type'?"),
        ("message.type=PRIORITY", "needs the plugin 'priority', which is not active"),
    ],
)
async def test_a_topic_attribute_without_effect_is_refused_and_not_kept(attribute: str, why: str) -> None:
    async with running_broker(plugins__enable=["topics"]) as broker, peer(broker.address) as client:
        answer = await put_topic(client, attributes=f"+{attribute}")
        body = {
            "topicConfigList": [{"topicName": "listed", "attributes": {f"+{n}": v}} for n, v in [attribute.split("=")]]
        }
        listed = await client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, orjson.dumps(body))

        for one in (answer, listed):
            assert one.code == ResponseCode.INVALID_PARAMETER
            assert attribute in (one.remark or "")
            assert why in (one.remark or "")
        assert "orders" not in broker.topics
        assert "listed" not in broker.topics


@pytest.mark.parametrize("attribute", ["queue.type=SimpleCQ", "cleanup.policy=DELETE", "reserve.time=-1"])
async def test_what_every_topic_here_is_may_be_asked_for(attribute: str) -> None:
    async with running_broker(plugins__enable=["topics"]) as broker, peer(broker.address) as client:
        assert (await put_topic(client, attributes=f"+{attribute}")).code == 0
        name, value = attribute.split("=")
        assert broker.topics.get("orders").attributes == {name: value}


async def test_the_signs_of_a_list_are_changes_and_no_part_of_a_name() -> None:
    async with running_broker(plugins__enable=["topics"]) as broker, peer(broker.address) as client:
        for attributes in ({"+message.type": "FIFO"}, {"+queue.type": "SimpleCQ"}, {"-message.type": ""}):
            body = {"topicConfigList": [{"topicName": "orders", "attributes": attributes}]}
            await client.ask_well(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, orjson.dumps(body))
        assert broker.topics.get("orders").attributes == {"queue.type": "SimpleCQ"}


async def test_an_attribute_that_an_apache_broker_wrote_does_not_stand_in_the_way() -> None:
    async with running_broker(plugins__enable=["topics"]) as broker, peer(broker.address) as client:
        config = {"topicName": "old", "attributes": {"cleanup.policy": "COMPACTION"}}
        broker.topics.load_json({"topicConfigTable": {"old": config}})

        assert (await put_topic(client, "old", readQueueNums=7)).code == 0
        assert broker.topics.get("old").attributes == {"cleanup.policy": "COMPACTION"}


@pytest.mark.parametrize(
    ("attributes", "why"),
    [
        ({"+lite.bind.topic": "parent"}, "lite topics are not supported"),
        ({"+x": "1"}, "attribute x=1 is not known"),
        ({"+priority.factor": "50"}, "needs the plugin 'priority', which is not active"),
    ],
)
async def test_a_group_attribute_without_effect_is_refused(attributes: dict[str, str], why: str) -> None:
    async with running_broker(plugins__enable=["topics"]) as broker, peer(broker.address) as client:
        body = {"groupName": "mine", "attributes": attributes}
        answer = await client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, orjson.dumps(body))

        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert why in (answer.remark or "")
        assert "mine" not in broker.groups


@pytest.mark.parametrize("code", REFUSED_REQUESTS, ids=lambda code: RequestCode(code).name)
async def test_a_request_that_is_not_served_says_why(code: RequestCode) -> None:
    async with running_broker(plugins__enable=["topics"]) as broker, peer(broker.address) as client:
        answer = await client.ask(code)

        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert answer.remark == f"request {code.name} ({int(code)}) is not supported here: {REFUSED_REQUESTS[code]}"


@pytest.mark.parametrize("name", REFUSED_PROPERTIES)
async def test_a_message_for_a_lite_topic_is_refused_rather_than_never_delivered(name: str) -> None:
    async with running_broker(plugins__enable=["topics"]) as broker, peer(broker.address) as client:
        answer = await client.send("orders", b"x", **{name: "somewhere"})

        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert REFUSED_PROPERTIES[name] in (answer.remark or "")
        assert broker.store.max_offset("orders", 0) == 0


def test_changes_are_read_and_applied() -> None:
    changes = parse_changes("+a=1, -b,+c=x=y")
    assert changes == {"+a": "1", "-b": "", "+c": "x=y"}
    assert changed_attributes({"b": "2", "d": "3"}, changes) == {"a": "1", "c": "x=y", "d": "3"}
    assert changed_attributes({}, {"plain": "1"}) == {"plain": "1"}


def test_an_attribute_of_numbers_allows_those_of_its_range() -> None:
    attribute = Attribute("share", range(101))
    allowed = [
        value for value in ("0", "100", "101", "-1", "x", "", "1e1", "9" * 30) if attribute.allows("share", value)
    ]
    assert allowed == ["0", "100"]
    assert not attribute.allows("other", "1")
