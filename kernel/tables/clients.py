"""Who is there: producers and consumers, by group and connection (RocketMQ: ``ConsumerManager``).

A client is known by the connection that its heartbeat came on. When a group gains or loses a member, or its
subscriptions change, every member is told at once, so that queues change hands in milliseconds instead of
at the next periodic look. In a group of thousands that takes a while: they are told in steps, and what changes
meanwhile is told in one further round.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import attrs

from verniermq.kernel.clock import Clock
from verniermq.kernel.config import ClientSettings
from verniermq.kernel.errors import InvalidParameter, LimitReached
from verniermq.kernel.loop import Steps, in_steps
from verniermq.kernel.message import MATCH_ALL, MessageFilter, Subscription
from verniermq.kernel.remoting import Connection
from verniermq.kernel.requests import NotifyConsumersChanged

logger = logging.getLogger(__name__)

NOTICES_PER_STEP: Final = 64
"""Members that are told of a change before others have a turn."""

GROUPS_LEFT_PER_STEP: Final = 32
"""Groups that a lost connection is taken out of before others have a turn."""


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
    """By the clock's ``monotonic``."""


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
        settings: ClientSettings,
        *,
        compile_filter: Callable[[Subscription], MessageFilter],
        may_notify: Callable[[str], bool],
        on_members_changed: Callable[[str], None],
        on_joined: Callable[[str, str, str, Connection], None],
        on_left: Callable[[str, str, str, Connection], None],
    ) -> None:
        self._clock = clock
        self._settings = settings
        self._compile_filter = compile_filter
        self._may_notify = may_notify
        self._on_members_changed = on_members_changed
        self._on_joined = on_joined
        self._on_left = on_left
        self.consumers: dict[str, ConsumerGroup] = {}
        self.producers: dict[str, dict[Connection, Member]] = {}
        self._groups_of: dict[Connection, set[tuple[str, str]]] = {}
        """Connection → ("consumer" | "producer", group), so that a closing one is taken out at once."""
        self._memberships = 0
        self._subscriptions = 0
        self._producers_by_id: dict[str, dict[tuple[str, Connection], Member]] = {}
        self._leaving = Steps(GROUPS_LEFT_PER_STEP, at_once=False)  # thousands may be lost in one turn
        self._telling = Steps(NOTICES_PER_STEP, at_once=False)  # so that what changes in one turn is told once
        self._being_told: set[str] = set()
        self._to_tell_again: set[str] = set()

    # --- heartbeats ------------------------------------------------------------------------

    def register_producer(self, group: str, client_id: str, connection: Connection) -> None:
        """
        Raises:
            LimitReached: the client, or all of them together, are in as many groups as they may be.
        """
        self._note(connection, "producer", group)
        members = self.producers.setdefault(group, {})
        known = members.get(connection)
        if known is not None and known.client_id != client_id:
            self._forget_id(known.client_id, group, connection)
        member = members[connection] = self._member(client_id, connection)
        self._producers_by_id.setdefault(client_id, {})[group, connection] = member
        if known is None:
            self._on_joined("producer", group, client_id, connection)

    def register_consumer(
        self,
        group_name: str,
        client_id: str,
        connection: Connection,
        subscriptions: Iterable[LiveSubscription] | None,
        **modes: str,
    ) -> bool:
        """Take in one group of a heartbeat and say whether anything changed; no subscriptions means: as before.

        Raises:
            LimitReached: the client is in too many groups, or the group subscribes to too many topics.
        """
        self._note(connection, "consumer", group_name)
        group = self.consumers.setdefault(group_name, ConsumerGroup(group_name))
        for mode, value in modes.items():
            setattr(group, mode, value)
        changed = connection not in group.members
        group.members[connection] = self._member(client_id, connection)
        if changed:
            self._on_joined("consumer", group_name, client_id, connection)
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
            known = group.subscriptions.get(topic)
            if known is None:
                self._check_room(group)
                changed = True
                self._subscriptions += 1
            named.add(topic)
            if known is None or live.subscription.version > known.subscription.version:
                group.subscriptions[topic] = live
        for topic in group.subscriptions.keys() - named:
            del group.subscriptions[topic]
            self._subscriptions -= 1
            changed = True
        return changed

    def _check_room(self, group: ConsumerGroup) -> None:
        settings = self._settings
        if len(group.subscriptions) >= settings.max_subscriptions_per_group:
            what, limit = f"group {group.name!r} subscribes to topics:", settings.max_subscriptions_per_group
            raise LimitReached(what, limit, "max_subscriptions_per_group", "clients")
        if self._subscriptions >= settings.max_subscriptions:
            what = "the groups of this broker have subscriptions:"
            raise LimitReached(what, settings.max_subscriptions, "max_subscriptions", "clients")

    def _member(self, client_id: str, connection: Connection) -> Member:
        return Member(client_id, connection, connection.language, connection.version, self._clock.monotonic())

    def _note(self, connection: Connection, kind: str, group: str) -> None:
        noted = self._groups_of.setdefault(connection, set())
        if (kind, group) in noted:
            return
        settings = self._settings
        if len(noted) >= settings.max_groups_per_client:
            what = "this client is in producer and consumer groups:"
            raise LimitReached(what, settings.max_groups_per_client, "max_groups_per_client", "clients")
        if self._memberships >= settings.max_members:
            what = "the groups of this broker have members:"
            raise LimitReached(what, settings.max_members, "max_members", "clients")
        noted.add((kind, group))
        self._memberships += 1

    # --- leaving ---------------------------------------------------------------------------

    def unregister(self, connection: Connection, *, producer_group: str | None, consumer_group: str | None) -> None:
        if producer_group:
            self._leave(connection, "producer", producer_group)
        if consumer_group:
            self._leave(connection, "consumer", consumer_group)

    def connection_closed(self, connection: Connection) -> None:
        self._leaving.begin(self._leave_all(connection))

    def _leave_all(self, connection: Connection) -> Iterator[None]:
        for kind, group in list(self._groups_of.get(connection, ())):
            self._leave(connection, kind, group)
            yield
        self._groups_of.pop(connection, None)

    def _leave(self, connection: Connection, kind: str, group_name: str) -> None:
        noted = self._groups_of.get(connection, set())
        if (kind, group_name) in noted:
            noted.remove((kind, group_name))
            self._memberships -= 1
        if kind == "producer":
            members = self.producers.get(group_name, {})
            member = members.pop(connection, None)
            if member is not None:
                self._forget_id(member.client_id, group_name, connection)
                self._on_left("producer", group_name, member.client_id, connection)
            if not members:
                self.producers.pop(group_name, None)
            return
        group = self.consumers.get(group_name)
        member = None if group is None else group.members.pop(connection, None)
        if group is None or member is None:
            return
        self._on_left("consumer", group_name, member.client_id, connection)
        if not group.members:
            del self.consumers[group_name]
            self._subscriptions -= len(group.subscriptions)
        self._tell(group)

    def _forget_id(self, client_id: str, group: str, connection: Connection) -> None:
        known = self._producers_by_id.get(client_id, {})
        known.pop((group, connection), None)
        if not known:
            self._producers_by_id.pop(client_id, None)

    async def expire(self) -> None:
        """Close connections whose clients sent no heartbeat for too long; closing takes them out of their groups."""
        async for member in in_steps(self._members()):
            silent = self._clock.monotonic() - member.last_heartbeat
            if silent > self._settings.expiry and not member.connection.closed:
                logger.warning(
                    "client expired client_id=%s peer=%s silent_s=%d limit_s=%d",
                    member.client_id, member.connection.peer_address, silent, self._settings.expiry,
                )  # fmt: skip
                member.connection.close()
                self.connection_closed(member.connection)

    def _members(self) -> Iterator[Member]:
        """All of them; who comes or goes meanwhile may be missing."""
        for group in list(self.consumers.values()):
            yield from list(group.members.values())
        for members in list(self.producers.values()):
            yield from list(members.values())

    # --- telling ---------------------------------------------------------------------------

    def _tell(self, group: ConsumerGroup) -> None:
        name = group.name
        self._on_members_changed(name)
        if group.message_model == "BROADCASTING" or not self._may_notify(name):
            return
        if name in self._being_told:
            self._to_tell_again.add(name)
        else:
            self._being_told.add(name)
            self._telling.begin(self._notify(name))

    def _notify(self, name: str) -> Iterator[None]:
        group = self.consumers.get(name)
        for connection in list(group.members) if group is not None else ():
            connection.oneway(NotifyConsumersChanged(group=name).command())
            yield
        self._being_told.discard(name)
        if name in self._to_tell_again:
            self._to_tell_again.discard(name)
            self._being_told.add(name)
            self._telling.begin(self._notify(name))

    # --- asking ----------------------------------------------------------------------------

    def subscription(self, group: str, topic: str) -> LiveSubscription | None:
        found = self.consumers.get(group)
        return None if found is None else found.subscriptions.get(topic)

    def consumer(self, group: str, client_id: str) -> Member | None:
        found = self.consumers.get(group)
        if found is None:
            return None
        return next((m for m in found.members.values() if m.client_id == client_id), None)

    def producer(self, client_id: str) -> Member | None:
        """Where a reply for this client goes."""
        return next(iter(self._producers_by_id.get(client_id, {}).values()), None)
