"""Spans and figures of sends and deliveries, as the SDK's exporter in memory gets them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from opentelemetry import metrics, trace
from opentelemetry.baggage import get_baggage, set_baggage
from opentelemetry.context import attach, detach
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from verniermq.client import Later, Message, Producer, PushConsumer, ReceivedMessage, SimpleConsumer
from verniermq.client import sync as blocking
from verniermq.client.errors import ClientError
from verniermq.contrib.otel import context_of
from verniermq.kernel import Broker
from verniermq.testing import BrokerProcess, running_broker

pytestmark = pytest.mark.anyio

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
"""As a producer in another language writes it."""


class Telemetry:
    """What the SDK was given."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.reader = InMemoryMetricReader()
        tracing = TracerProvider()
        tracing.add_span_processor(SimpleSpanProcessor(self.exporter))
        trace.set_tracer_provider(tracing)
        metrics.set_meter_provider(MeterProvider([self.reader]))

    def spans(self, kind: SpanKind) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.kind is kind]

    def points(self) -> dict[str, list[Any]]:
        data = self.reader.get_metrics_data()
        found = data.resource_metrics[0].scope_metrics[0].metrics if data else []
        return {metric.name: list(metric.data.data_points) for metric in found}


@pytest.fixture(scope="session")
def sdk() -> Telemetry:
    return Telemetry()


@pytest.fixture
def telemetry(sdk: Telemetry) -> Telemetry:
    sdk.exporter.clear()
    return sdk


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with running_broker() as running:
        yield running


def namesrv(broker: Broker) -> str:
    return broker.name_servers[0]


def consumer(broker: Broker, handler: Any, **options: Any) -> PushConsumer:
    made = PushConsumer("billing", namesrv=namesrv(broker), start="first", **{"plugins": ["otel"], **options})
    made.subscribe("orders")
    made.on_message(handler)
    return made


async def until_spans(telemetry: Telemetry, kind: SpanKind, count: int) -> list[ReadableSpan]:
    with anyio.fail_after(30):
        while len(telemetry.spans(kind)) < count:  # noqa: ASYNC110 - spans end in a client, which tells nobody
            await anyio.sleep(0.01)
    return telemetry.spans(kind)


async def test_a_send_and_its_delivery_are_tied(broker: Broker, telemetry: Telemetry) -> None:
    current: list[Any] = []

    async def handle(message: ReceivedMessage) -> None:
        current.append(trace.get_current_span().get_span_context())

    async with Producer("orders", namesrv=namesrv(broker), plugins=["otel"]) as producer:
        result = await producer.send(Message("orders", b"12345", tags="paid", keys=["K1"]))
        async with consumer(broker, handle):
            (processed,) = await until_spans(telemetry, SpanKind.CONSUMER, 1)
    (sent,) = telemetry.spans(SpanKind.PRODUCER)

    assert (sent.name, processed.name) == ("send orders", "process orders")
    assert sent.attributes is not None
    assert processed.attributes is not None
    common = {
        "messaging.system": "rocketmq",
        "messaging.destination.name": "orders",
        "messaging.rocketmq.namespace": "",
        "messaging.message.id": result.message_id,
        "messaging.message.body.size": 5,
        "messaging.rocketmq.message.tag": "paid",
        "messaging.rocketmq.message.keys": ("K1",),
        "messaging.rocketmq.message.type": "normal",
        "messaging.destination.partition.id": f"{result.queue.broker_name}:{result.queue.queue_id}",
    }
    assert common.items() <= dict(sent.attributes).items()
    assert common.items() <= dict(processed.attributes).items()
    assert sent.attributes["messaging.operation.type"] == sent.attributes["messaging.operation.name"] == "send"
    host, _, port = broker.address.rpartition(":")
    assert (sent.attributes["server.address"], sent.attributes["server.port"]) == (host, int(port))
    assert processed.attributes["messaging.operation.type"] == "process"
    assert processed.attributes["messaging.consumer.group.name"] == "billing"
    assert [link.context.span_id for link in processed.links] == [sent.context.span_id]
    assert processed.parent is None
    assert current == [processed.context]


async def test_the_span_is_current_in_a_handler_s_thread_and_may_be_a_child(
    broker: Broker, telemetry: Telemetry
) -> None:
    current: list[Any] = []

    def handle(message: ReceivedMessage) -> None:
        current.append((trace.get_current_span().get_span_context(), get_baggage("tenant")))

    plugins = {"enable": ["otel"], "otel": {"follow": "parent"}}
    async with Producer("orders", namesrv=namesrv(broker), plugins=["otel"]) as producer:
        token = attach(set_baggage("tenant", "blue"))
        with trace.get_tracer("test").start_as_current_span("request") as request:
            await producer.send(Message("orders", b"x"))
        detach(token)
        async with consumer(broker, handle, plugins=plugins):
            (processed,) = await until_spans(telemetry, SpanKind.CONSUMER, 1)
    (sent,) = telemetry.spans(SpanKind.PRODUCER)

    assert sent.parent is not None
    assert sent.parent.span_id == request.get_span_context().span_id
    assert processed.parent is not None
    assert processed.parent.span_id == sent.context.span_id
    assert processed.context.trace_id == request.get_span_context().trace_id
    assert current == [(processed.context, "blue")]


