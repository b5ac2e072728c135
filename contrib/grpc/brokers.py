"""Where the requests go that calls become: to the broker around the server.

What the parts of the server need of brokers is :class:`Brokers`; a stand-alone proxy has another one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, Protocol

import attrs

from verniermq.contrib.grpc.call import Call, ClientIdentity, OwnIdentity
from verniermq.contrib.grpc.enums import Code
from verniermq.contrib.grpc.status import CallFailed
from verniermq.kernel import (
    AUTO_CREATE_TOPIC,
    Clock,
    Command,
    Connection,
    Context,
    GroupConfig,
    GroupNotFound,
    Handler,
    TopicConfig,
)

if TYPE_CHECKING:
    from verniermq.contrib.grpc.neighbours import Neighbours

OWN_PEER: Final = ("127.0.0.1", 0)


@attrs.frozen
class BrokerQueues:
    """The queues of a topic on one broker."""

    broker_name: str
    topic: TopicConfig
    address: tuple[str, int] | None = None
    """Where its gRPC port is; ``None`` for where the client came to."""


class Brokers(Protocol):
    """The brokers behind a server."""

    @property
    def clock(self) -> Clock: ...

    @property
    def max_message_size(self) -> int: ...

    async def route(self, topic: str) -> list[BrokerQueues]:
        """Where a topic is, of what is served here. One that the first send will create is like its model.

        Raises:
            CallFailed: it is nowhere.
        """

    async def whole_route(self, topic: str) -> list[BrokerQueues]:
        """The same with the queues of brokers that clients reach by ports of their own.

        Raises:
            CallFailed: it is nowhere, or only where no client of this protocol can go.
        """

    async def with_topics(self, topics: Iterable[str]) -> list[str]:
        """The names of the brokers that have some of these topics: where their clients are registered."""

    async def topic(self, name: str, broker_name: str) -> TopicConfig:
        """
        Raises:
            CallFailed: that broker has no such topic.
        """

    async def group(self, name: str, broker_name: str) -> GroupConfig:
        """The settings of a consumer group; the usual ones for one that its first member will make.

        Raises:
            CallFailed: there is none, and groups are not made by their first member.
        """

    async def connect(self, broker_name: str, peer: tuple[str, int], handlers: Mapping[int, Handler]) -> Connection:
        """A connection for the requests of one client.

        Raises:
            CallFailed: there is no such broker here.
        """

    async def connect_apart(self, broker_name: str, peer: tuple[str, int]) -> Connection | None:
        """A connection for one request at a time; ``None`` where that would cost too much.

        Raises:
            CallFailed: there is no such broker here.
        """

    def sign(self, request: Command, call: Call) -> Command:
        """Have a request say on whose behalf it is made."""

    async def ask(self, broker_name: str, request: Command, timeout: float) -> Command:
        """The answer to a request of the server's own.

        Raises:
            RemotingError: there is none.
        """


@attrs.define(eq=False)
class OwnBroker:
    """The broker that the server is a plugin of."""

    context: Context
    neighbours: Neighbours
    _own: Connection | None = attrs.field(default=None, init=False)

    @property
    def clock(self) -> Clock:
        return self.context.clock

    @property
    def max_message_size(self) -> int:
        return int(self.context.configuration.store.max_message_size)

    async def route(self, topic: str) -> list[BrokerQueues]:
        return [BrokerQueues(self.context.name, await self.topic(topic, ""))]

    async def whole_route(self, topic: str) -> list[BrokerQueues]:
        if topic not in self.context.topics:
            return await self.neighbours.with_topic(topic) or await self.route(topic)
        try:
            return [*await self.route(topic), *await self.neighbours.with_topic(topic)]
        except CallFailed:
            return await self.route(topic)

    async def with_topics(self, topics: Iterable[str]) -> list[str]:
        return [self.context.name]

    async def topic(self, name: str, broker_name: str) -> TopicConfig:
        self._check(broker_name)
        found = self.context.topics.find(name)
        if found is not None:
            return found
        settings = self.context.configuration.topics
        model = self.context.topics.find(AUTO_CREATE_TOPIC)
        if model is None or not settings.auto_create:
            raise CallFailed(
                Code.TOPIC_NOT_FOUND,
                f"topic {name!r} does not exist; create it with: verniermq topic create {name}",
            )
        queues = min(model.write_queues, settings.default_queues)
        return TopicConfig(name, queues, queues)

    async def group(self, name: str, broker_name: str) -> GroupConfig:
        found = self.context.groups.find(name)
        if found is None and not self.context.configuration.groups.auto_create:
            raise CallFailed(Code.CONSUMER_GROUP_NOT_FOUND, str(GroupNotFound(name)))
        return found or GroupConfig(name)

    async def connect(self, broker_name: str, peer: tuple[str, int], handlers: Mapping[int, Handler]) -> Connection:
        if broker_name not in ("", self.context.name):
            return await self.neighbours.connect(broker_name, peer, handlers)
        return self.context.connect_in_process(peer, ClientIdentity(peer[0]), handlers)

    async def connect_apart(self, broker_name: str, peer: tuple[str, int]) -> Connection | None:
        return await self.connect(broker_name, peer, {})

    def sign(self, request: Command, call: Call) -> Command:
        return call.sign(request)

    async def ask(self, broker_name: str, request: Command, timeout: float = 3.0) -> Command:
        if self._own is None or self._own.closed:
            self._own = self.context.connect_in_process(OWN_PEER, OwnIdentity())
        return await self._own.request(request, timeout)

    def _check(self, broker_name: str) -> None:
        if broker_name not in ("", self.context.name):
            raise CallFailed(
                Code.BAD_REQUEST, f"this is broker {self.context.name!r}, not {broker_name!r:.100}; ask for a new route"
            )
