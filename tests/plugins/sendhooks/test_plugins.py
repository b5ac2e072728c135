"""``enrich``, ``audit`` and ``trace`` in running clients and brokers."""

from __future__ import annotations

import json
import logging
import tomllib
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.kernel.enabling import client_context
from tests.plugins.documented import blocks, example
from tests.plugins.peer import peer, served
from verniermq.client import Message, Producer, PushConsumer, TransactionProducer, TransactionState
from verniermq.kernel import (
    TRACE_TOPIC,
    Broker,
    ConfigError,
    MessageIllegal,
    MessageQueue,
    NoConfig,
    RequestCode,
    Sending,
)
from verniermq.kernel.config.structure import structure
from verniermq.plugins.sendhooks import audit, enrich, trace
from verniermq.plugins.sendhooks.dispatcher import (
    LARGEST_BODY,
    LONGEST_KEYS,
    MOST_WAITING,
    TraceBatch,
    TraceDispatcher,
    packed,
)
from verniermq.plugins.sendhooks.records import Ending, Pub, SubAfter, SubBefore, TraceType, TransactionEnd
from verniermq.testing import ManualClock, check_send_hooks, running_broker

pytestmark = pytest.mark.anyio


def stored(broker: Broker, topic: str) -> list[Any]:
    queues = [queue for queue in broker.store.queues() if queue.topic == topic]
    return [broker.store.message_at(place) for queue in queues for place, _, _ in queue.entries(0, 32)]


def records(broker: Broker) -> list[list[str]]:
    bodies = b"".join(message.body for message in stored(broker, TRACE_TOPIC)).decode()
    return [record.split("\x01") for record in bodies.split("\x02") if record]


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


# --- enrich --------------------------------------------------------------------------------


async def test_a_producer_adds_properties_and_leaves_those_that_are_there() -> None:
    settings = {
        "enable": ["enrich"], "enrich.topics": ["orders*"],
        "enrich.properties": {"team": "payments", "by": "{group}/{client_id}", "of": "{broker}", "colour": "red"},
    }  # fmt: skip
    async with (
        running_broker() as broker,
        Producer("billing", namesrv=broker.name_servers[0], plugins=settings) as producer,
    ):
        await producer.send(Message("orders", b"x", properties={"colour": "blue"}))
        await producer.send(Message("refunds", b"x"))
        (order,), (refund,) = stored(broker, "orders"), stored(broker, "refunds")

    assert order.properties["team"] == "payments"
    assert order.properties["by"] == f"billing/{producer.client_id}"
    assert order.properties["colour"] == "blue"
    assert "of" not in order.properties, "a value that comes out empty is left out"
    assert "team" not in refund.properties


async def test_a_broker_adds_properties_and_may_overwrite(tmp_path: Path) -> None:
    settings = {
        "plugins__enable": ["default", "enrich"], "plugins__enrich__overwrite": True,
        "plugins__enrich__properties": {"taken_by": "{broker}", "for": "{group} to {topic}", "colour": "red"},
    }  # fmt: skip
    async with served(tmp_path, **settings) as (broker, peer):
        await peer.sent("orders", colour="blue")
        await peer.sent("orders", DELAY=3)
        (at_once,) = stored(broker, "orders")
        (delayed,) = stored(broker, "SCHEDULE_TOPIC_XXXX")

    assert at_once.properties["taken_by"] == "broker-a"
    assert at_once.properties["colour"] == "red"
    assert at_once.properties["for"] == delayed.properties["for"] == "producers to orders"


@pytest.mark.parametrize(
    ("properties", "complaint"),
    [({"KEYS": "x"}, "'KEYS'"), ({"by": "{grup}"}, "{grup}"), ({"by": "a\x01b"}, "U+0001")],
)
def test_properties_that_would_do_harm_are_refused(properties: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigError) as refused:
        structure(enrich.Config, {"properties": properties}, "plugins.enrich")

    assert complaint in str(refused.value)


# --- audit ---------------------------------------------------------------------------------


