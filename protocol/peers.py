"""Other servers that are asked something: name servers, and the brokers that they know.

    async with Peers("10.0.0.1:9876;10.0.0.2:9876") as peers:
        for address in (await peers.masters()).values():
            answer = await peers.ask(address, Command.request(RequestCode.GET_BROKER_RUNTIME_INFO))

For commands, and for plugins that ask other brokers. Connections are opened when they are needed and kept.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Container, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

from verniermq.kernel import (
    Command,
    Connection,
    PeerUnreachable,
    RemotingError,
    RequestCode,
    ResponseCode,
    TopicNotFound,
    UnexpectedAnswer,
    connect,
    parse_answer,
    request_name,
)
from verniermq.protocol.nameserver import GetRouteInfo

START_ONE: Final = "start one with: verniermq broker, or give its address: --namesrv"
"""For a command that found no name server."""
MASTER: Final = "0"
"""The id of a master among the brokers of one name, as JSON has it."""


class NoNameServer(PeerUnreachable):
    """None of the name servers answered."""

    def __init__(self, reasons: Sequence[tuple[str, str]]) -> None:
        super().__init__("a name server", "; ".join(f"{address}: {why}" for address, why in reasons) or "none is known")


class Peers:
    """
    Args:
        name_servers: addresses in one text (``host:port;host:port``), or a list, which may change
        tls: says how to speak TLS to them, asked before each connection
    """

    def __init__(
        self,
        name_servers: str | Sequence[str] = (),
        *,
        timeout: float = 3.0,
        tls: Callable[[], ssl.SSLContext | None] = lambda: None,
    ) -> None:
        if isinstance(name_servers, str):
            name_servers = [address.strip() for address in name_servers.replace(",", ";").split(";") if address.strip()]
        self._name_servers = name_servers
        self._timeout = timeout
        self._tls = tls
        self._connections: dict[str, Connection] = {}

    @property
    def name_servers(self) -> Sequence[str]:
        return self._name_servers

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        connections = list(self._connections.values())
        self.close()
        for connection in connections:
            await connection.wait_closed()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    async def ask(
        self, address: str, request: Command, fine: Container[int] = (), timeout: float | None = None
    ) -> Command:
        """The answer of one server.

        Raises:
            UnexpectedAnswer: it is neither success nor one of ``fine``.
            PeerUnreachable, ConnectionLost, RequestTimeout: there is none.
        """
        connection = await self._connection(address)
        answer = await connection.request(request, self._timeout if timeout is None else timeout)
        if answer.code != ResponseCode.SUCCESS and answer.code not in fine:
            raise UnexpectedAnswer(address, request_name(request.code), answer.code, answer.remark)
        return answer

    async def _connection(self, address: str) -> Connection:
        known = self._connections.get(address)
        if known is not None and not known.closed:
            return known
        connection = await connect(address, timeout=self._timeout, tls=self._tls())
        meanwhile = self._connections.get(address)
        if meanwhile is not None and not meanwhile.closed:
            connection.close()
            return meanwhile
        self._connections[address] = connection
        return connection

    async def ask_name_server(self, request: Command) -> dict[Any, Any]:
        """What the first name server that answers says; those that cannot be reached are passed over.

        Raises:
            UnexpectedAnswer: it refuses.
            NoNameServer: none answers.
        """
        reasons: list[tuple[str, str]] = []
        for address in self._name_servers:
            try:
                answer = await self.ask(address, request)
                return parse_answer(answer.body, address, request_name(request.code))
            except UnexpectedAnswer:
                raise
            except RemotingError as error:
                reasons.append((address, str(error).removeprefix(f"cannot reach {address}: ")))
        raise NoNameServer(reasons)

    async def route(self, topic: str) -> Mapping[str, Any]:
        """Where a topic is, as JSON: ``queueDatas`` and ``brokerDatas``.

        Raises:
            TopicNotFound: the name servers know no such topic.
            RemotingError: none can be asked.
        """
        try:
            return await self.ask_name_server(GetRouteInfo(topic=topic).command())
        except UnexpectedAnswer as error:
            if error.code == ResponseCode.TOPIC_NOT_EXIST:
                raise TopicNotFound(topic) from error
            raise

    async def masters(self) -> dict[str, str]:
        """The name of each broker that has a master → the master's address.

        Raises:
            RemotingError: no name server can be asked.
        """
        clusters = await self.ask_name_server(Command.request(RequestCode.GET_BROKER_CLUSTER_INFO))
        table = clusters.get("brokerAddrTable") or {}
        return {name: data["brokerAddrs"][MASTER] for name, data in table.items() if MASTER in data["brokerAddrs"]}
