"""What hooks around a producer's sends may rely on: their order, what refusing and failing mean, who hears of what."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import attrs
import pytest

from tests.kernel.enabling import enabled
from verniermq.client import Message, Producer, TransactionProducer, TransactionState
from verniermq.kernel import (
    Broker,
    ClientContext,
    Declaration,
    EndedTransaction,
    NoConfig,
    RequestRefused,
    Sending,
    StoredMessage,
    hookimpl,
)
from verniermq.kernel.errors import PluginFailed
from verniermq.testing import running_broker

pytestmark = pytest.mark.anyio

HEARD: list[tuple[str, str]] = []


@pytest.fixture(autouse=True)
def _nothing_heard() -> None:
    HEARD.clear()


@attrs.define(eq=False)
class Marking:
    """Marks every message, refuses what has the body ``bad``."""

    declaration: ClassVar = Declaration(api=1, summary="Marks messages.")
    config: NoConfig
    client: ClientContext

    @hookimpl
    def before_send(self, sending: Sending) -> None:
        HEARD.append(("marking before", sending.message.body.decode()))
        if sending.message.body == b"bad":
            raise RequestRefused("no bad messages, please")
        sending.message.properties["marked"] = "yes"

    @hookimpl
    def after_send(self, sending: Sending) -> None:
        how = "oneway" if sending.result is None else sending.result.status.name
        HEARD.append(("marking after", type(sending.error).__name__ if sending.error else how))


@attrs.define(eq=False)
class Slow:
    """Async, and behind ``marking``."""

    declaration: ClassVar = Declaration(api=1, summary="Takes its time.", after=("marking",))
    config: NoConfig
    client: ClientContext

    @hookimpl
    async def before_send(self, sending: Sending) -> None:
        HEARD.append(("slow before", sending.message.properties.get("marked", "no")))

    @hookimpl
    async def after_send(self, sending: Sending) -> None:
        HEARD.append(("slow after", sending.message_id and "known"))


@attrs.define(eq=False)
class Stumbling:
    """Changes half of a message, and falls."""

    declaration: ClassVar = Declaration(api=1, summary="Stumbles.", patience=3)
    config: NoConfig
    client: ClientContext

    @hookimpl
    def before_send(self, sending: Sending) -> None:
        sending.message.properties["half"] = "done"
        sending.message.topic = "elsewhere"
        raise ZeroDivisionError("stumbled")

    @hookimpl
    def after_send(self, sending: Sending) -> None:
        raise ZeroDivisionError("stumbled afterwards")


@attrs.define(eq=False)
class Guarding(Stumbling):
    declaration: ClassVar = Declaration(api=1, summary="Must not be passed.", on_failure="closed")


def plugins(**classes: type) -> dict[str, Any]:
    return {key.removeprefix("plugins__").replace("__", "."): value for key, value in enabled(**classes).items()}


@asynccontextmanager
async def producer_with(**classes: type) -> AsyncIterator[tuple[Broker, Producer]]:
    async with (
        running_broker() as broker,
        Producer("billing", namesrv=broker.name_servers[0], plugins=plugins(**classes)) as producer,
    ):
        yield broker, producer


def stored(broker: Broker, topic: str = "orders") -> list[StoredMessage]:
    queues = [queue for queue in broker.store.queues() if queue.topic == topic]
    places = [place for queue in queues for place, _, _ in queue.entries(0, 32)]
    return [message for place in places if (message := broker.store.message_at(place)) is not None]


async def test_plugins_come_in_their_order_and_then_the_program_s_functions() -> None:
    async with producer_with(slow=Slow, marking=Marking) as (broker, producer):
        producer.before_send(lambda sending: HEARD.append(("program before", sending.message.properties["marked"])))
        producer.after_send(lambda sending: HEARD.append(("program after", sending.result.status.name)))

        await producer.send(Message("orders", b"good"))
        (kept,) = stored(broker)

    assert HEARD == [
        ("marking before", "good"), ("slow before", "yes"), ("program before", "yes"),
        ("marking after", "SEND_OK"), ("slow after", "known"), ("program after", "SEND_OK"),
    ]  # fmt: skip
    assert kept.properties["marked"] == "yes"


async def test_a_refusal_reaches_the_caller_and_nothing_is_sent() -> None:
    async with producer_with(marking=Marking, slow=Slow) as (broker, producer):
        with pytest.raises(RequestRefused, match="no bad messages, please"):
            await producer.send(Message("orders", b"bad"))
        topics = {topic.name for topic in broker.topics}

    assert "orders" not in topics
    assert HEARD == [("marking before", "bad"), ("marking after", "RequestRefused"), ("slow after", "")]


async def test_every_kind_of_send_goes_past_the_hooks() -> None:
    async with producer_with(marking=Marking) as (_, producer):
        await (await producer.submit(Message("orders", b"one")))
        await producer.send_oneway(Message("orders", b"two"))
        await producer.send_batch([Message("orders", b"three"), Message("orders", b"four")])
        with pytest.raises(RequestRefused):
            await (await producer.submit(Message("orders", b"bad")))
        with pytest.raises(RequestRefused):
            await producer.send_oneway(Message("orders", b"bad"))
        with pytest.raises(RequestRefused):
            await producer.send_batch([Message("orders", b"five"), Message("orders", b"bad")])

    assert [body for what, body in HEARD if what == "marking before"] == [
        "one", "two", "three", "four", "bad", "bad", "five", "bad",
    ]  # fmt: skip
    assert [how for what, how in HEARD if what == "marking after"] == [
        "SEND_OK", "oneway", "SEND_OK", "SEND_OK", *["RequestRefused"] * 4,
    ]  # fmt: skip


async def test_each_message_of_a_batch_has_its_own_result() -> None:
    sent: list[Sending] = []
    async with producer_with() as (_, producer):
        producer.after_send(sent.append)
        result = await producer.send_batch([Message("orders", b"a"), Message("orders", b"b")])

    assert [sending.message_id for sending in sent] == result.message_id.split(",")
    assert [sending.result.queue_offset for sending in sent] == [0, 1]
    assert [sending.result.offset_message_id for sending in sent] == result.offset_message_id.split(",")


async def test_a_plugin_that_fails_open_leaves_no_trace_in_the_message(caplog: pytest.LogCaptureFixture) -> None:
    async with producer_with(stumbling=Stumbling, slow=Slow) as (broker, producer):
        with caplog.at_level(logging.CRITICAL):
            message = Message("orders", b"good")
            result = await producer.send(message)
        (kept,) = stored(broker)

    assert result.queue.topic == "orders"
    assert "half" not in kept.properties
    assert message == Message("orders", b"good")
    assert HEARD == [("slow before", "no"), ("slow after", "known")]


async def test_a_plugin_that_keeps_failing_is_no_longer_called(caplog: pytest.LogCaptureFixture) -> None:
    async with producer_with(stumbling=Stumbling) as (_, producer):
        with caplog.at_level(logging.CRITICAL):
            for _ in range(5):
                await producer.send(Message("orders", b"good"))
        plugin = producer.host.active["stumbling"]

    assert plugin.state == "switched off"
    assert plugin.calls["before_send"].calls == 3


async def test_a_plugin_that_fails_closed_refuses_the_send(caplog: pytest.LogCaptureFixture) -> None:
    async with producer_with(guarding=Guarding) as (broker, producer):
        with caplog.at_level(logging.CRITICAL), pytest.raises(PluginFailed, match="guarding"):
            await producer.send(Message("orders", b"good"))

        assert {topic.name for topic in broker.topics}.isdisjoint({"orders", "elsewhere"})


async def test_what_the_program_s_function_raises_refuses_before_and_changes_nothing_afterwards(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with producer_with() as (_, producer):

        @producer.after_send
        def fall(sending: Sending) -> None:
            raise ZeroDivisionError("afterwards")

        with caplog.at_level(logging.CRITICAL):
            assert (await producer.send(Message("orders", b"good"))).stored_as_wished

        @producer.before_send
        def refuse(sending: Sending) -> None:
            raise PermissionError("not today")

        with caplog.at_level(logging.CRITICAL), pytest.raises(PermissionError, match="not today"):
            await producer.send(Message("orders", b"good"))


@attrs.define(eq=False)
class Living:
    """Lives and talks in a client."""

    declaration: ClassVar = Declaration(api=1, summary="Lives in a client.")
    config: NoConfig
    client: ClientContext

    @hookimpl
    async def client_started(self) -> None:
        HEARD.append(("started", self.client.group))
        self.client.spawn(self.work)
        await self.client.post(Message("gossip", b"started"))

    async def work(self) -> None:
        HEARD.append(("works", ""))

    @hookimpl
    def before_send(self, sending: Sending) -> None:
        HEARD.append(("before", sending.message.topic))

    @hookimpl
    def transaction_ended(self, ended: EndedTransaction) -> None:
        HEARD.append((ended.state, ended.keys))

    @hookimpl
    async def client_stopping(self) -> None:
        await self.client.post(Message("gossip", b"stopping"))
        HEARD.append(("stopping", self.client.client_id and "known"))


async def test_a_plugin_has_a_life_in_a_client_and_sends_past_the_hooks() -> None:
    async with producer_with(living=Living) as (broker, producer):
        await producer.send(Message("orders", b"good"))
        await producer.close()
        bodies = [message.body for message in stored(broker, "gossip")]

    assert HEARD == [("started", "billing"), ("works", ""), ("before", "orders"), ("stopping", "known")]
    assert sorted(bodies) == [b"started", b"stopping"]


async def test_the_end_of_a_transaction_is_heard() -> None:
    async with (
        running_broker() as broker,
        TransactionProducer(
            "billing", checker=lambda message: TransactionState.COMMIT, namesrv=broker.name_servers[0],
            plugins=plugins(living=Living),
        ) as producer,
    ):  # fmt: skip
        async with producer.transaction(Message("orders", b"one", keys=["T1"])):
            pass
        async with producer.transaction(Message("orders", b"two", keys=["T2"])) as transaction:
            transaction.rollback()

    assert [heard for heard in HEARD if heard[0] in ("COMMIT", "ROLLBACK")] == [("COMMIT", "T1"), ("ROLLBACK", "T2")]
