"""Metrics for Prometheus, at ``/metrics`` on port 5557: Apache's names, and our own.

::

    [plugins]
    enable = ["default", "http", "metrics"]

Figures are taken from the broker's own tables when somebody asks, a few milliseconds at a time; only what would be
forgotten otherwise is counted as it happens. So a deleted topic or group is gone from the next scrape on.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, ClassVar, Final

import attrs
from anyio.lowlevel import checkpoint

from verniermq.contrib.metrics.apache import ApacheMetrics
from verniermq.contrib.metrics.exporter import ExporterMetrics
from verniermq.contrib.metrics.lag import LagTable
from verniermq.contrib.metrics.own import OwnMetrics
from verniermq.contrib.metrics.requests import Requests
from verniermq.contrib.metrics.text import CONTENT_TYPE, Labels, Texts, family
from verniermq.contrib.metrics.traffic import Traffic
from verniermq.kernel import (
    Context,
    Declaration,
    DispatchEvent,
    Duration,
    InvalidParameter,
    Metric,
    PageAnswer,
    PluginError,
    Registry,
    TopicConfig,
    gathered,
    hookimpl,
    parse_duration,
    setting,
)

if TYPE_CHECKING:
    from verniermq.contrib.metrics.otlp import OtlpPush

logger = logging.getLogger(__name__)

STEP_SECONDS: Final = 0.002
"""How long the loop is held at a time."""
NEW_ENTRIES: Final = 2048
"""The first scrape makes what is kept for the next ones. The garbage collector looks through new objects in one go, and
is called after so many entries: with ten thousands of them it would take several milliseconds."""

STORE_NAMES: Final = ("rocketmq_storage_", "rocketmq_timer_", "rocketmq_timing_", "rocketmq_delay_")
"""At Apache these carry where the store lies, too."""

NAMES: Final = ("apache", "verniermq", "exporter")


def _known(names: tuple[str, ...]) -> str | None:
    return None if set(names) <= set(NAMES) else f"some of {', '.join(NAMES)}"


def _url(text: str) -> str | None:
    return None if not text or text.startswith(("http://", "https://")) else "http:// or https:// and an address"


@attrs.frozen
class Config:
    """``[plugins.metrics]``"""

    listen: str = setting("127.0.0.1:5557", 'Where /metrics is served; "" serves it where http serves its pages.')
    names: tuple[str, ...] = setting(
        ("apache", "verniermq"), "Whose names: apache, verniermq, exporter (rocketmq-exporter's).", check=_known
    )
    requests: bool = setting(True, "Whether requests are timed.")
    labels: Mapping[str, str] = setting({}, "Labels for everything: name → value.")
    max_series: int = setting(50000, "Figures of one family at most, as at Apache.", at_least=1)
    suffix: bool = setting(True, "Whether units are part of Apache's names, as from 5.1.4 on.")
    otlp: str = setting("", "Pushes figures here too, by OTLP over HTTP: http://host:4318/v1/metrics.", check=_url)
    otlp_interval: Duration = setting(parse_duration("1m"), "How often they are pushed.", at_least=1.0)
    otlp_headers: Mapping[str, str] = setting({}, "Header fields of these requests: name → value.", secret=True)


@attrs.define(eq=False)
class Plugin:
    declaration: ClassVar = Declaration(
        api=1, config=Config, summary="Metrics for Prometheus, by Apache's names and our own.", needs=("http",)
    )
    config: Config
    broker: Context
    traffic: Traffic = attrs.field(factory=Traffic, init=False)
    requests: Requests = attrs.field(factory=Requests, init=False)
    lag: LagTable = attrs.field(init=False)
    otlp: OtlpPush | None = attrs.field(default=None, init=False)
    _own: OwnMetrics = attrs.field(init=False)
    _exporter: ExporterMetrics | None = attrs.field(default=None, init=False)
    _texts: dict[Labels, Texts] = attrs.field(factory=dict, init=False)
    """The texts of labels, by what labels those are."""
    _counts: bool = attrs.field(default=False, init=False)
    """Not while the log is read after a crash: what comes then was counted before."""

    def __attrs_post_init__(self) -> None:
        self.lag = LagTable(self.broker)
        self._own = OwnMetrics(self.broker, self.requests, self.lag)
        if self.config.otlp:
            try:
                import verniermq.contrib.metrics.otlp  # noqa: F401
            except ImportError as error:
                raise PluginError(
                    f"otlp needs OpenTelemetry's exporter ({error}): pip install 'verniermq[otlp]'", "metrics"
                ) from error

    def setup(self, registry: Registry) -> None:
        names = self.config.names
        if "apache" in names:
            ApacheMetrics(self.broker, self.traffic, self.requests, self.lag).register(registry)
        if "verniermq" in names:
            self._own.register(registry)
        if "exporter" in names:
            self._exporter = ExporterMetrics(self.broker, self.traffic, self.lag)
            self._exporter.register(registry)
        if self.config.otlp:
            self._push(registry)
        registry.page("/metrics", self.page, listen=self.config.listen)
        registry.page("/metrics/detailed", self.detailed, listen=self.config.listen)

    def _push(self, registry: Registry) -> None:
        from verniermq.contrib.metrics.otlp import OtlpPush

        self.otlp = OtlpPush(
            self.broker, self.config.otlp, self.config.otlp_headers, self.config.otlp_interval,
            look=self._look, families=self._families, constant=self._constant, most=self.config.max_series,
        )  # fmt: skip
        push = self.otlp
        registry.service("otlp", push.run)
        registry.metric(
            "verniermq_otlp_failures_total", "counter", "Pushes that the collector did not take.",
            lambda: push.failures,
        )  # fmt: skip

    # --- counting --------------------------------------------------------------------------

    @hookimpl
    def store_opened(self) -> None:
        self._counts = True

    @hookimpl
    def broker_started(self) -> None:
        if self.config.requests:
            self.requests.watch(self.broker)

    @hookimpl
    @gathered
    def messages_dispatched(self, events: Sequence[DispatchEvent]) -> None:
        if self._counts:
            self.traffic.dispatched(events)

    @hookimpl
    def messages_pulled(self, group: str, topic: str, count: int, size: int) -> None:
        self.traffic.pulled(group, topic, count, size)

    @hookimpl
    def topics_changed(self, changed: Sequence[TopicConfig], deleted: Sequence[str]) -> None:
        if deleted:
            self.broker.catch_up()
            self.traffic.forget(deleted)
            self.lag.forget(deleted)

    # --- what is asked ---------------------------------------------------------------------

    async def page(self, query: Mapping[str, str]) -> PageAnswer:
        return await self._written(self._families())

    async def detailed(self, query: Mapping[str, str]) -> PageAnswer:
        """Only families whose name fits ``family``, and each queue of the groups that fit ``group`` and ``topic``."""
        unknown = set(query) - {"family", "group", "topic"}
        if unknown:
            raise InvalidParameter(f"{sorted(unknown)[0]!r} is no filter; known are family, group and topic")
        wanted = query.get("family", "*")
        groups, topics = query.get("group", "*"), query.get("topic", "*")
        families = [metric for metric in self._families() if fnmatchcase(metric.name, wanted)]
        queues = [metric for metric in self._queue_families(groups, topics) if fnmatchcase(metric.name, wanted)]
        return await self._written([*families, *queues])

    def _look(self) -> Iterator[None]:
        """Work out what several families show, in steps."""
        yield from self.lag.look()
        if self._exporter is not None:
            yield from self._exporter.look()

    def _families(self) -> list[Metric]:
        """By name; of two with the same name, the one of the first plugin."""
        found: dict[str, Metric] = {}
        for metric in self.broker.metrics:
            found.setdefault(metric.name, metric)
        return [found[name] for name in sorted(found)]

    def _queue_families(self, groups: str, topics: str) -> Iterator[Metric]:
        def rows(column: int) -> Iterator[tuple[tuple[str, str, str], float]]:
            for row in self.lag.rows:
                group, _, _, topic = row.labels
                if fnmatchcase(group, groups) and fnmatchcase(topic, topics):
                    for queue_id, place, end, age in self.lag.queues(group, topic):
                        yield (group, str(queue_id), topic), (end - place, age)[column]

        labels = ("consumer_group", "queue_id", "topic")
        yield Metric(
            "metrics", "verniermq_queue_lag_messages", "gauge", "Not consumed yet, by queue.", labels, lambda: rows(0)
        )
        yield Metric(
            "metrics", "verniermq_queue_lag_milliseconds", "gauge", "Age of the oldest not consumed, by queue.", labels,
            lambda: rows(1),
        )  # fmt: skip

    async def _written(self, families: Sequence[Metric]) -> PageAnswer:
        """The text of some families, worked out in steps between which others have their turns."""
        started = time.perf_counter()
        self.broker.catch_up()
        pieces: list[bytes] = []

        def work() -> Iterator[None]:
            yield from self._look()
            for metric in families:
                yield from self._family(metric, pieces)
            pieces.append(b"# TYPE target_info gauge\ntarget_info 1\n")
            for labels, known in list(self._texts.items()):
                if known.outgrown():
                    self._texts.pop(labels, None)
                    yield from known.emptied()

        kept = self._count_kept()
        until = time.perf_counter() + STEP_SECONDS
        for _ in work():
            if time.perf_counter() > until:
                await checkpoint()
                if self._count_kept() > kept + NEW_ENTRIES:
                    kept = self._count_kept()
                    gc.collect(1)
                    await checkpoint()
                until = time.perf_counter() + STEP_SECONDS
        self._own.collected = time.perf_counter() - started
        return PageAnswer(pieces, CONTENT_TYPE)

    def _count_kept(self) -> int:
        """How many entries were made that live on."""
        return self.lag.made + sum(map(len, self._texts.values()))

    def _family(self, metric: Metric, pieces: list[bytes]) -> Iterator[None]:
        """Write one family; what a plugin raises costs the rest of this one and no other."""
        labels = Labels.of(metric.labels, self._constant(metric.name))
        known = self._texts.get(labels)
        if known is None:
            known = self._texts[labels] = Texts(labels)
        try:
            for text in family(self._renamed(metric), known, self.config.max_series):
                if text is not None:
                    pieces.append(text.encode())
                yield
        except Exception:
            logger.exception("metric failed metric=%s plugin=%s", metric.name, metric.plugin)
            self._own.failures += 1

    def _renamed(self, metric: Metric) -> Metric:
        if self.config.suffix or not metric.name.startswith("rocketmq_"):
            return metric
        name = metric.name
        for unit in ("_milliseconds", "_seconds", "_bytes"):
            name = name.removesuffix(unit)
        return metric._replace(name=name)

    def _constant(self, name: str) -> dict[str, str]:
        labels = dict(self.config.labels)
        if name.startswith(ExporterMetrics.PREFIXES) or name in ExporterMetrics.FAMILIES:
            return labels
        labels |= {"cluster": self.broker.cluster, "node_id": self.broker.name, "node_type": "broker"}
        if name.startswith("rocketmq_"):
            labels["otel_scope_name"] = "broker-meter"
        if name.startswith(STORE_NAMES):
            labels |= {"storage_medium": "disk", "storage_type": "local"}
        return labels
