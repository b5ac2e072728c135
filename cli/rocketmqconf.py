"""RocketMQ's own names of settings: a hint for one in ``broker.toml``, and a whole ``broker.conf`` translated."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import attrs

from verniermq.cli.reach import is_elsewhere
from verniermq.kernel.config.toml import toml_value
from verniermq.kernel.errors import UnknownSetting, VernierMQError

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

HOURS: Final = frozenset({"fileReservedTime"})
MILLISECONDS: Final = frozenset({"transactionTimeOut", "transactionCheckInterval"})
_NUMBER: Final = re.compile(r"-?\d+")


def told(error: VernierMQError) -> str:
    """An error as a line; a name of RocketMQ's is told with what it is called here."""
    if isinstance(error, UnknownSetting) and error.name in NAMES:
        section, _, key = NAMES[error.name].rpartition(".")
        error.advice = f"RocketMQ's {error.name} is {key} in [{section}]"
    return str(error)


@attrs.frozen
class Imported:
    tables: Mapping[str, Mapping[str, Any]]
    """Section → key → value."""
    left_out: tuple[tuple[str, str], ...]
    """Names that mean nothing here, and why."""
    notes: tuple[str, ...] = ()
    """What somebody has to decide."""

    @property
    def toml(self) -> str:
        lines = []
        for section, table in self.tables.items():
            lines.append(f"[{section}]")
            lines += [f"{key} = {toml_value(value)}" for key, value in table.items()]
            lines.append("")
        lines += [f"# {name}: {why}" for name, why in self.left_out]
        lines += [f"# {note}" for note in self.notes]
        return "\n".join(lines).rstrip("\n") + "\n"


def import_conf(text: str) -> Imported:
    """Translate lines of ``name=value``; empty ones and those that begin with ``#`` are passed over."""
    tables: dict[str, dict[str, Any]] = {}
    left_out = []
    for line in text.splitlines():
        name, equals, value = (part.strip() for part in line.partition("="))
        if not equals or line.lstrip().startswith(("#", "!")):
            continue
        dotted = NAMES.get(name)
        if dotted is not None:
            section, _, key = dotted.rpartition(".")
            tables.setdefault(section, {})[key] = _value(name, dotted, value)
        else:
            left_out.append((name, "has no setting here"))
    copies = tables.get("plugins.ha", {})
    if copies.get("role") in ("sync_master", "slave"):
        tables["plugins"] = {"enable": ["default", "ha"]}
    elif copies:
        # Most files say ASYNC_MASTER; without a slave there is nothing to copy, and no port to open.
        del tables["plugins.ha"]
        left_out.append(
            ("brokerRole", 'a broker with id 0 is a master; [plugins] enable = ["default", "ha"] lets slaves copy it')
        )
    return Imported(tables, tuple(left_out), tuple(_notes(tables.get("broker", {}))))


def _notes(broker: Mapping[str, Any]) -> Iterator[str]:
    elsewhere = [address for address in broker.get("namesrv", ()) if is_elsewhere(address)]
    if elsewhere and not broker.get("advertise"):
        yield (
            f"brokerIP1 is not said: {', '.join(elsewhere)} would tell clients 127.0.0.1. Set [broker] host = "
            '"0.0.0.0", and advertise to an address that they reach'
        )


def _value(name: str, dotted: str, text: str) -> Any:
    if text in VALUES.get(dotted, {}):
        return VALUES[dotted][text]
    if name in HOURS and _NUMBER.fullmatch(text):
        return f"{text}h"
    if name in MILLISECONDS and _NUMBER.fullmatch(text):
        return f"{text}ms"
    if name == "messageDelayLevel":
        return text.split()
    if name == "namesrvAddr":
        return [address for address in text.split(";") if address]
    if name in ("deleteWhen", "brokerIP1", "brokerName", "brokerClusterName", "storePathRootDir"):
        return text
    if text in ("true", "false"):
        return text == "true"
    return int(text) if _NUMBER.fullmatch(text) else text
