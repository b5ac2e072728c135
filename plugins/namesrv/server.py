"""A name server that listens: embedded in a broker, or on its own (``verniermq namesrv``)."""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Final

from verniermq.kernel import Clock, Command, Connection, Guard, RemotingServer
from verniermq.plugins.namesrv.admission import BrokerAdmission
from verniermq.plugins.namesrv.requests import NameServerRequests
from verniermq.plugins.namesrv.routes import RouteTable

if TYPE_CHECKING:
    from verniermq.kernel import Tls

logger = logging.getLogger(__name__)

SCAN_SECONDS: Final = 5.0


def _let_pass(request: Command, connection: Connection) -> Awaitable[None] | None:
    return None


class NameServer:
    """``start`` listens, ``run`` forgets the silent, ``stop`` ends it.

    ``peers`` are the brokers that it takes, those of this machine unless given; ``guard`` is asked before anything is
    changed by somebody else.
    """

    def __init__(
        self, clock: Clock, tls: Tls | None = None, peers: BrokerAdmission | None = None, guard: Guard | None = None
    ) -> None:
        self._clock = clock
        self.table = RouteTable(clock.monotonic)
        self.peers = peers or BrokerAdmission((), "", clock.now_ms)
        self._server = RemotingServer(
            NameServerRequests(self.table, clock.monotonic, lambda: self.peers, guard or _let_pass).handlers(),
            on_disconnect=self.table.connection_closed,
            tls=tls,
        )
        self.port = 0

    async def start(self, host: str, port: int) -> None:
        """
        Raises:
            ListenFailed: the port is in use, or the host is not ours.
        """
        self.port = await self._server.listen(host, port)
        logger.info("name server listening host=%s port=%d; it takes %s", host, self.port, self.peers)

    async def run(self) -> None:
        while True:
            await self._clock.sleep(SCAN_SECONDS)
            self.table.expire()

    async def stop(self) -> None:
        await self._server.stop(grace_seconds=1.0)
