"""The names of rocketmq-exporter, for dashboards that were made for it; on request, since some labels change often.

The exporter asks brokers with the requests of ``mqadmin brokerStatus`` once a minute; the same figures are shown here,
all gauges as there. Six families of figures that only clients know are there without figures.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Final, NamedTuple

from verniermq.contrib.metrics.lag import Lag, LagTable
from verniermq.contrib.metrics.traffic import Traffic, pairs
from verniermq.kernel import DEAD_LETTER_PREFIX, RETRY_PREFIX, Context, Registry, Sample

BROKER: Final = ("cluster", "brokerIP", "broker")
TOPIC: Final = ("cluster", "broker", "topic")
GROUP: Final = ("cluster", "broker", "group")
BOTH: Final = ("cluster", "broker", "topic", "group")
PROGRESS: Final = ("group", "topic", "countOfOnlineConsumers", "msgModel")
CLIENT: Final = ("clientAddr", "clientId", "group", "topic")
RUNTIME: Final = ("cluster", "brokerIP", "brokerHost", "des", "boottime", "broker_version")

PLAIN: Final = {
    "msg_put_total_today_now": ("msgPutTotalTodayNow", "Messages sent since the start, without system topics."),
    "msg_gettotal_today_now": ("msgGetTotalTodayNow", "Messages handed out since the start, without system topics."),
    "msg_puttotal_todaymorning": ("msgPutTotalTodayMorning", "Messages sent until last midnight; 0 before the start."),
    "msg_gettotal_todaymorning": (
        "msgGetTotalTodayMorning",
        "Messages handed out until last midnight; 0 before the start.",
    ),
    "msg_puttotal_yesterdaymorning": (
        "msgPutTotalYesterdayMorning",
        "Messages sent until the midnight before; 0 before the start.",
    ),
    "msg_gettotal_yesterdaymorning": (
        "msgGetTotalYesterdayMorning",
        "Messages handed out until the midnight before; 0 before the start.",
    ),
    "dispatch_behind_bytes": ("dispatchBehindBytes", "Bytes of the log that are not in queues."),
    "put_message_size_total": ("putMessageSizeTotal", "Bytes of all records since the start."),
    "put_message_average_size": ("putMessageAverageSize", "Bytes of a record, on average since the start."),
    "putmessage_times_total": ("putMessageTimesTotal", "Records since the start."),
    "putmessage_entire_time_max": ("putMessageEntireTimeMax", "Milliseconds: the longest put since the start."),
    "getmessage_entire_time_max": (
        "getMessageEntireTimeMax",
        "Milliseconds: the longest that a pull waited for the disk.",
    ),
    "pagecache_lock_time_mills": ("pageCacheLockTimeMills", "Always 0: there is no such lock."),
    "commitlog_disk_ratio": ("commitLogDiskRatio", "How full the disk is, from 0 to 1."),
    "consumequeue_disk_ratio": ("consumeQueueDiskRatio", "How full the disk is, from 0 to 1."),
    "commitlog_maxoffset": ("commitLogMaxOffset", "Where the log ends."),
    "commitlog_minoffset": ("commitLogMinOffset", "Where the log begins."),
    "remain_howmanydata_toflush": ("remainHowManyDataToFlush", "Bytes of the log that are not on the disk."),
    "remain_transientstore_buffer_numbs": ("remainTransientStoreBufferNumbs", "Always 0: there is no transient store."),
    "earliest_message_timestamp": (
        "earliestMessageTimeStamp",
        "Milliseconds since 1970: when the oldest message was stored; -1 if none.",
    ),
    "start_accept_sendrequest_time": (
        "startAcceptSendRequestTimeStamp",
        "Milliseconds since 1970: when it began to take messages.",
    ),
    "dispatch_maxbuffer": ("dispatchMaxBuffer", "The most messages that went into their queues in one turn."),
    "put_latency_99": ("putLatency99", "Milliseconds that 99 % of the last minute's puts took at most."),
    "put_latency_999": ("putLatency999", "Milliseconds that 99.9 % of the last minute's puts took at most."),
    "query_threadpool_queue_capacity": ("queryThreadPoolQueueCapacity", "Always 0: no threads."),
    "pull_threadpoolqueue_capacity": ("pullThreadPoolQueueCapacity", "Always 0: no threads."),
    "send_threadpoolqueue_capacity": ("sendThreadPoolQueueCapacity", "Always 0: no threads."),
    "send_threadpool_queue_size": ("sendThreadPoolQueueSize", "Always 0: no threads."),
    "pull_threadpoolqueue_size": ("pullThreadPoolQueueSize", "Always 0: no threads."),
    "query_threadpoolqueue_size": ("queryThreadPoolQueueSize", "Always 0: no threads."),
    "pull_threadpoolqueue_headwait_timemills": ("pullThreadPoolQueueHeadWaitTimeMills", "Always 0: no threads."),
    "query_threadpoolqueue_headwait_timemills": ("queryThreadPoolQueueHeadWaitTimeMills", "Always 0: no threads."),
    "send_threadpoolqueue_headwait_timemills": ("sendThreadPoolQueueHeadWaitTimeMills", "Always 0: no threads."),
}
"""The end of the exporter's name → the broker's own, and what it means."""
RATES: Final = {
    "getfound": ("getFoundTps", "Pulls a second that found something"),
    "gettotal": ("getTotalTps", "Pulls a second"),
    "gettransfered": ("getTransferredTps", "Messages out, a second"),
    "getmiss": ("getMissTps", "Pulls a second that found nothing"),
    "put": ("putTps", "Messages in, a second"),
}
SPANS: Final = (10, 60, 600)
TIMES: Final = (
    "0ms", "0to10ms", "10to50ms", "50to100ms", "100to200ms", "200to500ms", "500to1s", "1to2s", "2to3s", "3to4s",
    "4to5s", "5to10s", "10stomore",
)  # fmt: skip
"""How long puts took, in the order of ``putMessageDistributeTime``."""
CAPACITIES: Final = {
    "commitlogdir_capacity_total": "Bytes of the disk.", "commitlogdir_capacity_free": "Bytes free on the disk.",
}  # fmt: skip
"""In the order of ``commitLogDirCapacity``."""
_FROM_CLIENTS: Final = (
    "rocketmq_client_consume_fail_msg_count", "rocketmq_client_consume_fail_msg_tps",
    "rocketmq_client_consume_ok_msg_tps", "rocketmq_client_consume_rt", "rocketmq_client_consumer_pull_rt",
    "rocketmq_client_consumer_pull_tps",
)  # fmt: skip
SAMPLE_SECONDS: Final = 10.0
SAMPLES: Final = 7
COUNTS_PER_STEP: Final = 256
_NUMBER: Final = re.compile(r"-?\d+(?:\.\d+)?")


def _runtime_names() -> Iterator[tuple[str, str]]:
    """What is told of the broker itself, and what it means."""
    for name, (_, meaning) in PLAIN.items():
        yield name, meaning
    yield from CAPACITIES.items()
    for name, (_, meaning) in RATES.items():
        for span in SPANS:
            yield f"{name}_tps{span}", f"{meaning}, over about {span} s."
    for name in TIMES:
        yield name, "Messages of the last minute whose put took so long."


class Counts(NamedTuple):
    """What was counted up to some time."""

    taken_at: float
    of: Mapping[str, Mapping[Any, int]]
    """``in`` and ``in bytes`` by topic, ``out`` and ``out bytes`` by topic and group."""


class ExporterMetrics:
    PREFIXES: ClassVar = ("rocketmq_brokeruntime_", "rocketmq_client_")
    FAMILIES: ClassVar = frozenset(
        {
            "rocketmq_broker_tps", "rocketmq_broker_qps", "rocketmq_broker_commitlog_diff", "rocketmq_producer_tps",
            "rocketmq_producer_message_size", "rocketmq_producer_offset", "rocketmq_topic_retry_offset",
            "rocketmq_producer_count", "rocketmq_topic_dlq_offset", "rocketmq_consumer_tps",
            "rocketmq_group_consume_tps", "rocketmq_consumer_offset", "rocketmq_group_consume_total_offset",
            "rocketmq_consumer_message_size", "rocketmq_send_back_nums", "rocketmq_group_get_latency_by_storetime",
            "rocketmq_group_diff", "rocketmq_group_retrydiff", "rocketmq_group_dlqdiff", "rocketmq_group_count",
        }
    )  # fmt: skip
    """Their labels are their own: nothing is added."""

    def __init__(self, broker: Context, traffic: Traffic, lag: LagTable) -> None:
        self._broker = broker
        self._traffic = traffic
        self._lag = lag
        self._now = Counts(0.0, {})
        self._samples: deque[Counts] = deque(maxlen=SAMPLES)

    def register(self, registry: Registry) -> None:
        def gauge(name: str, help_text: str, labels: tuple[str, ...], collect: Callable[[], Iterator[Sample]]) -> None:
            registry.metric(name, "gauge", help_text, collect, labels)

        for name, help_text in _runtime_names():
            shown = f"pmdt_{name}" if name in TIMES else name
            gauge(f"rocketmq_brokeruntime_{shown}", help_text, RUNTIME, self._runtime(name))
        gauge("rocketmq_broker_tps", "Messages in, a second.", BROKER, lambda: self._of_broker("put_tps10"))
        gauge("rocketmq_broker_qps", "Messages out, a second.", BROKER, lambda: self._of_broker("gettransfered_tps10"))
        gauge("rocketmq_broker_commitlog_diff", "Bytes that the slave lacks.", BROKER, lambda: self._of_broker(""))
        gauge("rocketmq_producer_tps", "Messages in, a second.", TOPIC, lambda: self._topics("in"))
        gauge("rocketmq_producer_message_size", "Bytes in, a second.", TOPIC, lambda: self._topics("in bytes"))
        gauge("rocketmq_producer_offset", "Messages ever stored.", TOPIC, lambda: self._ends(""))
        gauge("rocketmq_topic_retry_offset", "Messages ever tried again.", TOPIC, lambda: self._ends(RETRY_PREFIX))
        gauge("rocketmq_topic_dlq_offset", "Dead letters ever.", GROUP, lambda: self._ends(DEAD_LETTER_PREFIX))
        gauge("rocketmq_producer_count", "Producers that are connected.", GROUP, self._producers)
        for name in ("rocketmq_consumer_tps", "rocketmq_group_consume_tps"):
            gauge(name, "Messages out, a second.", BOTH, lambda: self._pairs("out"))
        gauge("rocketmq_consumer_message_size", "Bytes out, a second.", BOTH, lambda: self._pairs("out bytes"))
        for name in ("rocketmq_consumer_offset", "rocketmq_group_consume_total_offset"):
            gauge(name, "Messages ever consumed.", BOTH, self._consumed)
        gauge("rocketmq_send_back_nums", "Dead letters and what is tried again.", BOTH, self._sent_back)
        gauge(
            "rocketmq_group_get_latency_by_storetime", "Milliseconds: age of the oldest not consumed.", BOTH,
            lambda: (((*self._here(), row.labels[3], row.labels[0]), row.lag_ms) for row in self._lag.rows),
        )  # fmt: skip
        gauge("rocketmq_group_diff", "Not consumed yet.", PROGRESS, self._behind)
        gauge("rocketmq_group_retrydiff", "Not tried again yet.", PROGRESS, self._behind_in_retries)
        gauge("rocketmq_group_dlqdiff", "Dead letters ever.", PROGRESS, self._dead)
        gauge("rocketmq_group_count", "1 for each connection.", ("caddr", "localaddr", "group"), self._connections)
        for name in _FROM_CLIENTS:
            gauge(name, "Only clients know it: no figures.", CLIENT, lambda: iter(()))

    # --- the broker ------------------------------------------------------------------------

    def _here(self) -> tuple[str, str]:
        return self._broker.cluster, self._broker.name

    def _table(self) -> Mapping[str, str]:
        """What the plugin ``admin`` knows; nothing without it."""
        for page in self._broker.pages:
            if (page.plugin, page.path) == ("admin", "/runtime"):
                table = page.serve({})
                if isinstance(table, Mapping):
                    return table
        return {}

    def _figure(self, table: Mapping[str, str], name: str) -> float | None:
        if name in PLAIN:
            return _nth(table.get(PLAIN[name][0], ""), 0)
        if name in CAPACITIES:
            return _nth(table.get("commitLogDirCapacity", ""), list(CAPACITIES).index(name), 2**20)
        if name in TIMES:
            parts = [part.rpartition(":")[2] for part in table.get("putMessageDistributeTime", "").split()]
            return _nth(" ".join(parts), TIMES.index(name))
        rate, _, span = name.partition("_tps")
        return _nth(table.get(RATES[rate][0], ""), SPANS.index(int(span)))

    def _runtime(self, name: str) -> Callable[[], Iterator[Sample]]:
        def collect() -> Iterator[Sample]:
            table = self._table()
            figure = self._figure(table, name)
            if figure is not None:
                broker = self._broker
                labels = (
                    broker.cluster, broker.address, broker.host, broker.name, table.get("bootTimestamp", ""),
                    table.get("brokerVersionDesc", ""),
                )  # fmt: skip
                yield labels, figure

        return collect

    def _of_broker(self, name: str) -> Iterator[Sample]:
        figure = self._figure(self._table(), name) if name else 0.0
        yield (self._broker.cluster, self._broker.address, self._broker.name), figure or 0.0

    # --- rates -----------------------------------------------------------------------------

    def look(self) -> Iterator[None]:
        """Take the counts from which rates are worked out, in steps; ``look`` of the lag comes before."""
        now: dict[str, dict[Any, int]] = {"in": {}, "in bytes": {}, "out": {}, "out bytes": {}}
        messages, size = now["in"], now["in bytes"]
        for number, ((topic, _), came) in enumerate(pairs(self._traffic.incoming)):
            messages[topic] = messages.get(topic, 0) + came.messages
            size[topic] = size.get(topic, 0) + came.size
            if number % COUNTS_PER_STEP == 0:
                yield
        for number, (place, went) in enumerate(pairs(self._traffic.outgoing)):
            now["out"][place] = went.messages
            now["out bytes"][place] = went.size
            if number % COUNTS_PER_STEP == 0:
                yield
        self._now = Counts(self._broker.clock.monotonic(), now)
        if not self._samples or self._now.taken_at - self._samples[-1].taken_at >= SAMPLE_SECONDS:
            self._samples.append(self._now)

    def _rates(self, what: str) -> Iterator[tuple[Any, float]]:
        """A second, since a sample of about a minute ago; samples are taken when somebody asks."""
        if not self._samples:
            return
        before = self._samples[0].of[what]
        seconds = max(self._now.taken_at - self._samples[0].taken_at, 1.0)
        for key, count in self._now.of[what].items():
            yield key, max(0, count - before.get(key, 0)) / seconds

    def _topics(self, what: str) -> Iterator[Sample]:
        return (((*self._here(), topic), rate) for topic, rate in self._rates(what))

    def _pairs(self, what: str) -> Iterator[Sample]:
        return (((*self._here(), *place), rate) for place, rate in self._rates(what))

    # --- offsets ---------------------------------------------------------------------------

    def _end(self, topic: str) -> int:
        config = self._broker.topics.find(topic)
        queues = 0 if config is None else config.read_queues
        return sum(self._broker.store.max_offset(topic, queue_id) for queue_id in range(queues))

    def _ends(self, prefix: str) -> Iterator[Sample]:
        """Of the topics whose name begins so; without a prefix, of those that begin with none."""
        for topic in list(self._broker.topics):
            name = topic.name
            if name.startswith(prefix) if prefix else not name.startswith("%"):
                shown = name[len(prefix) :] if prefix == DEAD_LETTER_PREFIX else name
                yield (*self._here(), shown), self._end(name)

    def _consumed(self) -> Iterator[Sample]:
        for topic, group, queues in self._broker.offsets:
            yield (*self._here(), topic, group), sum(queues.values())

    def _behind(self) -> Iterator[Sample]:
        for row in self._lag.rows:
            if row.labels[1] == "false":
                yield self._progress(row), row.lag

    def _behind_in_retries(self) -> Iterator[Sample]:
        for row in self._lag.retries:
            yield self._progress(row), row.lag

    def _progress(self, row: Lag) -> tuple[str, str, str, str]:
        group, _, _, topic = row.labels
        live = self._broker.clients.consumers.get(group)
        online = "0" if live is None else str(len(live.members))
        return group, topic, online, "1" if live is not None and live.message_model == "BROADCASTING" else "0"

    def _dead(self) -> Iterator[Sample]:
        for row in self._lag.rows:
            if not row.labels[3].startswith("%"):
                yield self._progress(row), self._end(DEAD_LETTER_PREFIX + row.labels[0])

    def _sent_back(self) -> Iterator[Sample]:
        for row in self._lag.rows:
            group, _, _, topic = row.labels
            if not topic.startswith("%"):
                yield (
                    (*self._here(), topic, group),
                    self._end(RETRY_PREFIX + group) + self._end(DEAD_LETTER_PREFIX + group),
                )

    # --- clients ---------------------------------------------------------------------------

    def _producers(self) -> Iterator[Sample]:
        for group, members in list(self._broker.clients.producers.items()):
            yield (*self._here(), group), len(members)

    def _connections(self) -> Iterator[Sample]:
        for group in list(self._broker.clients.consumers.values()):
            for member in list(group.members.values()):
                yield (member.connection.peer_address, self._broker.address, group.name), 1


def _nth(text: str, position: int, factor: int = 1) -> float | None:
    found = _NUMBER.findall(text)
    return float(found[position]) * factor if position < len(found) else None
