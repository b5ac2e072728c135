"""The broker about itself: figures, and what it counted (``mqadmin brokerStatus``)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import orjson

from verniermq.kernel import (
    Command,
    Connection,
    Context,
    Handler,
    NoPermission,
    RequestCode,
    RequestRefused,
    hookspec,
)
from verniermq.plugins.admin.days import Days
from verniermq.plugins.admin.puttimes import PutTimes
from verniermq.plugins.admin.rates import (
    BROKER_GET,
    BROKER_GET_MISSED,
    BROKER_GET_USERS,
    BROKER_PUT,
    BROKER_PUT_SIZE,
    BROKER_PUT_USERS,
    Rates,
)
from verniermq.plugins.admin.requests import ViewStats

VERSION_NAME: Final = "V5_3_3"

NOT_OURS: Final = dict.fromkeys(
    [
        "sendThreadPoolQueueSize", "pullThreadPoolQueueSize", "queryThreadPoolQueueSize", "ackThreadPoolQueueSize",
        "litePullThreadPoolQueueSize", "EndTransactionQueueSize",
        "sendThreadPoolQueueCapacity", "pullThreadPoolQueueCapacity", "queryThreadPoolQueueCapacity",
        "ackThreadPoolQueueCapacity", "litePullThreadPoolQueueCapacity", "EndTransactionThreadPoolQueueCapacity",
        "sendThreadPoolQueueHeadWaitTimeMills", "pullThreadPoolQueueHeadWaitTimeMills",
        "queryThreadPoolQueueHeadWaitTimeMills", "ackThreadPoolQueueHeadWaitTimeMills",
        "litePullThreadPoolQueueHeadWaitTimeMills", "pageCacheLockTimeMills", "remainTransientStoreBufferNumbs",
        "timerReadBehind", "timerOffsetBehind", "timerCongestNum", "timerEnqueueTps", "timerDequeueTps",
    ],
    "0",
)  # fmt: skip
"""Figures of thread pools and the like, which tools insist on and one event loop does not have."""


@hookspec("question")
def runtime_info() -> Mapping[str, str] | None:
    """Add figures to what ``mqadmin brokerStatus`` shows. A later plugin's key replaces an earlier one's."""


class StatusRequests:
    """``catch_up`` is called before figures are shown."""

    def __init__(
        self, broker: Context, rates: Rates, days: Days, put_times: PutTimes, catch_up: Callable[[], None]
    ) -> None:
        self._broker = broker
        self._rates = rates
        self._days = days
        self._put_times = put_times
        self._catch_up = catch_up
        self._started = broker.clock.now_ms()
        self.accepting_since = 0

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.GET_BROKER_RUNTIME_INFO: self.runtime_info,
            RequestCode.VIEW_BROKER_STATS_DATA: self.stats,
            RequestCode.GET_BROKER_HA_STATUS: self.ha_status,
            RequestCode.GET_BROKER_EPOCH_CACHE: self.epochs,
            RequestCode.RESET_MASTER_FLUSH_OFFSET: self.reset_flushed,
            RequestCode.CLEAN_UNUSED_TOPIC: self.clean_nothing,
        }

    def runtime_info(self, request: Command, connection: Connection) -> Command:
        return request.reply(body=orjson.dumps({"table": self.table()}, option=orjson.OPT_SORT_KEYS))

    def table(self) -> dict[str, str]:
        """All figures, by RocketMQ's names."""
        self._catch_up()
        table = {
            **NOT_OURS,
            "brokerActive": "true",
            "brokerVersion": "479",
            "brokerVersionDesc": VERSION_NAME,
            **self._counts(),
            **self._rates_shown(),
            **self._put_figures(),
            **self._store_figures(),
            "connections": str(self._broker.connections),
            "waitingPulls": str(len(self._broker.held_pulls)),
            "tableWriteFailures": str(self._broker.table_failures),
        }
        for more in self._broker.hooks.ask_all(runtime_info):
            table.update(more)
        return table

    def _counts(self) -> dict[str, str]:
        """Totals are since the start; tools show a day as the difference of two."""
        cluster, days = self._broker.cluster, self._days
        return {
            "msgPutTotalTodayNow": str(self._rates.total(BROKER_PUT_USERS, cluster)),
            "msgGetTotalTodayNow": str(self._rates.total(BROKER_GET_USERS, cluster)),
            "msgPutTotalTodayMorning": str(days.this_morning.put),
            "msgGetTotalTodayMorning": str(days.this_morning.got),
            "msgPutTotalYesterdayMorning": str(days.yesterday_morning.put),
            "msgGetTotalYesterdayMorning": str(days.yesterday_morning.got),
        }

    def _rates_shown(self) -> dict[str, str]:
        """Of the last 10 s, 60 s and 600 s. Found and missed count pulls, transferred counts messages."""
        cluster = self._broker.cluster
        found = self._rates.three(BROKER_GET, cluster, of_events=True)
        missed = self._rates.three(BROKER_GET_MISSED, cluster)
        return {
            "putTps": _three(self._rates.three(BROKER_PUT, cluster)),
            "getFoundTps": _three(found),
            "getMissTps": _three(missed),
            "getTotalTps": _three([hit + miss for hit, miss in zip(found, missed, strict=True)]),
            "getTransferredTps": _three(self._rates.three(BROKER_GET, cluster)),
        }

    def _put_figures(self) -> dict[str, str]:
        times, cluster = self._put_times, self._broker.cluster
        messages, size = self._rates.total(BROKER_PUT, cluster), self._rates.total(BROKER_PUT_SIZE, cluster)
        return {
            "putMessageTimesTotal": str(messages),
            "putMessageSizeTotal": str(size),
            "putMessageAverageSize": f"{size / messages if messages else 0:.2f}",
            "putMessageDistributeTime": times.distribution(),
            "putMessageEntireTimeMax": str(times.longest_ms),
            "putLatency99": f"{times.percentile(0.99):.2f}",
            "putLatency999": f"{times.percentile(0.999):.2f}",
            "dispatchMaxBuffer": str(times.largest_turn),
        }

    def _store_figures(self) -> dict[str, str]:
        store = self._broker.store
        disk = os.statvfs(store.path)
        used = disk.f_blocks - disk.f_bfree
        ratio = f"{used / (used + disk.f_bavail):.4f}"
        oldest = store.message_at(store.start)
        return {
            "bootTimestamp": str(self._started),
            "startAcceptSendRequestTimeStamp": str(self.accepting_since),
            "runtime": f"[ {(self._broker.clock.now_ms() - self._started) // 1000} s ]",
            "commitLogMinOffset": str(store.start),
            "commitLogMaxOffset": str(store.end),
            "earliestMessageTimeStamp": str(oldest.store_timestamp if oldest is not None else -1),
            "dispatchBehindBytes": str(store.end - store.dispatched_end),
            "remainHowManyDataToFlush": f"{max(0, store.end - store.durable_end)} B",
            "getMessageEntireTimeMax": str(round(store.longest_fetch * 1000)),
            "commitLogDiskRatio": ratio,
            "consumeQueueDiskRatio": ratio,
            "commitLogDirCapacity": f"Total : {disk.f_blocks * disk.f_frsize // 2**20} MiB,"
            f" Free : {disk.f_bavail * disk.f_frsize // 2**20} MiB.",
            "damagedRecords": str(store.damage.found),
        }

    def stats(self, request: Command, connection: Connection) -> Command:
        self._catch_up()
        asked = ViewStats.of(request)
        name, key = asked.stats, asked.key
        shown = self._rates.shown(name, key)
        if shown is None:
            raise RequestRefused(f"nothing was counted yet as {name!r} of {key!r}")
        return request.reply(body=orjson.dumps(shown))

    def ha_status(self, request: Command, connection: Connection) -> Command:
        status = {
            "haConnectionInfo": [],
            "inSyncSlaveNums": 0,
            "master": True,
            "masterCommitLogMaxOffset": self._broker.store.end,
        }
        return request.reply(body=orjson.dumps(status))

    def epochs(self, request: Command, connection: Connection) -> Command:
        """Nobody elects masters here: the log has one epoch, from its first byte to its last."""
        broker = self._broker
        body = {
            "brokerId": broker.broker_id,
            "brokerName": broker.name,
            "clusterName": broker.cluster,
            "epochList": [{"endOffset": broker.store.end, "epoch": 0, "startOffset": broker.store.start}],
            "maxOffset": broker.store.end,
        }
        return request.reply(body=orjson.dumps(body))

    def reset_flushed(self, request: Command, connection: Connection) -> Command:
        """A master knows itself what is on its disk; only slaves are told."""
        if self._broker.broker_id != 0:
            raise NoPermission("this slave learns from its master what is on the master's disk, and from nobody else")
        return request.reply()

    def clean_nothing(self, request: Command, connection: Connection) -> Command:
        """A deleted topic's queues are gone at once here; there is never anything left to clean."""
        return request.reply()


def _three(rates: Iterable[float]) -> str:
    return " ".join(f"{rate:.2f}" for rate in rates)
