"""The broker about itself: figures, settings, and what it counted (``mqadmin brokerStatus``, ``getBrokerConfig``)."""

from __future__ import annotations

import shutil
from typing import Final

import orjson

from verniermq.kernel import (
    Broker,
    Command,
    Connection,
    Handler,
    NoPermission,
    RequestCode,
    RequestRefused,
    StoredMessage,
)
from verniermq.plugins.admin.rates import BROKER_GET, BROKER_PUT, Rates

VERSION_NAME: Final = "V5_3_3"

NOT_OURS: Final = dict.fromkeys(
    [
        "sendThreadPoolQueueSize", "pullThreadPoolQueueSize", "ackThreadPoolQueueSize",
        "sendThreadPoolQueueHeadWaitTimeMills", "pullThreadPoolQueueHeadWaitTimeMills",
        "ackThreadPoolQueueHeadWaitTimeMills", "pageCacheLockTimeMills", "timerReadBehind", "timerOffsetBehind",
        "timerCongestNum", "timerEnqueueTps", "timerDequeueTps", "dispatchBehindBytes",
    ],
    "0",
)  # fmt: skip
"""Figures of thread pools and the like, which mqadmin insists on and one event loop does not have."""


class StatusRequests:
    def __init__(self, broker: Broker, rates: Rates) -> None:
        self._broker = broker
        self._rates = rates
        self._started = broker.clock.now_ms()

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.GET_BROKER_RUNTIME_INFO: self.runtime_info,
            RequestCode.VIEW_BROKER_STATS_DATA: self.stats,
            RequestCode.GET_BROKER_CONFIG: self.show_config,
            RequestCode.UPDATE_BROKER_CONFIG: self.update_config,
            RequestCode.GET_BROKER_HA_STATUS: self.ha_status,
            RequestCode.CLEAN_UNUSED_TOPIC: self.clean_nothing,
        }

    def runtime_info(self, request: Command, connection: Connection) -> Command:
        broker, cluster = self._broker, self._broker.configuration.broker.cluster
        broker.catch_up()
        put, get = self._rates.per_second(BROKER_PUT, cluster), self._rates.per_second(BROKER_GET, cluster)
        puts, gets = self._rates.total(BROKER_PUT, cluster), self._rates.total(BROKER_GET, cluster)
        usage = shutil.disk_usage(broker.store.path)
        oldest = self._oldest()
        table = {
            **NOT_OURS,
            "brokerActive": "true",
            "brokerVersion": "479",
            "brokerVersionDesc": VERSION_NAME,
            "bootTimestamp": str(self._started),
            "runtime": f"[ {(broker.clock.now_ms() - self._started) // 1000} s ]",
            "putTps": _three(put),
            "getTotalTps": _three(get),
            "getFoundTps": _three(get),
            "getMissTps": _three(0.0),
            "getTransferredTps": _three(get),
            "msgPutTotalTodayNow": str(puts),
            "msgGetTotalTodayNow": str(gets),
            "msgPutTotalTodayMorning": "0",
            "msgGetTotalTodayMorning": "0",
            "msgPutTotalYesterdayMorning": "0",
            "msgGetTotalYesterdayMorning": "0",
            "commitLogMinOffset": str(broker.store.start),
            "commitLogMaxOffset": str(broker.store.end),
            "earliestMessageTimeStamp": str(oldest.store_timestamp if oldest is not None else -1),
            "commitLogDiskRatio": f"{usage.used / (usage.used + usage.free):.4f}",
            "consumeQueueDiskRatio": f"{usage.used / (usage.used + usage.free):.4f}",
            "commitLogDirCapacity": f"Total : {usage.total // 2**20} MiB, Free : {usage.free // 2**20} MiB.",
            "connections": str(len(broker.server.connections)),
            "waitingPulls": str(len(broker.held_pulls)),
        }
        for _, more in broker.host.ask_all("runtime_info", broker):
            table.update(more)
        return request.reply(body=orjson.dumps({"table": table}, option=orjson.OPT_SORT_KEYS))

    def _oldest(self) -> StoredMessage | None:
        return self._broker.store.message_at(self._broker.store.start)

    def stats(self, request: Command, connection: Connection) -> Command:
        self._broker.catch_up()
        name, key = request.text("statsName"), request.text("statsKey")
        shown = self._rates.shown(name, key)
        if shown is None:
            raise RequestRefused(f"nothing was counted yet as {name!r} of {key!r}")
        return request.reply(body=orjson.dumps(shown))

    def show_config(self, request: Command, connection: Connection) -> Command:
        """Java properties text, under the names that RocketMQ's tools know."""
        settings = self._broker.configuration
        lines = {
            "brokerName": settings.broker.name,
            "brokerClusterName": settings.broker.cluster,
            "brokerId": settings.broker.id,
            "brokerIP1": self._broker.advertised.host,
            "listenPort": self._broker.advertised.port,
            "namesrvAddr": ";".join(self._broker.name_servers),
            "storePathRootDir": settings.store.path,
            "flushDiskType": "SYNC_FLUSH" if settings.store.flush == "sync" else "ASYNC_FLUSH",
            "mappedFileSizeCommitLog": settings.store.segment_size,
            "mappedFileSizeConsumeQueue": settings.store.queue_entries * 20,
            "maxMessageSize": settings.store.max_message_size,
            "autoCreateTopicEnable": str(settings.topics.auto_create).lower(),
            "autoCreateSubscriptionGroup": str(settings.groups.auto_create).lower(),
            "defaultTopicQueueNums": settings.topics.default_queues,
            "brokerRole": "ASYNC_MASTER",
        }
        text = "".join(f"{name}={value}\n" for name, value in sorted(lines.items()))
        version = orjson.dumps(self._broker.topics.version.as_json()).decode()
        return request.reply(ext={"version": version}, body=text.encode())

    def update_config(self, request: Command, connection: Connection) -> Command:
        raise NoPermission("settings are changed in broker.toml, not over the wire; plugins' tables are reread at once")

    def ha_status(self, request: Command, connection: Connection) -> Command:
        status = {
            "haConnectionInfo": [],
            "inSyncSlaveNums": 0,
            "master": True,
            "masterCommitLogMaxOffset": self._broker.store.end,
        }
        return request.reply(body=orjson.dumps(status))

    def clean_nothing(self, request: Command, connection: Connection) -> Command:
        """A deleted topic's queues are gone at once here; there is never anything left to clean."""
        return request.reply()


def _three(rate: float) -> str:
    """RocketMQ shows the rate of 10 s, 60 s and 600 s; ours is of the last minute."""
    return f"{rate:.2f} {rate:.2f} {rate:.2f}"
