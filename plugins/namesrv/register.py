"""Keeping outside name servers up to date about this broker: at start, every 30 s, and when a topic changes.

Every name server is on its own: one that cannot be reached is tried again next time and holds up nobody.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Sequence
from typing import Final

import anyio

from verniermq.kernel import (
    Broker,
    Command,
    Connection,
    RemotingError,
    RequestCode,
    ResponseCode,
    TopicConfig,
    UnexpectedAnswer,
    connect,
)
from verniermq.plugins.namesrv import registration

logger = logging.getLogger(__name__)

INTERVAL_SECONDS: Final = 30.0
RETRY_SECONDS: Final = 5.0
CALL_TIMEOUT: Final = 6.0


class Registrar:
    """Registers one broker with one name server."""

    def __init__(self, broker: Broker, address: str) -> None:
        self._broker = broker
        self.address = address
        self._connection: Connection | None = None
        self._news: dict[str, TopicConfig] = {}
        """Topics that changed since the last registration."""
        self._changed = anyio.Event()

    def topics_changed(self, changed: Sequence[TopicConfig]) -> None:
        self._news.update({topic.name: topic for topic in changed})
        self._changed.set()

    async def run(self) -> None:
        """Register now and at every interval with all topics, and on every change with those that changed."""
        due = self._broker.clock.now()
        while True:
            news, self._news = list(self._news.values()), {}
            self._changed = anyio.Event()
            everything = self._broker.clock.now() >= due
            try:
                await self.register(list(self._broker.topics) if everything else news)
                if everything:
                    due = self._broker.clock.now() + INTERVAL_SECONDS
            except RemotingError as error:
                logger.warning("cannot register with name server: %s; trying again in %g s", error, RETRY_SECONDS)
                due = self._broker.clock.now() + RETRY_SECONDS
            await self._wait(due)

    async def _wait(self, due: float) -> None:
        """Until there is something new, or the time has come."""

        async def sleep() -> None:
            await self._broker.clock.sleep_until(due)
            tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sleep)
            await self._changed.wait()
            tasks.cancel_scope.cancel()

    async def register(self, topics: Sequence[TopicConfig]) -> None:
        """
        Raises:
            RemotingError: it cannot be reached or refuses.
        """
        settings = self._broker.configuration.broker
        body = registration.encode(self._broker.topics.version.as_json(), topics)
        ext = {
            **self._identity(),
            "haServerAddr": f"{self._broker.advertised.host}:{self._broker.advertised.port + 1}",
            "brokerId": str(settings.id),
            "compressed": "false",
            "bodyCrc32": str(zlib.crc32(body) & 0x7FFFFFFF),
        }
        await self._call(Command.request(RequestCode.REGISTER_BROKER, ext, body))

    async def unregister(self) -> None:
        """Say goodbye, if it can be heard."""
        ext = {**self._identity(), "brokerId": str(self._broker.configuration.broker.id)}
        try:
            await self._call(Command.request(RequestCode.UNREGISTER_BROKER, ext))
        except RemotingError as error:
            logger.info("could not unregister: %s", error)
        if self._connection is not None:
            self._connection.close()

    def _identity(self) -> dict[str, str]:
        settings = self._broker.configuration.broker
        return {
            "brokerName": settings.name,
            "brokerAddr": self._broker.address,
            "clusterName": settings.cluster,
        }

    async def _call(self, command: Command) -> Command:
        if self._connection is None or self._connection.closed:
            self._connection = await connect(self.address, timeout=CALL_TIMEOUT)
        answer = await self._connection.request(command, CALL_TIMEOUT)
        if answer.code != ResponseCode.SUCCESS:
            raise UnexpectedAnswer(self.address, RequestCode(command.code).name, answer.code, answer.remark)
        return answer
