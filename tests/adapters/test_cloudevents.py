"""Events of the SDK as messages and back, in both modes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal

import pytest
from cloudevents.core.v1.event import CloudEvent

from verniermq.client import Message, Producer, ReceivedMessage, SimpleConsumer
from verniermq.client.errors import ClientError
from verniermq.contrib.cloudevents import from_message, is_event, to_message
from verniermq.testing import running_broker

pytestmark = pytest.mark.anyio

ATTRIBUTES = {
    "id": "A-1", "source": "/shop", "type": "order.paid", "specversion": "1.0", "subject": "4711",
    "time": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "tenant": "blue", "partitionkey": "p",
}  # fmt: skip


async def through_a_broker(message: Message) -> ReceivedMessage:
    async with running_broker() as broker:
        async with Producer("shop", namesrv=broker.name_servers[0]) as producer:
            await producer.send(message)
        async with SimpleConsumer("billing", namesrv=broker.name_servers[0], start="first") as consumer:
            consumer.subscribe(message.topic)
            (received,) = await consumer.receive(wait=30)
    return received


@pytest.mark.parametrize("mode", ["binary", "structured"])
@pytest.mark.parametrize(
    ("content_type", "data"),
    [("application/json", {"amount": 12.5}), ("application/octet-stream", b"\x00\xff"), (None, None)],
)
async def test_an_event_comes_back_as_it_was(
    mode: Literal["binary", "structured"], content_type: str | None, data: Any
) -> None:
    attributes = {**ATTRIBUTES, **({"datacontenttype": content_type} if content_type else {})}
    event = CloudEvent(attributes, data)

    message = await through_a_broker(to_message(event, "events", mode=mode, properties={"more": "x"}))
    received = from_message(message)

    assert message.keys == ["A-1"]
    assert message.properties["more"] == "x"
    assert received.get_attributes() == event.get_attributes()
    assert received.get_data() in ((data,) if data is not None else (None, b"", ""))


async def test_binary_mode_has_the_names_of_the_java_binding() -> None:
    event = CloudEvent({**ATTRIBUTES, "datacontenttype": "text/plain"}, "hello")

    message = to_message(event, "events")
    empty = to_message(CloudEvent(dict(ATTRIBUTES)), "events")

    assert message.properties == {
        "CE_id": "A-1", "CE_source": "/shop", "CE_type": "order.paid", "CE_specversion": "1.0", "CE_subject": "4711",
        "CE_time": "2026-01-02T03:04:05Z", "CE_tenant": "blue", "CE_partitionkey": "p", "CE_contenttype": "text/plain",
    }  # fmt: skip
    assert message.body == b"hello"
    assert empty.body == b"\0"


async def test_a_message_that_is_no_event_is_named() -> None:
    message = await through_a_broker(Message("events", b"plain"))

    assert not is_event(message)
    with pytest.raises(ClientError, match=f"message {message.message_id} is no event"):
        from_message(message)