async def test_a_broker_writes_down_who_comes_and_goes_and_what_is_consumed_if_told_to(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    settings = {
        "plugins__enable": ["default", "audit"], "plugins__audit__file": str(file),
        "plugins__audit__topics": ["orders"], "plugins__audit__members": True, "plugins__audit__offsets": True,
    }  # fmt: skip
    async with running_broker(**settings) as broker:
        async with peer(broker.address) as client:
            await client.sent("orders")
            await client.sent("others")
            await client.heartbeat("billing", ["orders"])
            await client.heartbeat("billing", ["orders"])  # nothing new
            producers = {"clientID": client.client_id, "producerDataSet": [{"groupName": "shop"}]}
            await client.ask_well(RequestCode.HEART_BEAT, json.dumps(producers).encode())
            for topic in ("orders", "others"):
                where = {"consumerGroup": "billing", "topic": topic, "queueId": 0, "commitOffset": 1}
                await client.ask_well(RequestCode.UPDATE_CONSUMER_OFFSET, **where)
            await client.ask_well(RequestCode.UNREGISTER_CLIENT, producerGroup="shop")
        with anyio.fail_after(30):
            while sum(line["event"] == "left" for line in lines(file)) < 2:  # noqa: ASYNC110 - a socket that closes
                await anyio.sleep(0.005)
        written = [line for line in lines(file) if line["event"] != "sent"]

    events = [(line["event"], line.get("kind"), line["group"]) for line in written]
    assert events == [
        ("joined", "consumer", "billing"), ("joined", "producer", "shop"), ("consumed", None, "billing"),
        ("left", "producer", "shop"), ("left", "consumer", "billing"),
    ]  # fmt: skip
    assert {line["client"] for line in written if "client" in line} == {"127.0.0.1@test"}
    assert (written[2]["topic"], written[2]["queue"], written[2]["offset"]) == ("orders", 0, 1)


async def test_by_default_an_audit_is_of_sends_alone(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    async with running_broker(plugins__enable=["default", "audit"], plugins__audit__file=str(file)) as broker:
        async with peer(broker.address) as client:
            await client.sent("orders")
            await client.heartbeat("billing", ["orders"])
        implementations = [broker.host.implementations(name) for name in ("client_joined", "offset_committed")]

    assert implementations == [[], []]
    assert [line["event"] for line in lines(file)] == ["sent"]


async def test_a_broker_writes_down_what_it_took_and_what_it_refused(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    settings = {"plugins__enable": ["default", "audit"], "plugins__audit__file": str(file)}
    async with served(tmp_path / "store", **settings) as (_, peer):
        answer = await peer.sent("orders", b"hello", KEYS="T1", TAGS="paid", UNIQ_KEY="ID1")
        refused = await peer.send("orders", b"hello", queue=99)

    sent, not_sent = lines(file)
    assert sent == {
        "time": sent["time"], "event": "sent", "where": "broker", "group": "producers", "peer": sent["peer"],
        "topic": "orders", "queue": 0, "offset": int(answer["queueOffset"]), "message_id": "ID1", "keys": "T1",
        "tags": "paid", "size": 5,
    }  # fmt: skip
    assert not_sent == {
        "time": not_sent["time"], "event": "refused", "where": "broker", "group": "producers", "peer": sent["peer"],
        "topic": "orders", "size": 5, "reason": refused.remark,
    }  # fmt: skip


async def test_a_producer_gives_its_lines_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        running_broker() as broker,
        Producer("billing", namesrv=broker.name_servers[0], plugins=["audit"]) as producer,
    ):

        @producer.before_send
        def refuse(sending: Sending) -> None:
            if sending.message.tags == "bad":
                raise MessageIllegal("not this one")

        with caplog.at_level(logging.INFO, "verniermq.audit"):
            result = await producer.send(Message("orders", b"x", keys=["T1"]))
            with pytest.raises(MessageIllegal):
                await producer.send(Message("orders", b"x", tags="bad"))

    sent, refused = (json.loads(record.message) for record in caplog.records if record.name == "verniermq.audit")
    assert (sent["event"], sent["message_id"], sent["keys"]) == ("sent", result.message_id, "T1")
    assert (sent["queue"], sent["offset"], sent["broker"]) == (result.queue.queue_id, 0, broker.address)
    assert (refused["event"], refused["reason"], refused["tags"]) == ("refused", "not this one", "bad")


# --- trace ---------------------------------------------------------------------------------


async def test_a_send_and_its_delivery_leave_records_that_belong_together() -> None:
    async with running_broker() as broker:
        namesrv = broker.name_servers[0]
        async with Producer("billing", namesrv=namesrv, plugins=["trace"]) as producer:
            result = await producer.send(Message("orders", b"hello", tags="paid", keys=["T1", "T2"]))
        consumer = PushConsumer("shipping", namesrv=namesrv, plugins=["trace"], start="first")
        consumer.subscribe("orders")
        received = anyio.Event()

        @consumer.on_message
        async def take(message: object) -> None:
            received.set()

        async with consumer:
            with anyio.fail_after(30):
                await received.wait()
        (pub, before, after) = records(broker)
        kept = stored(broker, TRACE_TOPIC)

    assert pub == [
        "Pub", pub[1], "DefaultRegion", "billing", "orders", result.message_id, "paid", "T1 T2", broker.address, "5",
        pub[10], "0", result.offset_message_id, "true",
    ]  # fmt: skip
    assert before == ["SubBefore", before[1], "DefaultRegion", "shipping", before[4], result.message_id, "0", "T1 T2"]
    assert after == ["SubAfter", before[4], result.message_id, after[3], "true", "T1 T2", "0", after[7], "shipping"]
    assert {message.properties["KEYS"] for message in kept} == {f"{result.message_id} T1 T2"}


async def test_a_failed_send_and_the_end_of_a_transaction_leave_records() -> None:
    async with running_broker() as broker:
        namesrv = broker.name_servers[0]
        async with TransactionProducer(
            "billing", checker=lambda message: TransactionState.COMMIT, namesrv=namesrv, plugins=["trace"]
        ) as producer:
            async with producer.transaction(Message("orders", b"x", keys=["T1"])) as transaction:
                pass
            with pytest.raises(Exception, match="99"):
                await producer.send(Message("orders", b"x"), queue=MessageQueue("orders", broker.name, 99))
        half, end, failed = records(broker)

    assert (half[0], half[11], half[-1]) == ("Pub", str(int(TraceType.HALF)), "true")
    assert end == [
        "EndTransaction", end[1], "DefaultRegion", "billing", "orders", half[5], "", "T1", broker.address, "2",
        transaction.id, "COMMIT_MESSAGE", "false",
    ]  # fmt: skip
    assert (failed[0], failed[-2:]) == ("Pub", ["", "false"])


async def test_a_broker_traces_what_it_took_from_clients_that_do_not(tmp_path: Path) -> None:
    clock = ManualClock()
    settings = {"plugins__enable": ["default", "trace"], "plugins__trace__topics": ["orders"]}
    async with served(tmp_path, clock, **settings) as (broker, peer):
        answer = await peer.sent("orders", b"hello", KEYS="T1", TAGS="paid", UNIQ_KEY="ID1", DELAY=1)
        await peer.sent("refunds")
        await anyio.wait_all_tasks_blocked()
        assert records(broker) == []
        await clock.advance(6)
        (pub,) = records(broker)

    assert pub[3:9] == ["producers", "orders", "ID1", "paid", "T1", broker.address]
    assert pub[11:] == [str(int(TraceType.DELAYED)), answer["msgId"], "true"]


async def test_records_of_a_broker_that_stops_are_not_lost(tmp_path: Path) -> None:
    async with served(tmp_path, plugins__enable=["default", "trace"]) as (_, peer):
        await peer.sent("orders", UNIQ_KEY="ID1")
    async with running_broker(tmp_path) as broker:
        assert [record[5] for record in records(broker)] == ["ID1"]


def record_number(number: int, keys: str = "") -> Pub:
    return Pub(
        message_id=f"{number:032}", keys=keys, time_ms=1, group="g", topic="t", tags="", broker="b", body_length=1,
        cost_ms=1, kind=TraceType.NORMAL, offset_message_id="", success=True,
    )  # fmt: skip


def test_parcels_hold_as_much_as_they_may_and_no_more() -> None:
    waiting = [record_number(number, "k" * (number % 500)) for number in range(2000)]

    parcels = list(packed(waiting))

    assert b"".join(parcel.body for parcel in parcels).decode() == "".join(record.encode() for record in waiting)
    assert all(len(parcel.body) <= LARGEST_BODY and len(parcel.keys) <= LONGEST_KEYS for parcel in parcels)
    assert all(f"{number:032}" in " ".join(parcel.keys for parcel in parcels) for number in range(2000))


async def test_too_many_records_are_dropped_and_counted_and_failures_never_raise() -> None:
    taken: list[TraceBatch] = []

    async def take(parcel: TraceBatch) -> None:
        if taken:
            raise MessageIllegal("no more")
        taken.append(parcel)

    dispatcher = TraceDispatcher(take, 10, 5)
    for number in range(MOST_WAITING + 7):
        dispatcher.add(record_number(number))
    await dispatcher.flush()

    assert dispatcher.dropped == MOST_WAITING + 7 - taken[0].body.count(b"\x02")


def test_separators_in_a_key_do_not_move_the_fields_behind_it() -> None:
    assert record_number(1, "a\x01b\x02c").encode().count("\x01") == record_number(1).encode().count("\x01")


def test_records_have_as_many_fields_as_rocketmq_writes() -> None:
    common = {"message_id": "m", "keys": "k", "time_ms": 1, "group": "g"}
    before = SubBefore(**common, request_id="r", retry_times=0)  # type: ignore[arg-type]
    after = SubAfter(**common, request_id="r", cost_ms=1, ending=Ending.RAISED)  # type: ignore[arg-type]
    end = TransactionEnd(**common, topic="t", tags="", broker="b", transaction_id="x", state="s", from_check=True)  # type: ignore[arg-type]

    assert [record.encode().count("\x01") + 1 for record in (record_number(1), before, after, end)] == [14, 8, 9, 13]


# --- the contract and the page -------------------------------------------------------------


@pytest.mark.parametrize(
    "plugin",
    [
        enrich.ClientPlugin(enrich.Config({"by": "{group}"}), client_context()),
        audit.ClientPlugin(audit.Config(), client_context()),
        trace.ClientPlugin(trace.Config(), client_context()),
        example("sendhooks")["Plugin"](NoConfig(), client_context()),
    ],
    ids=["enrich", "audit", "trace", "documented"],
)  # fmt: skip
async def test_every_plugin_keeps_the_contract(plugin: Any) -> None:
    await check_send_hooks(plugin)


async def test_the_contract_notices_a_plugin_that_does_harm() -> None:
    class Forgetful:
        def after_send(self, sending: Sending) -> None:
            sending.message.properties["seen"] = "yes"

    class Careless:
        def before_send(self, sending: Sending) -> None:
            sending.message.properties["size"] = len(sending.message.body)  # type: ignore[assignment]

    with pytest.raises(AssertionError, match="must not change"):
        await check_send_hooks(Forgetful())
    with pytest.raises(AssertionError, match="'size' is 5, expected text"):
        await check_send_hooks(Careless())


async def test_the_documented_plugin_refuses_card_numbers() -> None:
    plugin = example("sendhooks")["Plugin"](NoConfig(), client_context())

    with pytest.raises(MessageIllegal):
        plugin.before_send(Sending("g", "c", Message("orders", b"4111 1111 1111 1111"), "sync"))


def test_the_documented_settings_are_the_defaults_or_accepted() -> None:
    (block,) = blocks("sendhooks", "toml")
    tables = tomllib.loads(block)["plugins"]

    assert structure(trace.Config, tables["trace"], "plugins.trace") == trace.Config()
    assert structure(audit.Config, tables["audit"], "plugins.audit").topics == ("*",)
    assert structure(enrich.Config, tables["enrich"], "plugins.enrich").properties["team"] == "payments"


async def test_none_of_them_is_active_by_default() -> None:
    async with running_broker() as broker:
        assert {"trace", "audit", "enrich"}.isdisjoint(broker.host.active)
