"""What Apache's broker 5.x shows, by its names, kinds, labels and ranges; see docs/metrics.md for each.

Two units are wrong at Apache and kept, since dashboards rely on them; their help says so. What other plugins know
(transactions, pops) they register themselves, under Apache's names too.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from verniermq.contrib.metrics.lag import LABELS as LAG_LABELS
from verniermq.contrib.metrics.lag import LagTable
from verniermq.contrib.metrics.requests import Requests
from verniermq.contrib.metrics.traffic import Traffic, pairs
from verniermq.kernel import Connection, Context, Member, Registry, Sample
from verniermq.protocol.versions import version_name

PROCESSORS: Final = (
    "ack", "admin", "async_put", "client_manager", "consumer_manager", "heartbeat", "lite_pull", "pull",
    "query_message", "reply", "send", "transaction",
)  # fmt: skip
IN_LABELS: Final = ("is_system", "message_type", "topic")
OUT_LABELS: Final = ("consumer_group", "is_system", "topic")


class ApacheMetrics:
    def __init__(self, broker: Context, traffic: Traffic, requests: Requests, lag: LagTable) -> None:
        self._broker = broker
        self._traffic = traffic
        self._requests = requests
        self._lag = lag

    def register(self, registry: Registry) -> None:
        self._register_broker(registry)
        self._register_traffic(registry)
        self._register_groups(registry)
        self._register_store(registry)

    def _register_broker(self, registry: Registry) -> None:
        broker, requests = self._broker, self._requests
        registry.metric(
            "rocketmq_processor_watermark", "gauge",
            "Requests that wait for a thread; always 0, since one loop serves them all.",
            lambda: (((name,), 0) for name in PROCESSORS), ("processor",),
        )  # fmt: skip
        registry.metric(
            "rocketmq_broker_permission", "gauge", "6 when messages are taken and given, 4 when only given.",
            lambda: 4 if broker.store.refusals else 6,
        )  # fmt: skip
        registry.metric("rocketmq_topic_number", "gauge", "Topics.", lambda: len(broker.topics))
        registry.metric("rocketmq_consumer_group_number", "gauge", "Groups.", lambda: len(broker.groups.names()))
        registry.metric(
            "rocketmq_rpc_latency_milliseconds", "histogram", "How long requests took; without pulls that waited.",
            requests.as_apache, ("is_long_polling", "protocol_type", "request_code", "response_code", "result"),
        )  # fmt: skip
        registry.metric(
            "rocketmq_topic_create_execution_time_milliseconds", "histogram", "How long creating a topic took.",
            lambda: list(requests.topics_created.items()), ("invocation_status", "is_system"),
        )  # fmt: skip
        registry.metric(
            "rocketmq_consumer_group_create_execution_time_milliseconds", "histogram",
            "How long creating a group took.", lambda: list(requests.groups_created.items()), ("invocation_status",),
        )  # fmt: skip

    # --- messages --------------------------------------------------------------------------

    def _register_traffic(self, registry: Registry) -> None:
        traffic = self._traffic
        registry.metric(
            "rocketmq_messages_in_total", "counter", "Messages that producers sent, once each.",
            lambda: ((self._in(key), count.messages) for key, count in pairs(traffic.incoming)), IN_LABELS,
        )  # fmt: skip
        registry.metric(
            "rocketmq_throughput_in_total", "counter", "Bytes of them, as stored.",
            lambda: ((self._in(key), count.size) for key, count in pairs(traffic.incoming)), IN_LABELS,
        )  # fmt: skip
        registry.metric(
            "rocketmq_message_size", "histogram", "Bytes of one, as stored.",
            lambda: ((self._in(key), count.histogram) for key, count in pairs(traffic.incoming)), IN_LABELS,
        )  # fmt: skip
        registry.metric(
            "rocketmq_messages_out_total", "counter", "Messages that groups got; those tried again not among them.",
            lambda: ((self._out(key), count.messages) for key, count in pairs(traffic.outgoing)), OUT_LABELS,
        )  # fmt: skip
        registry.metric(
            "rocketmq_throughput_out_total", "counter", "Bytes of them.",
            lambda: ((self._out(key), count.size) for key, count in pairs(traffic.outgoing)), OUT_LABELS,
        )  # fmt: skip
        registry.metric(
            "rocketmq_send_to_dlq_messages_total", "counter", "Messages that became dead letters.",
            lambda: (((group, self._system(topic), topic), count) for (group, topic), count in pairs(traffic.dead)),
            OUT_LABELS,
        )  # fmt: skip

    def _in(self, key: tuple[str, str]) -> tuple[str, str, str]:
        topic, kind = key
        return self._system(topic), kind, topic

    def _out(self, key: tuple[str, str]) -> tuple[str, str, str]:
        topic, group = key
        return group, self._system(topic), topic

    def _system(self, topic: str) -> str:
        return "true" if self._broker.topics.is_system(topic) else "false"

    # --- groups ----------------------------------------------------------------------------

    def _register_groups(self, registry: Registry) -> None:
        lag = self._lag
        for name, help_text, figure in (
            ("rocketmq_consumer_lag_messages", "Not consumed yet, of each group, online or not.", "lag"),
            ("rocketmq_consumer_inflight_messages", "Handed out and not consumed yet.", "inflight"),
            ("rocketmq_consumer_ready_messages", "Not handed out yet.", "ready"),
            ("rocketmq_consumer_lag_latency_milliseconds", "Age of the oldest not consumed; 0 if none.", "lag_ms"),
            (
                "rocketmq_consumer_queueing_latency_milliseconds",
                "Age of the oldest not handed out; 0 if none.",
                "queueing_ms",
            ),
        ):
            registry.metric(name, "gauge", help_text, lag.samples(figure), LAG_LABELS)
        registry.metric(
            "rocketmq_producer_connections", "gauge", "Producers that are connected.", self._producers,
            ("language", "protocol_type", "version"),
        )  # fmt: skip
        registry.metric(
            "rocketmq_consumer_connections", "gauge", "Consumers that are connected.", self._consumers,
            ("consume_mode", "consumer_group", "is_system", "language", "protocol_type", "version"),
        )  # fmt: skip

    def _producers(self) -> Iterator[Sample]:
        seen: dict[Connection, Member] = {}
        for members in self._broker.clients.producers.values():
            seen.update(members)
        for (language, version), count in _kinds(seen.values()).items():
            yield (language, "remoting", version), count

    def _consumers(self) -> Iterator[Sample]:
        for group in list(self._broker.clients.consumers.values()):
            mode = "pull" if group.consume_type == "CONSUME_ACTIVELY" else "push"
            system = "true" if group.name.startswith("CID_RMQ_SYS_") else "false"
            for (language, version), count in _kinds(group.members.values()).items():
                yield (mode, group.name, system, language, "remoting", version), count

    # --- the store -------------------------------------------------------------------------

    def _register_store(self, registry: Registry) -> None:
        store, traffic = self._broker.store, self._traffic
        registry.metric(
            "rocketmq_storage_size_bytes", "gauge", "Bytes in use of the file system that the store lies in.",
            lambda: shutil.disk_usage(store.path).used,
        )  # fmt: skip
        registry.metric(
            "rocketmq_storage_flush_behind_bytes", "gauge", "Written to the log and not synced yet.",
            lambda: max(0, store.end - store.durable_end),
        )  # fmt: skip
        registry.metric(
            "rocketmq_storage_dispatch_behind_bytes", "gauge", "Written to the log and not in the queues yet.",
            lambda: max(0, store.end - store.dispatched_end),
        )  # fmt: skip
        registry.metric(
            "rocketmq_storage_message_reserve_time_milliseconds", "gauge", "Age of the oldest message.", self._oldest
        )
        registry.metric(
            "rocketmq_timer_enqueue_total", "counter", "Messages with a time that came, since the start.",
            lambda: (((topic,), count) for topic, count in pairs(traffic.timed_in)), ("topic",),
        )  # fmt: skip
        registry.metric(
            "rocketmq_timer_dequeue_total", "counter", "Messages with a time that were delivered, since the start.",
            lambda: (((topic,), count) for topic, count in pairs(traffic.timed_out)), ("topic",),
        )  # fmt: skip
        registry.metric(
            "rocketmq_timing_messages", "gauge", "Messages that came since the start and wait for their time.",
            traffic.timing, ("topic",),
        )  # fmt: skip
        registry.metric(
            "rocketmq_delay_message_latency_seconds", "histogram", "How long a delay was asked for.",
            lambda: (((topic,), histogram) for topic, histogram in pairs(traffic.delays)), ("topic",),
        )  # fmt: skip

    def _oldest(self) -> Iterable[Sample]:
        store = self._broker.store
        oldest = store.message_at(store.start) if store.end > store.start else None
        return [] if oldest is None else [((), max(0, self._broker.clock.now_ms() - oldest.store_timestamp))]


def _kinds(members: Iterable[Member]) -> Counter[tuple[str, str]]:
    return Counter((member.language.lower(), version_name(member.version).lower()) for member in members)
