"""RocketMQ's own names of settings, and what they are called here.

For hints, when somebody writes them into ``broker.toml``, and for ``verniermq config import``.
"""

from __future__ import annotations

from typing import Final

NAMES: Final = {
    "brokerClusterName": "broker.cluster",
    "brokerName": "broker.name",
    "brokerId": "broker.id",
    "brokerIP1": "broker.advertise",
    "listenPort": "broker.port",
    "namesrvAddr": "broker.namesrv",
    "storePathRootDir": "store.path",
    "mapedFileSizeCommitLog": "store.segment_size",
    "mappedFileSizeCommitLog": "store.segment_size",
    "maxMessageSize": "store.max_message_size",
    "flushDiskType": "store.flush",
    "autoCreateTopicEnable": "topics.auto_create",
    "defaultTopicQueueNums": "topics.default_queues",
    "autoCreateSubscriptionGroup": "groups.auto_create",
    "messageDelayLevel": "plugins.schedule.levels",
    "fileReservedTime": "plugins.retention.max_age",
    "deleteWhen": "plugins.retention.delete_when",
    "cleanFileForciblyEnable": "plugins.retention.force",
    "transactionTimeOut": "plugins.txn.timeout",
    "transactionCheckInterval": "plugins.txn.check_interval",
    "transactionCheckMax": "plugins.txn.check_max",
    "rejectTransactionMessage": "plugins.txn.reject",
    "brokerRole": "plugins.ha.role",
    "haListenPort": "plugins.ha.port",
    "inSyncReplicas": "plugins.ha.in_sync",
    "slaveReadEnable": "plugins.ha.slave_reads",
}
"""RocketMQ's name → the dotted one."""

VALUES: Final = {
    "store.flush": {"SYNC_FLUSH": "sync", "ASYNC_FLUSH": "async"},
    "plugins.ha.role": {"ASYNC_MASTER": "async_master", "SYNC_MASTER": "sync_master", "SLAVE": "slave"},
}
"""Dotted name → RocketMQ's values that are called otherwise here."""


def hint(name: str) -> str | None:
    """What a name of RocketMQ's is called here; ``None`` for one that is none."""
    dotted = NAMES.get(name)
    if dotted is None:
        return None
    section, _, key = dotted.rpartition(".")
    return f"RocketMQ's {name} is {key} in [{section}]"