@pytest.mark.parametrize("name", ["traceparent", "TRACE_CONTEXT"])
async def test_a_message_of_another_client_is_tied_by_its_properties(
    broker: Broker, telemetry: Telemetry, name: str
) -> None:
    async def handle(message: ReceivedMessage) -> None: ...

    async with Producer("orders", namesrv=namesrv(broker)) as producer:
        await producer.send(Message("orders", b"x", properties={name: TRACEPARENT}))
    async with consumer(broker, handle):
        (processed,) = await until_spans(telemetry, SpanKind.CONSUMER, 1)

    (link,) = processed.links
    assert f"{link.context.trace_id:032x}-{link.context.span_id:016x}" == TRACEPARENT[3:-3]


async def test_failures_are_told(broker: Broker, telemetry: Telemetry) -> None:
    async def handle(message: ReceivedMessage) -> Later | None:
        if message.body == b"later":
            return Later()
        raise ValueError("no such order")

    async with Producer("orders", namesrv=namesrv(broker), plugins=["otel"]) as producer:
        await producer.send(Message("orders", b"bad"))
        await producer.send(Message("orders", b"later"))
        async with consumer(broker, handle):
            processed = await until_spans(telemetry, SpanKind.CONSUMER, 2)

    assert {span.status.status_code for span in processed} == {StatusCode.ERROR}
    assert {(span.attributes or {})["error.type"] for span in processed} == {"ValueError", "later"}
    assert [event.name for span in processed for event in span.events] == ["exception"]


async def test_a_send_that_fails_is_told(telemetry: Telemetry) -> None:
    async with running_broker() as broker:
        producer = Producer("orders", namesrv=namesrv(broker), plugins=["otel"], retries=0, send_timeout=1)
        await producer.start()
        await producer.send(Message("orders", b"x"))
    telemetry.exporter.clear()
    with pytest.raises(ClientError) as raised:
        await producer.send(Message("orders", b"x"))
    await producer.close()

    (sent,) = telemetry.spans(SpanKind.PRODUCER)
    assert (sent.attributes or {})["error.type"] == type(raised.value).__qualname__
    assert sent.status.status_code is StatusCode.ERROR


async def test_a_batch_has_a_link_for_each_message(broker: Broker, telemetry: Telemetry) -> None:
    made = PushConsumer("billing", namesrv=namesrv(broker), start="first", plugins=["otel"], batch_size=8)
    made.subscribe("orders")

    @made.on_batch
    async def handle(messages: list[ReceivedMessage]) -> None: ...

    async with Producer("orders", namesrv=namesrv(broker), plugins=["otel"]) as producer:
        await producer.send_batch([Message("orders", b"%d" % number) for number in range(3)])
    async with made:
        (processed,) = await until_spans(telemetry, SpanKind.CONSUMER, 1)
    sent = telemetry.spans(SpanKind.PRODUCER)

    assert len(sent) == 3
    assert {link.context.span_id for link in processed.links} == {span.context.span_id for span in sent}
    assert (processed.attributes or {})["messaging.batch.message_count"] == 3


async def test_the_figures_have_the_conventions_names(broker: Broker, telemetry: Telemetry) -> None:
    async def handle(message: ReceivedMessage) -> None: ...

    def counted(name: str) -> float:
        points = telemetry.points().get(name, [])
        return sum(getattr(point, "count", None) or getattr(point, "value", 0) for point in points)

    names = ["messaging.client.sent.messages", "messaging.client.operation.duration",
             "messaging.client.consumed.messages", "messaging.process.duration"]  # fmt: skip
    before = {name: counted(name) for name in names}
    async with Producer("orders", namesrv=namesrv(broker), plugins=["otel"]) as producer:
        for _ in range(3):
            await producer.send(Message("orders", b"x"))
        async with consumer(broker, handle):
            await until_spans(telemetry, SpanKind.CONSUMER, 3)

    assert {name: counted(name) - before[name] for name in names} == dict.fromkeys(names, 3)
    attributes = telemetry.points()["messaging.process.duration"][-1].attributes
    assert attributes["messaging.consumer.group.name"] == "billing"


async def test_a_program_that_receives_finds_the_context(broker: Broker, telemetry: Telemetry) -> None:
    async with Producer("orders", namesrv=namesrv(broker), plugins=["otel"]) as producer:
        await producer.send(Message("orders", b"x"))
    async with SimpleConsumer("receivers", namesrv=namesrv(broker), start="first") as receiver:
        receiver.subscribe("orders")
        (message,) = await receiver.receive(wait=30)
        await receiver.ack(message)
    (sent,) = telemetry.spans(SpanKind.PRODUCER)

    assert trace.get_current_span(context_of(message)).get_span_context().span_id == sent.context.span_id


def test_a_blocking_send_is_a_child_of_what_its_thread_does(
    verniermq_broker: BrokerProcess, telemetry: Telemetry
) -> None:
    with (
        blocking.Producer("orders", namesrv=verniermq_broker.namesrv, plugins=["otel"]) as producer,
        trace.get_tracer("test").start_as_current_span("request") as request,
    ):
        producer.send(Message("orders", b"x"))
    (sent,) = telemetry.spans(SpanKind.PRODUCER)

    assert sent.parent is not None
    assert sent.parent.span_id == request.get_span_context().span_id
