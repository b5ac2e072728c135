"""The broker's settings under RocketMQ's names (``mqadmin getBrokerConfig``, ``updateBrokerConfig``).

What may change while the broker runs may be changed over the wire too. Such a change lasts until the broker stops, or
until ``broker.toml`` says something else: the file is the user's, and nothing here writes it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import orjson

from verniermq.kernel import (
    TRACE_TOPIC,
    Command,
    Connection,
    Context,
    Duration,
    Handler,
    InvalidParameter,
    NoPermission,
    Perm,
    RequestCode,
    format_duration,
    nearest,
)

logger = logging.getLogger(__name__)


class Kind(NamedTuple):
    """How RocketMQ writes a value. ``read`` raises ``ValueError`` for a text that is none, or ``OverflowError``."""

    show: Callable[[Any], str]
    read: Callable[[str], Any]
    expected: str


def _boolean(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError
    return text == "true"


BOOLEAN: Final = Kind(lambda value: str(value).lower(), _boolean, "true or false")
NUMBER: Final = Kind(lambda value: str(int(value)), int, "a whole number")
TEXT: Final = Kind(str, str, "a text")
MILLISECONDS: Final = Kind(
    lambda value: str(round(value * 1000)), lambda text: Duration(int(text) / 1000), "milliseconds, a whole number"
)
SECONDS: Final = Kind(lambda value: str(round(value)), lambda text: Duration(int(text)), "seconds, a whole number")
HOURS: Final = Kind(lambda value: f"{value / 3600:g}", lambda text: Duration(int(text) * 3600), "hours, a whole number")
FLUSH: Final = Kind(lambda value: "SYNC_FLUSH" if value == "sync" else "ASYNC_FLUSH", str, "a text")
TLS: Final = Kind(lambda mode: str(mode != "disabled").lower(), _boolean, "true or false")
DELAYS: Final = Kind(lambda levels: " ".join(map(format_duration, levels)), str, "a text")

SETTINGS: Final[dict[str, tuple[str, Kind]]] = {
    "brokerName": ("broker.name", TEXT),
    "brokerClusterName": ("broker.cluster", TEXT),
    "brokerId": ("broker.id", NUMBER),
    "autoCreateTopicEnable": ("topics.auto_create", BOOLEAN),
    "defaultTopicQueueNums": ("topics.default_queues", NUMBER),
    "autoCreateSubscriptionGroup": ("groups.auto_create", BOOLEAN),
    "storePathRootDir": ("store.path", TEXT),
    "flushDiskType": ("store.flush", FLUSH),
    "flushIntervalCommitLog": ("store.flush_interval", MILLISECONDS),
    "flushCommitLogLeastPages": ("store.flush_pages", NUMBER),
    "syncFlushTimeout": ("store.flush_timeout", MILLISECONDS),
    "mappedFileSizeCommitLog": ("store.segment_size", NUMBER),
    "maxMessageSize": ("store.max_message_size", NUMBER),
    "maxTransferCountOnMessageInMemory": ("pull.max_messages", NUMBER),
    "maxTransferBytesOnMessageInMemory": ("pull.max_bytes", NUMBER),
    "flushConsumerOffsetInterval": ("offsets.persist_interval", MILLISECONDS),
    "useTLS": ("tls.mode", TLS),
    "fileReservedTime": ("plugins.retention.max_age", HOURS),
    "deleteWhen": ("plugins.retention.delete_when", TEXT),
    "diskMaxUsedSpaceRatio": ("plugins.retention.disk_delete_at", NUMBER),
    "cleanFileForciblyEnable": ("plugins.retention.force", BOOLEAN),
    "rejectTransactionMessage": ("plugins.txn.reject", BOOLEAN),
    "transactionTimeOut": ("plugins.txn.timeout", MILLISECONDS),
    "transactionCheckInterval": ("plugins.txn.check_interval", MILLISECONDS),
    "transactionCheckMax": ("plugins.txn.check_max", NUMBER),
    "messageDelayLevel": ("plugins.schedule.levels", DELAYS),
    "timerMaxDelaySec": ("plugins.schedule.max_delay", SECONDS),
    "recallMessageEnable": ("plugins.schedule.recall", BOOLEAN),
    "defaultMessageRequestMode": ("plugins.pop.default_mode", TEXT),
    "defaultPopShareQueueNum": ("plugins.pop.default_share", NUMBER),
    "maxPopPollingSize": ("plugins.pop.max_waiting", NUMBER),
    "popPollingSize": ("plugins.pop.max_waiting_per_queue", NUMBER),
    "popFromRetryProbability": ("plugins.pop.retry_first_percent", NUMBER),
    "useSeparateRetryQueue": ("plugins.pop.separate_retry_queues", BOOLEAN),
    "priorityOrderAsc": ("plugins.priority.highest_first", BOOLEAN),
    "popFromRetryProbabilityForPriority": ("plugins.priority.retry_first_percent", NUMBER),
}
"""RocketMQ's name → ours, and how RocketMQ writes it. The files with the same values: ``broker.toml``."""

PERMISSION: Final = "brokerPermission"
"""4: the broker takes no messages any more, until it is 6 again. It is no setting: a broker that starts takes some."""

CHANGEABLE_TABLES: Final = ("topics.auto_create", "groups.auto_create")
"""What may change while the broker runs, beside settings of plugins that say so by ``settings_changed``."""


