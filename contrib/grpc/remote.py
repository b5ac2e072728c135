"""The brokers of a cluster, asked over the network: what a stand-alone proxy has behind it.

Brokers are found by the name servers, and asked what any remoting client may ask. Each client has a connection
of its own to each broker that it uses, so that brokers know it, and ask it about its transactions. Routes and
settings are remembered for a few seconds.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Coroutine, Hashable, Iterable, Mapping, Sequence
from typing import Any, Final

import attrs

from verniermq.client import Credentials
from verniermq.contrib.grpc.brokers import BrokerQueues
from verniermq.contrib.grpc.call import Call
from verniermq.contrib.grpc.enums import Code
from verniermq.contrib.grpc.status import CallFailed
from verniermq.kernel import (
    AUTO_CREATE_TOPIC,
    Clock,
    Command,
    Connection,
    GroupConfig,
    Handler,
    ResponseCode,
    SystemClock,
    TopicConfig,
    TopicNotFound,
    connect,
    parse_answer,
    request_name,
)
from verniermq.protocol.groups import GetGroupConfig
from verniermq.protocol.peers import MASTER, Peers
from verniermq.protocol.topics import GetTopicConfig

REMEMBERED_SECONDS: Final = 5.0
MOST_REMEMBERED: Final = 10_000
QUEUES_OF_NEW_TOPIC: Final = 8
LARGEST_MESSAGE: Final = 4 << 20
CONNECT_SECONDS: Final = 3.0


@attrs.define(eq=False)
class RemoteBrokers:
    name_servers: str | Sequence[str]
    credentials: Credentials | None = None
    """What the proxy's requests are signed with, for brokers with access control."""
    clock: Clock = attrs.field(factory=SystemClock)
    tls: Callable[[], ssl.SSLContext | None] = lambda: None
    """How to speak TLS to brokers and name servers."""
    max_message_size: int = LARGEST_MESSAGE
    _peers: Peers = attrs.field(init=False)
    _addresses: dict[str, str] = attrs.field(factory=dict, init=False)
    """Broker → its master."""
    _own: dict[str, Connection] = attrs.field(factory=dict, init=False)
    _remembered: dict[Hashable, tuple[float, asyncio.Task[Any]]] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self._peers = Peers(self.name_servers, tls=self.tls)

    def close(self) -> None:
        self._peers.close()
        for connection in self._own.values():
            connection.close()

    # --- topics and groups -----------------------------------------------------------------

    async def route(self, topic: str) -> list[BrokerQueues]:
        found: list[BrokerQueues] = await self.remember(("route", topic), lambda: self._fetch_route(topic))
        return found

    async def whole_route(self, topic: str) -> list[BrokerQueues]:
        return await self.route(topic)

    async def _fetch_route(self, topic: str) -> list[BrokerQueues]:
        try:
            queues = await self.placed(topic)
        except TopicNotFound:
            return await self._route_of_new(topic)
        found = [BrokerQueues(name, await self.described(topic, name, config)) for name, config in queues]
        if not found:
            raise CallFailed(Code.TOPIC_NOT_FOUND, f"no broker of topic {topic!r} has a master now")
        return found

    async def _route_of_new(self, topic: str) -> list[BrokerQueues]:
        try:
            models = self._queues(await self._peers.route(AUTO_CREATE_TOPIC))
        except TopicNotFound:
            models = []
        if not models:
            what = f"topic {topic!r} does not exist; create it with: verniermq topic create {topic}"
            raise CallFailed(Code.TOPIC_NOT_FOUND, what)
        name, model = models[0]
        queues = max(1, min(model.write_queues, QUEUES_OF_NEW_TOPIC))
        return [BrokerQueues(name, TopicConfig(topic, queues, queues))]

    def _queues(self, route: Mapping[str, Any]) -> list[tuple[str, TopicConfig]]:
        for data in route.get("brokerDatas") or []:
            if MASTER in data["brokerAddrs"]:
                self._addresses[data["brokerName"]] = data["brokerAddrs"][MASTER]
            else:
                self._addresses.pop(data["brokerName"], None)
        found = [
            (data["brokerName"], TopicConfig("", data["readQueueNums"], data["writeQueueNums"], data["perm"]))
            for data in route.get("queueDatas") or []
            if data["brokerName"] in self._addresses
        ]
        return sorted(found, key=lambda pair: pair[0])

    async def placed(self, topic: str) -> list[tuple[str, TopicConfig]]:
        """The brokers that have a topic, and its queues there, as the name servers know them.

        Raises:
            TopicNotFound: they do not know it.
            RemotingError: none can be asked.
        """
        found: list[tuple[str, TopicConfig]] = await self.remember(("placed", topic), lambda: self._fetch_placed(topic))
        return found

    async def _fetch_placed(self, topic: str) -> list[tuple[str, TopicConfig]]:
        return self._queues(await self._peers.route(topic))

    async def described(self, topic: str, broker_name: str, config: TopicConfig) -> TopicConfig:
        """A topic with the attributes that it has on a broker."""
        attributes = await self.remember(
            ("attributes", topic, broker_name), lambda: self._fetch_attributes(topic, broker_name)
        )
        return attrs.evolve(config, name=topic, attributes=attributes)

    async def _fetch_attributes(self, topic: str, broker_name: str) -> Mapping[str, str]:
        request = GetTopicConfig(topic=topic).command()
        answer = await self.ask(broker_name, request, CONNECT_SECONDS)
        if answer.code != ResponseCode.SUCCESS:
            return {}
        config = parse_answer(answer.body, self._addresses[broker_name], request_name(request.code))
        return {str(name): str(value) for name, value in (config.get("attributes") or {}).items()}

    async def masters(self) -> Mapping[str, str]:
        """The brokers that the name servers know, each with the address of its master.

        Raises:
            RemotingError: none can be asked.
        """
        found: Mapping[str, str] = await self.remember(("masters",), self._peers.masters)
        self._addresses.update(found)
        return found

    async def with_topics(self, topics: Iterable[str]) -> list[str]:
        names: dict[str, None] = {}
        for topic in topics:
            try:
                names.update(dict.fromkeys(found.broker_name for found in await self.route(topic)))
            except CallFailed:
                continue  # of topics that are nowhere the client is told where it uses them
        return list(names)

    async def topic(self, name: str, broker_name: str) -> TopicConfig:
        for found in await self.route(name):
            if found.broker_name == broker_name:
                return found.topic
        what = f"broker {broker_name!r:.100} has no topic {name!r}; ask for a new route"
        raise CallFailed(Code.TOPIC_NOT_FOUND, what)

    async def group(self, name: str, broker_name: str) -> GroupConfig:
        found: GroupConfig = await self.remember(("group", name), lambda: self._fetch_group(name, broker_name))
        return found

    async def _fetch_group(self, name: str, broker_name: str) -> GroupConfig:
        if not self._addresses:
            await self.masters()
        broker_name = broker_name or min(self._addresses, default="")
        answer = await self.ask(broker_name, GetGroupConfig(group=name).command(), CONNECT_SECONDS)
        if answer.code == ResponseCode.SUCCESS:
            data = parse_answer(answer.body, self._addresses[broker_name], "GET_SUBSCRIPTIONGROUP_CONFIG")
            return GroupConfig.from_json(data)
        return GroupConfig(name)  # its first member makes it, or is refused by the broker

    async def remember(self, key: Hashable, fetch: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Ask once for all who want to know at the same time, and not again for a few seconds."""
        now = self.clock.monotonic()
        known = self._remembered.get(key)
        if known is None or now - known[0] > REMEMBERED_SECONDS:
            if len(self._remembered) >= MOST_REMEMBERED:
                self._remembered.clear()
            known = self._remembered[key] = (now, asyncio.create_task(fetch()))
            known[1].add_done_callback(lambda done: done.cancelled() or done.exception())  # maybe nobody waits for it
        try:
            return await asyncio.shield(known[1])
        except asyncio.CancelledError:
            raise
        except Exception:
            self._remembered.pop(key, None)
            raise

    # --- requests --------------------------------------------------------------------------

    async def connect(self, broker_name: str, peer: tuple[str, int], handlers: Mapping[int, Handler]) -> Connection:
        return await connect(self.address(broker_name), handlers, CONNECT_SECONDS, tls=self.tls())

    async def connect_apart(self, broker_name: str, peer: tuple[str, int]) -> Connection | None:
        return None  # a socket for each receive that waits

    def address(self, broker_name: str) -> str:
        """
        Raises:
            CallFailed: no such broker is known.
        """
        address = self._addresses.get(broker_name)
        if address is None:
            raise CallFailed(Code.BAD_REQUEST, f"no broker {broker_name!r:.100} is known; ask for a new route")
        return address

    def sign(self, request: Command, call: Call) -> Command:
        """In the proxy's own name: what a client signs, no broker can check."""
        if self.credentials is not None:
            self.credentials.sign(request)
        return request

    async def ask(self, broker_name: str, request: Command, timeout: float) -> Command:
        known = self._own.get(broker_name)
        if known is None or known.closed:
            known = self._own[broker_name] = await self.connect(broker_name, ("", 0), {})
        if self.credentials is not None:
            self.credentials.sign(request)
        return await known.request(request, timeout)
