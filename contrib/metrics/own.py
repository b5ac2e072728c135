"""What Apache's broker has no name for: whether the broker is ready, its plugins, its loop, and finer times."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator

from verniermq.contrib.metrics.lag import LagTable
from verniermq.contrib.metrics.requests import Requests
from verniermq.kernel import Context, Registry, Sample


class OwnMetrics:
    def __init__(self, broker: Context, requests: Requests, lag: LagTable) -> None:
        self._broker = broker
        self._requests = requests
        self._lag = lag
        self.collected = 0.0
        """Seconds that the last scrape took."""
        self.failures = 0
        """Families that could not be written."""

    def register(self, registry: Registry) -> None:
        broker = self._broker
        registry.metric("verniermq_ready", "gauge", "Whether clients should come, 1 or 0.", self._ready)
        registry.metric(
            "verniermq_check_ready",
            "gauge",
            "Each condition of being ready, 1 or 0.",
            self._checks,
            ("check", "plugin"),
        )
        registry.metric(
            "verniermq_request_seconds", "histogram", "How long requests took; without pulls that waited.",
            self._requests.in_seconds, ("request_code", "response_code"),
        )  # fmt: skip
        registry.metric(
            "verniermq_group_online", "gauge", "Members of each group that has offsets or members.", self._online,
            ("consumer_group",),
        )  # fmt: skip
        registry.metric(
            "verniermq_lag_estimated", "gauge",
            "Of groups with a filter: 1 if not all that waits was looked at, 0 if it was.", self._lag.estimated,
            ("consumer_group", "topic"),
        )  # fmt: skip
        registry.metric(
            "verniermq_disk_free_bytes", "gauge", "Bytes free on the file system that the store lies in.",
            lambda: shutil.disk_usage(broker.store.path).free,
        )  # fmt: skip
        registry.metric("verniermq_connections", "gauge", "Open connections.", lambda: broker.connections)
        registry.metric("verniermq_waiting_pulls", "gauge", "Pulls that wait.", lambda: len(broker.held_pulls))
        registry.metric(
            "verniermq_process_cpu_seconds_total", "counter", "Time of the processor, which one loop can use fully.",
            lambda: time.process_time(),
        )  # fmt: skip
        registry.metric(
            "verniermq_table_write_failures_total", "counter", "How often a table could not be written.",
            lambda: broker.table_failures,
        )  # fmt: skip
        registry.metric(
            "verniermq_plugin_failures_total", "counter", "Failures of plugins, by hook; services and requests too.",
            self._failures, ("hook", "plugin"),
        )  # fmt: skip
        registry.metric(
            "verniermq_plugin_seconds_total", "counter", "Time spent in plugins, by hook; requests too.",
            self._seconds, ("hook", "plugin"),
        )  # fmt: skip
        registry.metric(
            "verniermq_plugin_active", "gauge", "1, or 0 for a plugin that was switched off.",
            lambda: [((plugin.name,), plugin.state == "active") for plugin in broker.hooks.active.values()],
            ("plugin",),
        )  # fmt: skip
        registry.metric(
            "verniermq_scrape_failures_total", "counter", "Metrics that a plugin failed to give.", lambda: self.failures
        )
        registry.metric(
            "verniermq_scrape_seconds", "gauge", "How long the scrape before this one took.", lambda: self.collected
        )

    def _checks(self) -> Iterator[Sample]:
        for check in self._broker.checks:
            try:
                why = check.why_not()
            except Exception as error:
                why = str(error)
            yield (check.name, check.plugin), why is None

    def _ready(self) -> float:
        return float(all(ready for _, ready in self._checks()))

    def _online(self) -> Iterator[Sample]:
        consumers = self._broker.clients.consumers
        for group in dict.fromkeys([*self._lag.groups(), *consumers]):
            live = consumers.get(group)
            yield (group,), 0 if live is None else len(live.members)

    def _failures(self) -> Iterator[Sample]:
        for plugin in self._broker.hooks.active.values():
            for hook, call in plugin.calls.items():
                yield (hook, plugin.name), call.failures
            yield ("service", plugin.name), plugin.service_failures
            yield ("request", plugin.name), plugin.served.failures

    def _seconds(self) -> Iterator[Sample]:
        for plugin in self._broker.hooks.active.values():
            for hook, call in plugin.calls.items():
                yield (hook, plugin.name), call.nanoseconds / 1e9
            yield ("request", plugin.name), plugin.served.nanoseconds / 1e9
