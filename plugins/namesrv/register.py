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
CALL_TIMEOUT: Final = 6.0


class Registrar:
    """Registers one broker with one name server."""

    def __init__(self, broker: Broker, address: str) -> None:
        self._broker = broker
        self.address = address
        self._connection: Connection | None = None
        self._changed = anyio.Event()

    def topics_changed(self) -> None:
        self._changed.set()

    async def run(self) -> None:
        """Register now, then on every change and at every interval."""
        while True:
            self._changed = anyio.Event()
            try:
                await self.register(list(self._broker.topics))
            except RemotingError as error:
                logger.warning("cannot register with name server: %s; trying again in %g s", error, INTERVAL_SECONDS)
            with anyio.move_on_after(INTERVAL_SECONDS):
                await self._changed.wait()

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
