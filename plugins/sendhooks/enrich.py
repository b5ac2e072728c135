"""Properties that every message gets on its way, in the client that sends it or in the broker that takes it.

    [plugins.enrich.properties]
    team = "payments"
    sent_by = "{group}@{host}"

A value may name ``{group}``, ``{topic}``, ``{host}`` (this machine), ``{pid}``, ``{time_ms}``, and in a client
``{client_id}``, in a broker ``{broker}`` (its name) and ``{peer}`` (the producer's address). Subscriptions can filter
by such properties with SQL conditions.
"""

from __future__ import annotations

import os
import socket
import string
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import ClassVar, Final

import attrs

from verniermq.kernel import (
    ClientContext,
    Connection,
    Context,
    Declaration,
    PendingMessage,
    Property,
    Sending,
    SystemClock,
    hookimpl,
    requests,
    setting,
)

PLACES: Final = ("group", "topic", "host", "pid", "time_ms", "client_id", "broker", "peer")
RESERVED: Final = frozenset(value for name, value in vars(Property).items() if name.isupper())


def _usable(config: Config, attribute: attrs.Attribute[Mapping[str, str]], properties: Mapping[str, str]) -> None:
    for name, value in properties.items():
        if name in RESERVED:
            raise ValueError(f"sets {name!r}, which means something to RocketMQ; choose another name")
        if not {"\x01", "\x02"}.isdisjoint(name + value):
            raise ValueError(f"has U+0001 or U+0002 in {name!r}, which separate properties; leave them out")
        for _, place, _, _ in string.Formatter().parse(value):
            if place is not None and place not in PLACES:
                raise ValueError(f"names {{{place}}} in {name!r}; there are {', '.join(PLACES)}")


@attrs.frozen
class Config:
    """``[plugins.enrich]``"""

    properties: dict[str, str] = setting(
        attrs.Factory(dict), "Property → value, which may name {group}, {host} and others.", validator=_usable
    )
    topics: tuple[str, ...] = setting(("*",), "The topics whose messages get them, by wildcards.")
    overwrite: bool = setting(False, "Whether a property that the message has already is replaced.")


class Enricher:
    """What is to be added to a message."""

    def __init__(self, config: Config, now_ms: Callable[[], int]) -> None:
        self._config = config
        self._now_ms = now_ms
        self._machine = {"host": socket.gethostname(), "pid": str(os.getpid())}

    def concerns(self, topic: str) -> bool:
        return any(fnmatchcase(topic, pattern) for pattern in self._config.topics)

    def additions(self, has: Mapping[str, str], **places: str) -> dict[str, str]:
        """A value that came out empty is left out, since brokers drop such properties."""
        known = {**dict.fromkeys(PLACES, ""), **self._machine, "time_ms": str(self._now_ms()), **places}
        values = {
            name: value.format_map(known)
            for name, value in self._config.properties.items()
            if self._config.overwrite or name not in has
        }
        return {name: value for name, value in values.items() if value}


@attrs.define(eq=False)
class Plugin:
    """In a broker: every message that a producer sends."""

    declaration: ClassVar = Declaration(api=1, config=Config, summary="Adds properties to every message.")
    config: Config
    broker: Context
    _enricher: Enricher = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._enricher = Enricher(self.config, self.broker.clock.now_ms)

    @hookimpl
    def before_append(self, message: PendingMessage, connection: Connection | None) -> None:
        if connection is None:
            return  # the broker's own: a delay that is over, a retry; it was enriched when its producer sent it
        topic, group = requests.producer_of(message)
        if self._enricher.concerns(topic):
            added = self._enricher.additions(
                message.properties,
                group=group,
                topic=topic,
                broker=self.broker.name,
                peer=connection.peer_address,
            )
            for name, value in added.items():
                message.set_property(name, value)


@attrs.define(eq=False)
class ClientPlugin:
    """In a producer: the messages that it sends."""

    declaration: ClassVar = Declaration(api=1, config=Config, summary="Adds properties to every message.")
    config: Config
    client: ClientContext
    _enricher: Enricher = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._enricher = Enricher(self.config, SystemClock().now_ms)

    @hookimpl
    def before_send(self, sending: Sending) -> None:
        message = sending.message
        if self._enricher.concerns(message.topic):
            has = message.all_properties()
            message.properties.update(
                self._enricher.additions(has, group=sending.group, topic=message.topic, client_id=sending.client_id)
            )