class SettingsRequests:
    def __init__(self, broker: Context) -> None:
        self._broker = broker

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.GET_BROKER_CONFIG: self.show,
            RequestCode.UPDATE_BROKER_CONFIG: self.update,
        }

    # --- looking ---------------------------------------------------------------------------

    def show(self, request: Command, connection: Connection) -> Command:
        """Java properties text."""
        text = "".join(f"{name}={value}\n" for name, value in sorted(self.shown().items()))
        version = orjson.dumps(self._broker.topics.version.as_json()).decode()
        return request.reply(ext={"version": version}, body=text.encode())

    def shown(self) -> dict[str, str]:
        broker, active = self._broker, self._broker.hooks.is_active
        shown = {
            "brokerIP1": broker.host,
            "listenPort": str(broker.port),
            "namesrvAddr": ";".join(broker.name_servers),
            "brokerRole": "ASYNC_MASTER" if broker.broker_id == 0 else "SLAVE",
            PERMISSION: str(Perm.READ if PERMISSION in broker.store.refusals else Perm.READ_WRITE),
            "clusterTopicEnable": "true",
            "brokerTopicEnable": "true",
            "longPollingEnable": "true",
            "storePathCommitLog": str(broker.store.path / "commitlog"),
            "mappedFileSizeConsumeQueue": str(broker.configuration.store.queue_entries * 20),
            "enablePropertyFilter": BOOLEAN.show(active("sql")),
            "aclEnable": BOOLEAN.show(active("acl")),
            "traceOn": "true",
            "traceTopicEnable": BOOLEAN.show(TRACE_TOPIC in broker.topics),
            "msgTraceTopicName": TRACE_TOPIC,
            "timerWheelEnable": BOOLEAN.show(active("schedule")),
        }
        for name, (setting, kind) in SETTINGS.items():
            section = self._section(setting)
            if section is not None:
                shown[name] = kind.show(getattr(section, setting.rpartition(".")[2]))
        return shown

    def _section(self, setting: str) -> Any:
        """The settings that have it, as they are now; ``None`` if it is of a plugin that is not active."""
        part, _, rest = setting.partition(".")
        if part == "plugins":
            plugin = self._broker.hooks.active.get(rest.partition(".")[0])
            return None if plugin is None else plugin.config
        if setting in CHANGEABLE_TABLES:
            return self._broker.topics if part == "topics" else self._broker.groups
        return getattr(self._broker.configuration, part)

    # --- changing --------------------------------------------------------------------------

    def update(self, request: Command, connection: Connection) -> Command:
        """All of it or nothing.

        Raises:
            NoPermission: a setting takes a restart.
            InvalidParameter: a setting is unknown, or its value is not allowed.
        """
        wished = read_properties(request.body)
        permission = self._permission(wished.pop(PERMISSION, None))
        changes = {SETTINGS[name][0]: self._value(name, text) for name, text in wished.items() if self._may(name)}
        tables = {setting: value for setting, value in changes.items() if setting in CHANGEABLE_TABLES}
        plugins: dict[str, dict[str, Any]] = {}
        for setting in changes.keys() - tables.keys():
            _, plugin, key = setting.split(".")
            plugins.setdefault(plugin, {})[key] = changes[setting]
        try:
            self._broker.hooks.change_settings(plugins)
        except ValueError as error:
            raise InvalidParameter(str(error)) from error
        for setting, value in tables.items():
            self._section(setting).auto_create = value
        for name, text in wished.items():
            logger.info("setting changed %s=%s by=%s", SETTINGS[name][0], text, connection.peer_address)
        if permission is not None:
            self._permit(permission, connection.peer_address)
        return request.reply()

    def _permission(self, text: str | None) -> int | None:
        if text is not None and text not in ("4", "6"):
            raise InvalidParameter(f"{PERMISSION} = {text!r:.80}: expected 6, or 4 to take no messages any more")
        return None if text is None else int(text)

    def _permit(self, permission: int, peer: str) -> None:
        may_write = bool(permission & Perm.WRITE)
        why = "the broker was told to take no messages any more (brokerPermission = 4); send to another one"
        self._broker.store.refuse_writes(None if may_write else why, PERMISSION)
        logger.warning("broker permission changed permission=%d by=%s", permission, peer)

    def _may(self, name: str) -> bool:
        known = [name for name, (setting, _) in SETTINGS.items() if self._is_changeable(setting)]
        if name in self.shown() and name not in known:
            where = SETTINGS[name][0] if name in SETTINGS else ""
            section, _, key = where.rpartition(".")
            how = f"; change {key} in [{section}] of broker.toml, and restart the broker" if where else ""
            raise NoPermission(f"{name} cannot change while the broker runs{how}")
        if name not in known:
            raise InvalidParameter(f"there is no setting {name!r} that could change; {nearest(name, known)}")
        return True

    def _is_changeable(self, setting: str) -> bool:
        if setting in CHANGEABLE_TABLES:
            return True
        part, _, rest = setting.partition(".")
        return part == "plugins" and self._broker.hooks.is_changeable(rest.partition(".")[0])

    def _value(self, name: str, text: str) -> Any:
        kind = SETTINGS[name][1]
        try:
            return kind.read(text)
        except (ValueError, OverflowError):
            raise InvalidParameter(f"{name} = {text!r:.80}: expected {kind.expected}") from None


def read_properties(body: bytes) -> dict[str, str]:
    """Java properties text, as ``mqadmin`` sends it: a name and a value to a line.

    Raises:
        InvalidParameter: a line is none.
    """
    try:
        lines = [line.strip() for line in body.decode().splitlines()]
    except UnicodeDecodeError as error:
        raise InvalidParameter(f"the body is no text: {error}") from error
    found = {}
    for line in lines:
        if line and line[0] not in "#!":
            name, equals, value = line.partition("=")
            if not equals:
                raise InvalidParameter(f"the line {line!r:.80} has no '='; expected name=value")
            found[name.strip()] = value.strip().replace("\\:", ":").replace("\\=", "=").replace("\\#", "#")
    if not found:
        raise InvalidParameter("the body has no setting; expected lines of name=value")
    return found
