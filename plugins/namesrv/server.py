"""A name server that listens: embedded in a broker, or on its own (``verniermq namesrv``)."""

from __future__ import annotations

from typing import Final

from verniermq.kernel import Clock, RemotingServer, Tls
from verniermq.plugins.namesrv.requests import NameServerRequests
from verniermq.plugins.namesrv.routes import RouteTable

SCAN_SECONDS: Final = 5.0


class NameServer:
    """``start`` listens, ``run`` forgets the silent, ``stop`` ends it."""

    def __init__(self, clock: Clock, tls: Tls | None = None) -> None:
        self._clock = clock
        self.table = RouteTable(clock.now)
        self._server = RemotingServer(
            NameServerRequests(self.table, clock.now).handlers(),
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

    async def run(self) -> None:
        while True:
            await self._clock.sleep(SCAN_SECONDS)
            self.table.expire()

    async def stop(self) -> None:
        await self._server.stop(grace_seconds=1.0)
