"""The other brokers of a cluster, as far as a route names them.

A broker serves its own queues. To those of the others clients go by the others' own gRPC ports, which each tells among
its figures (``grpcPort``, GET_BROKER_RUNTIME_INFO). A broker without the plugin tells none: its queues are left out of
a route, and a topic that is on such brokers alone has a status that says so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

import attrs

from verniermq.contrib.grpc.brokers import BrokerQueues
from verniermq.contrib.grpc.enums import Code
from verniermq.contrib.grpc.plugin import PORT_FIGURE
from verniermq.contrib.grpc.remote import RemoteBrokers
from verniermq.contrib.grpc.status import CallFailed
from verniermq.kernel import (
    Command,
    Connection,
    Handler,
    RemotingError,
    RequestCode,
    ResponseCode,
    TopicConfig,
    TopicNotFound,
    parse_address,
    parse_answer,
)

logger = logging.getLogger(__name__)

PATIENCE_SECONDS: Final = 1.0
"""For all of them together: a client waits meanwhile, three seconds at most."""


@attrs.define(eq=False)
class Neighbours:
    own_name: str
    remote: RemoteBrokers
    _passed_over: dict[str, str] = attrs.field(factory=dict, init=False)
    """Brokers that clients are not sent to, with the reason that the log has a line about."""

    async def with_topic(self, topic: str) -> list[BrokerQueues]:
        """The queues of a topic on other brokers.

        Raises:
            CallFailed: there are some, and clients can be sent to none of them.
        """
        try:
            if (await self.remote.masters()).keys() <= {self.own_name}:
                return []
            placed = [pair for pair in await self.remote.placed(topic) if pair[0] != self.own_name]
        except TopicNotFound:
            return []
        except RemotingError as error:
            logger.debug("no name server says where else the topic is topic=%s reason=%s", topic, error)
            return []
        answers = await asyncio.gather(*(self._queues(topic, name, config) for name, config in placed))
        found = [one for one in answers if isinstance(one, BrokerQueues)]
        if placed and not found:
            raise CallFailed(Code.NOT_IMPLEMENTED, f"topic {topic!r} is elsewhere: {'; '.join(map(str, answers))}")
        return found

    async def connect(self, broker_name: str, peer: tuple[str, int], handlers: Mapping[int, Handler]) -> Connection:
        """For what names a broker itself, wherever a client brings it: recall handles, ids of transactions."""
        await self.remote.masters()
        return await self.remote.connect(broker_name, peer, handlers)

    async def _queues(self, topic: str, name: str, config: TopicConfig) -> BrokerQueues | str:
        """The queues of a topic on a broker, or why clients cannot be sent there."""
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                port = await self.remote.remember((PORT_FIGURE, name), lambda: self._ask_port(name))
                if isinstance(port, int):
                    self._passed_over.pop(name, None)
                    address = parse_address(self.remote.address(name))[0], port
                    return BrokerQueues(name, await self.remote.described(topic, name, config), address)
                why = str(port)
        except (RemotingError, CallFailed, TimeoutError) as error:
            why = f"broker {name!r} does not answer: {error or 'its time is up'}"
        if self._passed_over.get(name) != why:
            logger.warning("clients of gRPC are not sent to a broker of the cluster: %s", why)
            self._passed_over[name] = why
        return why

    async def _ask_port(self, name: str) -> int | str:
        request = Command.request(RequestCode.GET_BROKER_RUNTIME_INFO)
        answer = await self.remote.ask(name, request, PATIENCE_SECONDS)
        if answer.code != ResponseCode.SUCCESS:
            return f"broker {name!r} does not tell its gRPC port: {answer.remark or answer.code}"
        table = parse_answer(answer.body, name, RequestCode.GET_BROKER_RUNTIME_INFO.name).get("table") or {}
        port = str(table.get(PORT_FIGURE, ""))
        if port.isdecimal():
            return int(port)
        return f"broker {name!r} has no gRPC port; switch on its plugin 'grpc', or use verniermq proxy"
