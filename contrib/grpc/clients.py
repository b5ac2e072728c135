"""The clients of a server: what each said of itself, and the connections to brokers that its calls are made on.

A client is known by its id and the host that it calls from. For each broker it has a connection, opened when it is
first needed, on which its groups are registered by heartbeats: so that it is there for everything that asks who is in
a group, and is asked about its transactions. The connection ends when the client says goodbye, when its telemetry
stream breaks, or when the broker has heard nothing of it for too long.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from verniermq.contrib.grpc.brokers import Brokers
from verniermq.contrib.grpc.call import Call
from verniermq.contrib.grpc.enums import ClientType, Code, FilterType
from verniermq.contrib.grpc.status import CallFailed, checked
from verniermq.kernel import Command, Connection, Handler, RequestCode, Subscription
from verniermq.kernel.requests import Heartbeat, UnregisterClient

logger = logging.getLogger(__name__)

SILENT_SECONDS: Final = 120.0
"""A client without a stream of which nothing was heard for so long is forgotten."""
TOPICS_PER_PRODUCER: Final = 1000
MOST_IDLE: Final = 16
"""Connections of one client to one broker that are kept for its next receives."""

CONSUMERS: Final = frozenset({ClientType.PUSH_CONSUMER, ClientType.SIMPLE_CONSUMER})


def subscription_of(topic: str, expression: Any) -> Subscription:
    kind = "SQL92" if expression.type == FilterType.SQL else "TAG"
    return Subscription(topic, expression.expression or "*", kind)


@attrs.define(eq=False)
class GrpcClient:
    """One client."""

    client_id: str
    peer: tuple[str, int]
    brokers: Brokers
    handlers: Mapping[int, Handler] = attrs.field(factory=dict)
    """Serve what brokers ask of it."""
    kind: int = ClientType.CLIENT_TYPE_UNSPECIFIED
    topics: dict[str, None] = attrs.field(factory=dict)
    """Of a producer: those that it said it sends to, or did."""
    group: str = ""
    subscriptions: dict[str, Subscription] = attrs.field(factory=dict)
    is_known: bool = False
    """Whether it has sent its settings."""
    send: Callable[[Any], None] | None = None
    """Puts a command onto its telemetry stream, while there is one."""
    last_heard: float = 0.0
    _connections: dict[str, Connection] = attrs.field(factory=dict, init=False)
    _idle: dict[str, list[Connection]] = attrs.field(factory=dict, init=False)
    """For requests that wait, one after the other; broker → those that are free."""
    _busy: set[Connection] = attrs.field(factory=set, init=False)
    """Those on which something waits."""
    _opening: asyncio.Lock = attrs.field(factory=asyncio.Lock, init=False)

    async def connection(self, broker_name: str) -> Connection:
        known = self._connections.get(broker_name)
        if known is not None and not known.closed:
            return known
        async with self._opening:
            known = self._connections.get(broker_name)
            if known is None or known.closed:
                known = await self.brokers.connect(broker_name, self.peer, self.handlers)
                self._connections[broker_name] = known
        return known

    async def request(self, broker_name: str, command: Command, call: Call, timeout: float = 3.0) -> Command:
        """
        Raises:
            RemotingError: there is no answer.
        """
        connection = await self.connection(broker_name)
        return await connection.request(self.brokers.sign(command, call), timeout)

    async def ask_apart(
        self, broker_name: str, command: Command, call: Call, timeout: float, unclaimed: Callable[[Command], None]
    ) -> Command:
        """Like :meth:`request`, for what waits at the broker. It ends there when the caller is cancelled.

        Args:
            unclaimed: gets an answer that comes nevertheless

        Raises:
            RemotingError: there is no answer.
        """
        idle = self._idle.setdefault(broker_name, [])
        apart = idle.pop() if idle else await self.brokers.connect_apart(broker_name, self.peer)
        if apart is None:
            asking = asyncio.ensure_future(self.request(broker_name, command, call, timeout))
        else:
            self._busy.add(apart)
            asking = asyncio.ensure_future(apart.request(self.brokers.sign(command, call), timeout))
        answered = False
        try:
            answer = await asyncio.shield(asking)
            answered = True
        except asyncio.CancelledError:
            asking.add_done_callback(lambda done: _hand_over(done, unclaimed))
            raise
        finally:
            if apart is not None:
                self._busy.discard(apart)
                if answered and len(idle) < MOST_IDLE and not apart.closed:
                    idle.append(apart)
                else:
                    # In the next turn: an answer that is on its way arrives before that.
                    asyncio.get_running_loop().call_soon(apart.close)
        return answer

    # --- groups ----------------------------------------------------------------------------

    async def register(self, call: Call) -> None:
        """Tell the brokers which groups the client is in.

        Raises:
            CallFailed: a broker refuses it.
        """
        for broker_name in await self.brokers.with_topics([*self.topics, *self.subscriptions]):
            answer = await self.request(broker_name, self._heartbeat().command(), call)
            checked(answer, RequestCode.HEART_BEAT)

    def _heartbeat(self) -> Heartbeat:
        consumers = []
        if self.group:
            wanted = [
                {
                    "topic": one.topic, "subString": one.expression, "expressionType": one.expression_type,
                    "subVersion": round(self.brokers.clock.now_ms()), "classFilterMode": False, "tagsSet": [],
                    "codeSet": [],
                }
                for one in self.subscriptions.values()
            ]  # fmt: skip
            consumers.append(
                {
                    "groupName": self.group, "consumeType": "CONSUME_POP", "messageModel": "CLUSTERING",
                    "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "subscriptionDataSet": wanted, "unitMode": False,
                }
            )  # fmt: skip
        return Heartbeat(client_id=self.client_id, producer_groups=list(self.topics), consumers=consumers)

    async def sends_to(self, topic: str, call: Call) -> None:
        """Have the client asked about transactions of a topic that its settings do not name yet."""
        if topic not in self.topics:
            if len(self.topics) >= TOPICS_PER_PRODUCER:
                raise CallFailed(Code.BAD_REQUEST, f"transactions in more than {TOPICS_PER_PRODUCER} topics")
            self.topics[topic] = None
            await self.register(call)

    async def leave(self, call: Call) -> None:
        """The client says goodbye."""
        for broker_name, connection in list(self._connections.items()):
            if self.group and not connection.closed:
                goodbye = UnregisterClient(client_id=self.client_id, consumer_group=self.group)
                await self.request(broker_name, goodbye.command(), call)
        self.close()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        for connection in (*self._busy, *(one for idle in self._idle.values() for one in idle)):
            connection.close()
        self._idle.clear()


def _hand_over(done: asyncio.Future[Command], unclaimed: Callable[[Command], None]) -> None:
    if not done.cancelled() and done.exception() is None:
        unclaimed(done.result())


@attrs.define(eq=False)
class ClientTable:
    """All of them; ``make_handlers`` says how one serves what brokers ask."""

    brokers: Brokers
    most: int
    make_handlers: Callable[[GrpcClient], Mapping[int, Handler]]
    _clients: dict[tuple[str, str], GrpcClient] = attrs.field(factory=dict, init=False)

    def __len__(self) -> int:
        return len(self._clients)

    def find(self, call: Call) -> GrpcClient | None:
        return self._clients.get((call.client_id, call.peer[0]))

    def of(self, call: Call) -> GrpcClient:
        """The client that calls.

        Raises:
            CallFailed: it is new, and there are as many as there may be.
        """
        key = (call.client_id, call.peer[0])
        client = self._clients.get(key)
        if client is None:
            if len(self._clients) >= self.most:
                self.forget_silent()
            if len(self._clients) >= self.most:
                what = f"{self.most} clients are connected; try again later, or raise max_clients in [plugins.grpc]"
                raise CallFailed(Code.TOO_MANY_REQUESTS, what)
            client = self._clients[key] = GrpcClient(call.client_id, call.peer, self.brokers)
            client.handlers = self.make_handlers(client)
        client.last_heard = self.brokers.clock.monotonic()
        return client

    def forget(self, client: GrpcClient) -> None:
        client.close()
        if self._clients.get((client.client_id, client.peer[0])) is client:
            del self._clients[client.client_id, client.peer[0]]

    def forget_silent(self) -> None:
        oldest = self.brokers.clock.monotonic() - SILENT_SECONDS
        for client in list(self._clients.values()):
            if client.send is None and client.last_heard < oldest:
                logger.debug("client forgotten client_id=%s", client.client_id)
                self.forget(client)

    def close(self) -> None:
        for client in self._clients.values():
            client.close()
        self._clients.clear()
