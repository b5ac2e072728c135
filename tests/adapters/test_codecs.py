"""Bodies of msgspec and pydantic there and back, and those that do not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pydantic
import pytest

from verniermq.client import Later, Producer, ReceivedMessage, SimpleConsumer
from verniermq.contrib.codecs import BadBody, Codec
from verniermq.contrib.codecs.msgspec import Json as MsgspecJson
from verniermq.contrib.codecs.msgspec import MsgPack
from verniermq.contrib.codecs.pydantic import Json as PydanticJson
from verniermq.testing import running_broker

pytestmark = pytest.mark.anyio


class Struct(msgspec.Struct):
    number: int
    name: str = ""


class Model(pydantic.BaseModel):
    number: int
    name: str = ""


CODECS: list[tuple[Callable[..., Codec[Any]], type]] = [(MsgspecJson, Struct), (MsgPack, Struct), (PydanticJson, Model)]


@pytest.mark.parametrize(("make", "type_"), CODECS)
async def test_an_object_travels_and_one_that_does_not_fit_is_named(
    make: Callable[..., Codec[Any]], type_: type
) -> None:
    codec = make(type_)
    value = type_(number=4711, name="Ada")
    handled: list[Any] = []

    @codec.handler
    async def handle(order: Any, message: ReceivedMessage) -> None:
        handled.append(order)

    @codec.handler
    def handle_in_thread(order: Any, message: ReceivedMessage) -> str:
        return "seen"

    async with running_broker() as broker:
        async with Producer("shop", namesrv=broker.name_servers[0]) as producer:
            await producer.send(codec.message("orders", value, tags="paid", properties={"more": "x"}))
        async with SimpleConsumer("billing", namesrv=broker.name_servers[0], start="first") as consumer:
            consumer.subscribe("orders")
            (message,) = await consumer.receive(wait=30)
    await handle(message)
    seen = handle_in_thread(message)
    message._body = b"\xc1 neither"

    assert handled == [value]
    assert seen == "seen"
    assert (message.tags, message.properties["more"]) == ("paid", "x")
    assert message.properties["content-type"] == codec.content_type
    with pytest.raises(BadBody, match=f"the body of message {message.message_id} is no {type_.__name__}"):
        codec.decode(message)
    refused = await handle(message)
    assert isinstance(refused, Later)
    assert refused.delay_level == -1
    assert handle_in_thread(message).delay_level == -1
