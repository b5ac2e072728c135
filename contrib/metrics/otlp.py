"""The same figures by OTLP over HTTP, pushed to a collector at an interval (``pip install 'verniermq[otlp]'``).

Families become instruments by the names that Apache's broker pushes: the unit is said apart instead of in the name.
Figures are read on the loop in steps, as for a scrape; encoding and sending happen in a thread, so many figures at a
time. A collector that is away costs a line in the log and ``verniermq_otlp_failures_total``, and nothing else.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import anyio.to_thread
from anyio.lowlevel import checkpoint
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    HistogramDataPoint,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.metrics.export import Histogram as HistogramData
from opentelemetry.sdk.metrics.export import Metric as Instrument
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from verniermq.kernel import Context, Histogram, Metric

logger = logging.getLogger(__name__)

POINTS_PER_REQUEST: Final = 5000
POINTS_PER_STEP: Final = 64
TIMEOUT_SECONDS: Final = 10.0
STEP_SECONDS: Final = 0.003
UNITS: Final = ("milliseconds", "seconds", "bytes")

Families = Callable[[], Sequence[Metric]]


class OtlpPush:
    """
    Args:
        look: brings up to date what several families share, in steps
        constant: the labels that all figures of a family have
    """

    def __init__(
        self,
        broker: Context,
        endpoint: str,
        headers: Mapping[str, str],
        interval: float,
        *,
        look: Callable[[], Iterator[None]],
        families: Families,
        constant: Callable[[str], Mapping[str, str]],
        most: int,
    ) -> None:
        self._broker = broker
        self._interval = interval
        self._look = look
        self._families = families
        self._constant = constant
        self._most = most
        self._exporter = OTLPMetricExporter(endpoint=endpoint, headers=dict(headers), timeout=TIMEOUT_SECONDS)
        self._endpoint = endpoint
        self._started = time.time_ns()
        self._resource = Resource({
            "service.name": "verniermq", "service.namespace": broker.cluster, "service.instance.id": broker.name,
        })  # fmt: skip
        self.failures = 0
        """Requests that the collector did not take."""
        self._is_well = True

    async def run(self) -> None:
        """Push at every interval, until the broker stops."""
        while True:
            await self._broker.clock.sleep(self._interval)
            await self.push()

    async def push(self) -> None:
        """Send all figures, as they are now."""
        self._broker.catch_up()
        waiting: list[Instrument] = []
        points = 0
        until = time.perf_counter() + STEP_SECONDS
        for instrument in self._instruments():
            if instrument is not None:
                waiting.append(instrument)
                points += len(instrument.data.data_points)
            if points >= POINTS_PER_REQUEST:
                await self._send(waiting)
                waiting, points = [], 0
            if time.perf_counter() > until:
                await checkpoint()
                until = time.perf_counter() + STEP_SECONDS
        if waiting:
            await self._send(waiting)

    async def _send(self, instruments: list[Instrument]) -> None:
        scope = ScopeMetrics(InstrumentationScope("broker-meter"), instruments, "")
        data = MetricsData([ResourceMetrics(self._resource, [scope], "")])
        result = await anyio.to_thread.run_sync(self._exporter.export, data, abandon_on_cancel=True)
        is_well = result is MetricExportResult.SUCCESS
        self.failures += not is_well
        if is_well != self._is_well:
            self._is_well = is_well
            if is_well:
                logger.info("the collector takes metrics again endpoint=%s", self._endpoint)
            else:
                logger.warning("the collector takes no metrics, trying again endpoint=%s", self._endpoint)

    # --- figures ---------------------------------------------------------------------------

    def _instruments(self) -> Iterator[Instrument | None]:
        """The families in parts, with ``None`` between them where nothing is ready yet."""
        for _ in self._look():
            yield None
        for metric in self._families():
            points: list[Any] = []
            try:
                for count, (values, value) in enumerate(metric.samples()):
                    if count >= self._most:
                        break
                    points.append(self._point(metric, values, value))
                    if len(points) >= POINTS_PER_REQUEST:
                        yield self._instrument(metric, points)
                        points = []
                    elif count % POINTS_PER_STEP == 0:
                        yield None
            except Exception:
                logger.exception("metric failed metric=%s plugin=%s", metric.name, metric.plugin)
            if points:
                yield self._instrument(metric, points)

    def _point(self, metric: Metric, values: tuple[str, ...], value: float | Histogram) -> Any:
        attributes = {**self._constant(metric.name), **dict(zip(metric.labels, values, strict=True))}
        now = time.time_ns()
        if isinstance(value, Histogram):
            return HistogramDataPoint(
                attributes, self._started, now, count=sum(value.counts), sum=value.sum,
                bucket_counts=tuple(value.counts), explicit_bounds=tuple(map(float, value.bounds)),
                min=None, max=None,  # type: ignore[arg-type]  # they are not kept, and OTLP does not need them
            )  # fmt: skip
        return NumberDataPoint(attributes, self._started, now, value=float(value))

    def _instrument(self, metric: Metric, points: list[Any]) -> Instrument:
        name, unit = metric.name, ""
        if name.startswith("rocketmq_"):
            unit = next((unit for unit in UNITS if name.endswith(f"_{unit}")), "")
            name = name.removesuffix(f"_{unit}") if unit else name
        data: Any
        if metric.kind == "histogram":
            data = HistogramData(points, AggregationTemporality.CUMULATIVE)
        elif metric.kind == "counter":
            data = Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=True)
        else:
            data = Gauge(points)
        return Instrument(name, metric.help, unit, data)
