"""An audit log: one line of JSON per send, taken or refused; in a broker also who comes and goes, and what is consumed.

    {"time": 1700000000123, "event": "sent", "where": "broker", "group": "billing", "peer": "10.0.0.7:51234",
     "topic": "orders", "queue": 3, "offset": 41, "message_id": "7F…", "keys": "T1", "tags": "paid", "size": 512}
    {"time": 1700000000124, "event": "refused", "where": "broker", "group": "billing", "peer": "10.0.0.7:51234",
     "topic": "orders", "size": 512, "reason": "too much at the moment …"}

    {"time": 1700000000125, "event": "joined", "where": "broker", "kind": "consumer", "group": "billing",
     "client": "10.0.0.7@1", "peer": "10.0.0.7:51234"}
    {"time": 1700000000126, "event": "consumed", "where": "broker", "group": "billing", "topic": "orders", "queue": 3,
     "offset": 42}

In a broker it hears of the sends of all clients, in a client of that client's own. Bodies are never written. The file
is opened for each batch, so it may be moved away at any time.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, ClassVar, Final

import attrs
import orjson

from verniermq.kernel import (
    Appended,
    ClientContext,
    Command,
    Connection,
    Context,
    Declaration,
    PendingMessage,
    Property,
    RequestCode,
    RequestRefused,
    Sending,
    SystemClock,
    hookimpl,
    hookspecs,
    requests,
    setting,
    unpack_host,
)

log = logging.getLogger("verniermq.audit")

SENDS: Final = frozenset({RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE})


@attrs.frozen
class Config:
    """``[plugins.audit]``"""

    file: str = setting("", 'Where the lines go; "" gives them to the logger verniermq.audit, at level INFO.')
    topics: tuple[str, ...] = setting(("*",), "The topics whose sends are written down, by wildcards.")
    members: bool = setting(False, "In a broker: whether it is written down which clients join and leave which groups.")
    offsets: bool = setting(False, "In a broker: whether it is written down how far groups have consumed those topics.")


class AuditLog:
    """Where the lines go, and which sends get one."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def wants(self, topic: str) -> bool:
        return any(fnmatchcase(topic, pattern) for pattern in self._config.topics)

    def write(self, lines: Iterable[dict[str, Any]]) -> None:
        texts = [orjson.dumps(line) for line in lines]
        if not texts:
            return
        if self._config.file:
            with Path(self._config.file).open("ab") as file:
                file.write(b"".join(text + b"\n" for text in texts))
        else:
            for text in texts:
                log.info("%s", text.decode())


@attrs.define(eq=False)
class Plugin:
    """In a broker: the sends of all clients."""

    declaration: ClassVar = Declaration(
        api=1, config=Config, summary="Writes down every send, taken or refused.", after=("enrich",)
    )
    config: Config
    broker: Context
    _log: AuditLog = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._log = AuditLog(self.config)

    @hookimpl
    def store_opened(self) -> None:
        hooks = self.broker.hooks
        for hook in (hookspecs.client_joined, hookspecs.client_left):
            hooks.pause(self, hook, paused=not self.config.members)
        hooks.pause(self, hookspecs.offset_committed, paused=not self.config.offsets)

    @hookimpl
    def client_joined(self, kind: str, group: str, client_id: str, connection: Connection) -> None:
        self._member("joined", kind, group, client_id, connection)

    @hookimpl
    def client_left(self, kind: str, group: str, client_id: str, connection: Connection) -> None:
        self._member("left", kind, group, client_id, connection)

    def _member(self, event: str, kind: str, group: str, client_id: str, connection: Connection) -> None:
        line = {"kind": kind, "group": group, "client": client_id, "peer": connection.peer_address}
        self._log.write([{"time": self.broker.clock.now_ms(), "event": event, "where": "broker", **line}])

    @hookimpl
    def offset_committed(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        if self._log.wants(topic):
            line = {"group": group, "topic": topic, "queue": queue_id, "offset": offset}
            self._log.write([{"time": self.broker.clock.now_ms(), "event": "consumed", "where": "broker", **line}])

    @hookimpl
    def messages_appended(self, batch: Sequence[tuple[PendingMessage, Appended]]) -> None:
        lines = []
        for message, appended in batch:
            topic, group = requests.producer_of(message)
            if self._log.wants(topic):
                properties = message.properties
                lines.append(
                    {
                        "time": appended.store_timestamp,
                        "event": "sent",
                        "where": "broker",
                        "group": group,
                        "peer": unpack_host(message.born_host),
                        "topic": topic,
                        "queue": appended.queue_id,
                        "offset": appended.queue_offset,
                        "message_id": properties.get(Property.UNIQUE_KEY, ""),
                        "keys": properties.get(Property.KEYS, ""),
                        "tags": properties.get(Property.TAGS, ""),
                        "size": len(message.body),
                    }
                )
        self._log.write(lines)

    @hookimpl
    def request_served(self, request: Command, connection: Connection, error: Exception | None) -> None:
        if error is None or request.code not in SENDS:
            return
        topic, group = _named(request)
        if self._log.wants(topic):
            line = {
                "time": self.broker.clock.now_ms(),
                "event": "refused",
                "where": "broker",
                "group": group,
                "peer": connection.peer_address,
                "topic": topic,
                "size": len(request.body),
                "reason": str(error),
            }
            self._log.write([line])


def _named(request: Command) -> tuple[str, str]:
    """Topic and producer group of a send; it may have been refused because it cannot be decoded."""
    try:
        send = requests.SendMessage.of(request)
    except RequestRefused:
        return "", ""
    return send.topic, send.group


@attrs.define(eq=False)
class ClientPlugin:
    """In a producer: its own sends."""

    declaration: ClassVar = Declaration(
        api=1, config=Config, summary="Writes down every send, taken or refused.", after=("enrich",)
    )
    config: Config
    client: ClientContext
    _log: AuditLog = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._log = AuditLog(self.config)

    @hookimpl
    def after_send(self, sending: Sending) -> None:
        message = sending.message
        if not self._log.wants(message.topic):
            return
        properties = message.all_properties()
        line: dict[str, Any] = {
            "time": SystemClock().now_ms(),
            "event": "sent" if sending.error is None else "refused",
            "where": "client",
            "group": sending.group,
            "client": sending.client_id,
            "topic": message.topic,
            "message_id": sending.message_id,
            "keys": properties.get(Property.KEYS, ""),
            "tags": properties.get(Property.TAGS, ""),
            "size": len(message.body),
        }
        if sending.error is not None:
            line["reason"] = str(sending.error)
        elif sending.result is not None:
            line.update(broker=sending.broker, queue=sending.result.queue.queue_id, offset=sending.result.queue_offset)
        self._log.write([line])
