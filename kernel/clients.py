"""Who is there: producers and consumers, by group and connection (RocketMQ: ``ConsumerManager``).

A client is known by the connection that its heartbeat came on. When a group gains or loses a member, or its
subscriptions change, every member is told at once, so that queues change hands in milliseconds instead of
at the next periodic look.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs

from verniermq.kernel.clock import Clock
from verniermq.kernel.codes import RequestCode
from verniermq.kernel.errors import InvalidParameter
from verniermq.kernel.message import MATCH_ALL, MessageFilter, Subscription
from verniermq.kernel.remoting import Command, Connection

logger = logging.getLogger(__name__)


def _version(value: object) -> int:
    try:
        return int(value or 0)  # type: ignore[call-overload, no-any-return]  # whatever a peer sent
    except (TypeError, ValueError, OverflowError):
        raise InvalidParameter(f"subVersion is {value!r}, expected a whole number") from None


@attrs.define(eq=False)
class Member:
    """One client in one group."""

    client_id: str
    connection: Connection
    language: str
    version: int
    last_heartbeat: float


@attrs.define(eq=False)
class LiveSubscription:
    """A subscription as a heartbeat brought it, with its compiled filter.

    A bad expression is kept with its error, which every pull then gets as its answer: refusing the heartbeat
    would take the whole client off the air.
    """

    subscription: Subscription
    filter: MessageFilter = MATCH_ALL
    error: Exception | None = None
    wire: Mapping[str, Any] = attrs.Factory(dict)
    """As it came, for those who ask what a group subscribes to."""


@attrs.define(eq=False)
class ConsumerGroup:
    """A consumer group with at least one live member."""

    name: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from: str = "CONSUME_FROM_LAST_OFFSET"
    members: dict[Connection, Member] = attrs.Factory(dict)
    subscriptions: dict[str, LiveSubscription] = attrs.Factory(dict)

    def client_ids(self) -> list[str]:
        return sorted({member.client_id for member in self.members.values()})


class ClientRegistry:
    """``compile_filter`` turns a subscription into a filter; ``may_notify`` says whether a group wants notices."""

    def __init__(
        self,
        clock: Clock,
        *,
        expiry_seconds: float,
        compile_filter: Callable[[Subscription], MessageFilter],
        may_notify: Callable[[str], bool],
        on_members_changed: Callable[[str], None],
    ) -> None:
        self._clock = clock
        self._expiry_seconds = expiry_seconds
        self._compile_filter = compile_filter
        self._may_notify = may_notify
        self._on_members_changed = on_members_changed
        self.consumers: dict[str, ConsumerGroup] = {}
        self.producers: dict[str, dict[Connection, Member]] = {}
        self._groups_of: dict[Connection, set[tuple[str, str]]] = {}
        """Connection → ("consumer" | "producer", group), so that a closing one is taken out at once."""

    # --- heartbeats ------------------------------------------------------------------------

    def register_producer(self, group: str, client_id: str, connection: Connection) -> None:
        self.producers.setdefault(group, {})[connection] = self._member(client_id, connection)
        self._note(connection, "producer", group)

    def register_consumer(
        self,
        group_name: str,
        client_id: str,
        connection: Connection,
        subscriptions: Iterable[LiveSubscription] | None,
        **modes: str,
    ) -> bool:
        """Take in one group of a heartbeat and say whether anything changed; no subscriptions means: as before."""
        group = self.consumers.setdefault(group_name, ConsumerGroup(group_name))
        for mode, value in modes.items():
            setattr(group, mode, value)
        changed = connection not in group.members
        group.members[connection] = self._member(client_id, connection)
        self._note(connection, "consumer", group_name)
        if subscriptions is not None:
            changed |= self._subscribe(group, subscriptions)
        if changed:
            self._tell(group)
        return changed

    def compile(self, wire: Mapping[str, Any]) -> LiveSubscription:
        """One element of a heartbeat's ``subscriptionDataSet``, with its filter."""
        subscription = Subscription(
            topic=str(wire.get("topic", "")),
            expression=str(wire.get("subString") or "*"),
            expression_type=str(wire.get("expressionType") or "TAG"),
            version=_version(wire.get("subVersion")),
        )
        live = LiveSubscription(subscription, wire=wire)
        try:
            live.filter = self._compile_filter(subscription)
        except Exception as error:
            live.error = error
        return live

    def _subscribe(self, group: ConsumerGroup, subscriptions: Iterable[LiveSubscription]) -> bool:
        changed = False
        named = set()
        for live in subscriptions:
            topic = live.subscription.topic
            named.add(topic)
            known = group.subscriptions.get(topic)
            if known is None:
                changed = True
            elif live.subscription.version <= known.subscription.version:
                continue
            group.subscriptions[topic] = live
        for topic in group.subscriptions.keys() - named:
            del group.subscriptions[topic]
            changed = True
        return changed

    def _member(self, client_id: str, connection: Connection) -> Member:
        return Member(client_id, connection, connection.language, connection.version, self._clock.now())

    def _note(self, connection: Connection, kind: str, group: str) -> None:
        self._groups_of.setdefault(connection, set()).add((kind, group))

    # --- leaving ---------------------------------------------------------------------------

    def unregister(self, connection: Connection, *, producer_group: str | None, consumer_group: str | None) -> None:
        if producer_group:
            self._leave(connection, "producer", producer_group)
        if consumer_group:
            self._leave(connection, "consumer", consumer_group)

    def connection_closed(self, connection: Connection) -> None:
        for kind, group in self._groups_of.pop(connection, set()):
            self._leave(connection, kind, group)

    def _leave(self, connection: Connection, kind: str, group_name: str) -> None:
        noted = self._groups_of.get(connection)
        if noted is not None:
            noted.discard((kind, group_name))
        if kind == "producer":
            members = self.producers.get(group_name, {})
            members.pop(connection, None)
            if not members:
                self.producers.pop(group_name, None)
            return
        group = self.consumers.get(group_name)
        if group is None or group.members.pop(connection, None) is None:
            return
        if not group.members:
            del self.consumers[group_name]
        self._tell(group)

    def expire(self) -> None:
        """Close connections whose clients sent no heartbeat for too long; closing takes them out of their groups."""
        oldest = self._clock.now() - self._expiry_seconds
        members = [m for group in self.consumers.values() for m in group.members.values()]
        members += [m for group in self.producers.values() for m in group.values()]
        for member in members:
            if member.last_heartbeat < oldest and not member.connection.closed:
                logger.warning(
                    "client expired client_id=%s peer=%s silent_s=%d limit_s=%d",
                    member.client_id, member.connection.peer_address,
                    self._clock.now() - member.last_heartbeat, self._expiry_seconds,
                )  # fmt: skip
                member.connection.close()
                self.connection_closed(member.connection)

    # --- telling ---------------------------------------------------------------------------

    def _tell(self, group: ConsumerGroup) -> None:
        self._on_members_changed(group.name)
        if group.message_model == "BROADCASTING" or not self._may_notify(group.name):
            return
        for connection in group.members:
            connection.oneway(Command.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group.name}))

    # --- asking ----------------------------------------------------------------------------

    def subscription(self, group: str, topic: str) -> LiveSubscription | None:
        found = self.consumers.get(group)
        return None if found is None else found.subscriptions.get(topic)

    def producer_connection(self, group: str) -> Connection | None:
        """Some live producer of a group: who answers for its transactions."""
        for connection in self.producers.get(group, {}):
            return connection
        return None

    def consumer(self, group: str, client_id: str) -> Member | None:
        found = self.consumers.get(group)
        if found is None:
            return None
        return next((m for m in found.members.values() if m.client_id == client_id), None)

    def producer(self, client_id: str) -> Member | None:
        """Where a reply for this client goes."""
        for members in self.producers.values():
            for member in members.values():
                if member.client_id == client_id:
                    return member
        return None
