"""Figures pushed by OTLP over HTTP, as a collector gets them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import anyio
import attrs
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)

from tests.metrics.test_metrics import METRICS, consume, scrape
from tests.plugins.peer import peer
from verniermq.contrib.metrics.otlp import OtlpPush
from verniermq.kernel import Broker, ConfigError
from verniermq.testing import ManualClock, running_broker

pytestmark = pytest.mark.anyio


@attrs.define(eq=False)
class Collector:
    """A receiver of OTLP/HTTP: takes what official clients send, decoded with the official schema."""

    requests: list[ExportMetricsServiceRequest] = attrs.Factory(list)
    headers: list[dict[str, str]] = attrs.Factory(list)
    status: int = 200
    url: str = ""

    def metrics(self) -> dict[str, Any]:
        """By name, of requests that are small enough to have each family once."""
        found: dict[str, Any] = {}
        for request in self.requests:
            for resource in request.resource_metrics:
                for scope in resource.scope_metrics:
                    for metric in scope.metrics:
                        found[metric.name] = metric
        return found


@pytest.fixture
def collector() -> Iterator[Collector]:
    state = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            state.headers.append({name.lower(): value for name, value in self.headers.items()})
            if state.status == 200:
                state.requests.append(ExportMetricsServiceRequest.FromString(body))
            answer = ExportMetricsServiceResponse().SerializeToString()
            self.send_response(state.status)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_port}/v1/metrics"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield state
    server.shutdown()
    thread.join()
    server.server_close()


def push_of(broker: Broker) -> OtlpPush:
    push: OtlpPush = broker.host.active["metrics"].instance.otlp
    return push


def attributes(point: Any) -> dict[str, str]:
    return {pair.key: pair.value.string_value for pair in point.attributes}


async def test_a_collector_gets_what_a_scrape_shows(tmp_path: Path, collector: Collector) -> None:
    settings = METRICS | {
        "plugins__metrics__otlp": collector.url, "plugins__metrics__otlp_headers": {"authorization": "Bearer x"},
    }  # fmt: skip
    async with running_broker(tmp_path, **settings) as broker, peer(broker.address) as client:
        for _ in range(3):
            await client.sent("orders", queue=0)
        await consume(client, "billing", "orders", 1)
        shown = await scrape(broker)
        await push_of(broker).push()

    found = collector.metrics()
    (messages,) = found["rocketmq_messages_in_total"].sum.data_points
    lags = found["rocketmq_consumer_lag_messages"].gauge.data_points
    lag = {attributes(point)["consumer_group"]: point for point in lags}
    (sizes,) = found["rocketmq_message_size"].histogram.data_points
    latency = found["rocketmq_consumer_lag_latency"]
    resource = attributes(collector.requests[0].resource_metrics[0].resource)
    assert collector.headers[0]["authorization"] == "Bearer x"
    assert resource["service.instance.id"] == "broker-a"
    assert messages.as_double == shown.one("rocketmq_messages_in_total", topic="orders") == 3.0
    assert attributes(messages).items() >= {"topic": "orders", "cluster": "DefaultCluster"}.items()
    assert found["rocketmq_messages_in_total"].sum.is_monotonic
    assert found["rocketmq_messages_in_total"].sum.aggregation_temporality == 2  # cumulative
    assert lag["billing"].as_double == 2.0
    assert (latency.unit, latency.description[:6]) == ("milliseconds", "Age of")
    assert (sizes.count, sum(sizes.bucket_counts)) == (3, 3)
    assert len(sizes.bucket_counts) == len(sizes.explicit_bounds) + 1
    assert "verniermq_ready" in found


async def test_figures_are_pushed_at_the_interval(tmp_path: Path, collector: Collector) -> None:
    clock = ManualClock()
    settings = METRICS | {"plugins__metrics__otlp": collector.url, "plugins__metrics__otlp_interval": "30s"}
    async with running_broker(tmp_path, clock=clock, **settings):
        assert collector.requests == []
        await clock.advance(31)
        with anyio.fail_after(30):
            while not collector.requests:  # noqa: ASYNC110
                await anyio.sleep(0.01)

    assert "rocketmq_topic_number" in collector.metrics()


async def test_many_figures_are_pushed_in_several_requests(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("verniermq.contrib.metrics.otlp.POINTS_PER_REQUEST", 10)
    settings = METRICS | {"plugins__metrics__otlp": collector.url}
    async with running_broker(tmp_path, **settings) as broker:
        for number in range(25):
            broker.topics.restore(f"topic{number}", 1)
            broker.offsets.commit("group", f"topic{number}", 0, 5)
        await push_of(broker).push()

    points = [
        attributes(point)["topic"]
        for request in collector.requests
        for metric in request.resource_metrics[0].scope_metrics[0].metrics
        if metric.name == "rocketmq_consumer_lag_messages"
        for point in metric.gauge.data_points
    ]
    assert len(collector.requests) > 3
    assert [topic for topic in points if topic.startswith("topic")] == [f"topic{number}" for number in range(25)]


async def test_a_collector_that_refuses_is_counted_and_nothing_else_happens(
    tmp_path: Path, collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    settings = METRICS | {"plugins__metrics__otlp": collector.url}
    async with running_broker(tmp_path, **settings) as broker, peer(broker.address) as client:
        collector.status = 400
        await push_of(broker).push()
        shown = await scrape(broker)
        collector.status = 200
        await push_of(broker).push()
        await client.sent("orders")

    assert shown.one("verniermq_otlp_failures_total") >= 1
    assert sum("the collector takes no metrics" in message for message in caplog.messages) == 1
    assert collector.requests != []


async def test_an_address_that_is_none_is_said_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"otlp = .* expected http:// or https://"):
        async with running_broker(tmp_path, **METRICS, plugins__metrics__otlp="127.0.0.1:4318"):
            pass
