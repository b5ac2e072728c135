"""A network between client and broker that can be slow, cut, and gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs

from verniermq.testing.ports import held_port

CHUNK = 65536


@attrs.define(eq=False)
class Proxy:
    """Passes bytes on, and misbehaves when told to. ``address`` is what clients connect to."""

    target: str = ""
    address: str = ""
    delay: float = 0.0
    """Seconds that answers take longer."""
    cut_requests_after: int | None = None
    """Bytes from clients that still pass before every connection is cut, in the middle of a frame or not."""
    cut_answers_after: int | None = None
    connections: int = 0
    """How many there have been."""
    _server: asyncio.Server | None = None
    _writers: set[asyncio.StreamWriter] = attrs.Factory(set)

    async def start(self) -> None:
        self.address = self.address or f"127.0.0.1:{held_port(self)}"
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", int(self.address.rpartition(":")[2]))

    async def stop(self) -> None:
        """Refuse new connections and cut the old ones; ``start`` listens at the same address again."""
        if self._server is not None:
            self._server.close()
            self.cut()
            self._server = None

    def cut(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        host, _, port = self.target.rpartition(":")
        try:
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, far_writer}
        try:
            await asyncio.gather(
                self._pump(reader, far_writer, "cut_requests_after", 0.0),
                self._pump(far_reader, writer, "cut_answers_after", self.delay),
            )
        except (OSError, asyncio.CancelledError):
            pass  # cut, by us or by one of the ends
        finally:
            for end in (writer, far_writer):
                end.transport.abort()
            self._writers -= {writer, far_writer}

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: str, delay: float) -> None:
        while data := await reader.read(CHUNK):
            left: int | None = getattr(self, limit)
            if left is not None:
                if len(data) >= left:
                    writer.write(data[:left])
                    await writer.drain()
                    setattr(self, limit, None)
                    self.cut()
                    return
                setattr(self, limit, left - len(data))
            if delay or self.delay:
                await asyncio.sleep(self.delay if limit == "cut_answers_after" else 0)
            writer.write(data)
            await writer.drain()
        writer.transport.abort()


@asynccontextmanager
async def proxy(target: str = "") -> AsyncIterator[Proxy]:
    made = Proxy(target)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()
