"""The name servers: several, independent of each other, one of them asked until it fails."""

from __future__ import annotations

import logging
import random
from typing import Any

from verniermq.client.connection import ConnectionPool
from verniermq.client.errors import NameServerUnreachable, NoRoute
from verniermq.client.routes import Route
from verniermq.kernel import (
    Command,
    MalformedAnswer,
    RemotingError,
    RequestCode,
    ResponseCode,
    UnexpectedAnswer,
    parse_answer,
)
from verniermq.kernel.requests import Request
from verniermq.protocol.nameserver import GetRouteInfo

logger = logging.getLogger(__name__)


class NameServers:
    """Asks one name server, and goes on to the next when it does not answer."""

    def __init__(self, pool: ConnectionPool, addresses: tuple[str, ...], timeout: float) -> None:
        self.addresses = addresses
        self._pool = pool
        self._timeout = timeout
        # Clients should not all ask the first one of the list.
        self._current = random.randrange(len(addresses))

    @property
    def text(self) -> str:
        """The addresses as one writes them: ``a:9876;b:9876``."""
        return ";".join(self.addresses)

    async def request(self, request: Request | RequestCode, timeout: float | None = None) -> Command:
        """The answer of the first name server that has one, whatever its code.

        Raises:
            NameServerUnreachable: none has.
        """
        reasons: list[tuple[str, str]] = []
        for step in range(len(self.addresses)):
            position = (self._current + step) % len(self.addresses)
            address = self.addresses[position]
            try:
                command = request.command() if isinstance(request, Request) else Command.request(request)
                answer = await self._pool.request(address, command, timeout or self._timeout)
            except RemotingError as error:
                reasons.append((address, str(error).removeprefix(f"cannot reach {address}: ")))
                continue
            if step:
                logger.warning("name server changed now=%s because=%s", address, reasons[-1][1])
                self._current = position
            return answer
        raise NameServerUnreachable(reasons)

    async def ask(self, code: RequestCode) -> Any:
        """The JSON body of the answer to a request without fields.

        Raises:
            NameServerUnreachable: there is none.
            UnexpectedAnswer: it says that the request failed.
            MalformedAnswer: it cannot be read.
        """
        answer = await self.request(code)
        if answer.code != ResponseCode.SUCCESS:
            raise UnexpectedAnswer(self.text, code.name, answer.code, answer.remark)
        return parse_answer(answer.body, self.text, code.name)

    async def route(self, topic: str) -> Route:
        """Where a topic lives.

        Raises:
            NoRoute: the name server does not know it.
            NameServerUnreachable: nobody can say.
            MalformedAnswer: the answer cannot be read.
        """
        answer = await self.request(GetRouteInfo(topic=topic, standard_json=True))
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            raise NoRoute(topic, self.text)
        if answer.code != ResponseCode.SUCCESS:
            raise UnexpectedAnswer(self.text, "GET_ROUTEINFO_BY_TOPIC", answer.code, answer.remark)
        try:
            return Route.from_json(topic, parse_answer(answer.body, self.text, "GET_ROUTEINFO_BY_TOPIC"))
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise MalformedAnswer(self.text, "GET_ROUTEINFO_BY_TOPIC", repr(error)) from error

    async def brokers(self) -> dict[str, dict[int, str]]:
        """All brokers: name → id → address, 0 being a master."""
        info = await self.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
        table = info.get("brokerAddrTable") or {}
        return {
            name: {int(number): address for number, address in data.get("brokerAddrs", {}).items()}
            for name, data in table.items()
        }

    async def clusters(self) -> dict[str, list[str]]:
        """Cluster name → the names of its brokers."""
        info = await self.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
        return {name: sorted(brokers) for name, brokers in (info.get("clusterAddrTable") or {}).items()}

    async def topics(self) -> list[str]:
        body = await self.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return sorted(body.get("topicList") or [])
