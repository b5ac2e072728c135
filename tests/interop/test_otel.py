"""A trace that begins in a Java producer goes on in a Python consumer, and the other way round the property arrives."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from verniermq.client import PushConsumer, ReceivedMessage

from .drivers import Driver
from .toolchains import driver_command
from .verniermq_process import VernierMQBroker

# Building a driver for the first time fetches the client and all it depends on.
pytestmark = pytest.mark.timeout(300)

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def test_a_java_producer_s_trace_goes_on_in_the_handler(tmp_path: Path) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    driver = Driver("java5", driver_command("java5"), tmp_path)
    current: list[str] = []

    async def consume(namesrv: str) -> None:
        consumer = PushConsumer(
            "billing", namesrv=namesrv, start="first", plugins={"enable": ["otel"], "otel": {"follow": "parent"}}
        )
        consumer.subscribe("orders")

        @consumer.on_message
        async def handle(message: ReceivedMessage) -> None:
            current.append(f"{trace.get_current_span().get_span_context().trace_id:032x}")

        async with consumer:
            with anyio.fail_after(60):
                while len(exporter.get_finished_spans()) < 3:  # noqa: ASYNC110 - spans end without telling anybody
                    await anyio.sleep(0.02)

    with VernierMQBroker(tmp_path) as broker:
        driver.run(
            "produce",
            namesrv=broker.namesrv,
            topic="orders",
            group="java",
            count=3,
            traceparent=f"00-{TRACE}-{SPAN}-01",
        )
        anyio.run(consume, broker.namesrv)

    assert current == [TRACE] * 3
    for span in exporter.get_finished_spans():
        assert span.parent is not None
        assert f"{span.parent.span_id:016x}" == SPAN
