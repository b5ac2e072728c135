"""An audit log: one line of JSON per send, taken or refused.

    {"time": 1700000000123, "event": "sent", "where": "broker", "group": "billing", "peer": "10.0.0.7:51234",
     "topic": "orders", "queue": 3, "offset": 41, "message_id": "7F…", "keys": "T1", "tags": "paid", "size": 512}
    {"time": 1700000000124, "event": "refused", "where": "broker", "group": "billing", "peer": "10.0.0.7:51234",
     "topic": "orders", "size": 512, "reason": "too much at the moment …"}

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
    Broker,
    Clock,
    Command,
    Connection,
    Declaration,
    PendingMessage,
    Property,
    RequestCode,
    Sending,
    SystemClock,
    hookimpl,
    setting,
    unpack_host,
)

log = logging.getLogger("verniermq.audit")

SENDS: Final = frozenset(
    {RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE}
)


@attrs.frozen
class Config:
    """``[plugins.audit]``"""

    file: str = setting("", 'Where the lines go; "" gives them to the logger verniermq.audit, at level INFO.')
    topics: tuple[str, ...] = setting(("*",), "The topics whose sends are written down, by wildcards.")


@attrs.define(eq=False)
class Plugin:
    declaration: ClassVar = Declaration(
        api=1, config=Config, summary="Writes down every send, taken or refused.", after=("enrich",)
    )
    config: Config
    _clock: Clock = attrs.field(factory=SystemClock, init=False)

    # --- in a broker -----------------------------------------------------------------------

    @hookimpl
    def broker_created(self, broker: Broker) -> None:
        self._clock = broker.clock

    @hookimpl
    def messages_appended(self, batch: Sequence[tuple[PendingMessage, Appended]]) -> None:
        lines = []
        for message, appended in batch:
            topic = message.request_fields.get("b", message.topic)
            if self._wants(topic):
                properties = message.properties
                lines.append({
                    "time": appended.store_timestamp, "event": "sent", "where": "broker",
                    "group": message.request_fields.get("a", ""), "peer": unpack_host(message.born_host),
                    "topic": topic, "queue": appended.queue_id, "offset": appended.queue_offset,
                    "message_id": properties.get(Property.UNIQUE_KEY, ""), "keys": properties.get(Property.KEYS, ""),
                    "tags": properties.get(Property.TAGS, ""), "size": len(message.body),
                })  # fmt: skip
        self._write(lines)

    @hookimpl
    def request_refused(self, request: Command, connection: Connection, error: Exception) -> None:
        if request.code not in SENDS:
            return
        ext = request.ext
        topic = ext.get("b") or ext.get("topic", "")
        if self._wants(topic):
            self._write([{
                "time": self._clock.now_ms(), "event": "refused", "where": "broker",
                "group": ext.get("a") or ext.get("producerGroup", ""),
                "peer": connection.peer_address, "topic": topic, "size": len(request.body), "reason": str(error),
            }])  # fmt: skip

    # --- in a client -----------------------------------------------------------------------

    @hookimpl
    def after_send(self, sending: Sending) -> None:
        message = sending.message
        if not self._wants(message.topic):
            return
        properties = message.all_properties()
        line: dict[str, Any] = {
            "time": self._clock.now_ms(), "event": "sent" if sending.error is None else "refused", "where": "client",
            "group": sending.group, "client": sending.client_id, "topic": message.topic,
            "message_id": sending.message_id, "keys": properties.get(Property.KEYS, ""),
            "tags": properties.get(Property.TAGS, ""), "size": len(message.body),
        }  # fmt: skip
        if sending.error is not None:
            line["reason"] = str(sending.error)
        elif sending.result is not None:
            line.update(broker=sending.broker, queue=sending.result.queue.queue_id, offset=sending.result.queue_offset)
        self._write([line])

    # --- in both ---------------------------------------------------------------------------

    def _wants(self, topic: str) -> bool:
        return any(fnmatchcase(topic, pattern) for pattern in self.config.topics)

    def _write(self, lines: Iterable[dict[str, Any]]) -> None:
        texts = [orjson.dumps(line) for line in lines]
        if not texts:
            return
        if self.config.file:
            with Path(self.config.file).open("ab") as file:
                file.write(b"".join(text + b"\n" for text in texts))
        else:
            for text in texts:
                log.info("%s", text.decode())
