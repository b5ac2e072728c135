"""What the remoting tests share: both event loops, a server on a free port, and a peer that writes raw bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest

from verniermq.kernel.remoting import Command, FrameDecoder, Handler, RemotingServer

MEMBERS = ("code", "opaque", "flag", "ext", "remark", "language", "version", "body", "binary", "pieces")
WIRE = Path(__file__).parents[2] / "wire"


def wire_frame(name: str) -> bytes:
    """A frame of ``tests/wire``: hex, with comments."""
    lines = (WIRE / f"{name}.hex").read_text().splitlines()
    return bytes.fromhex(" ".join(line for line in lines if not line.startswith("#")))


def fields(command: Command) -> dict[str, Any]:
    """A command as a value that can be compared."""
    return {name: getattr(command, name) for name in MEMBERS}


# uvloop is what brokers run on, asyncio's own loop is what they fall back to.
@pytest.fixture(params=[True, False], ids=["uvloop", "asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param}


@attrs.define
class RawPeer:
    """The other end of a connection, that can send anything and read slowly."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    decoder: FrameDecoder = attrs.Factory(FrameDecoder)
    commands: list[Command] = attrs.Factory(list)

    async def send(self, *frames: bytes | Command) -> None:
        self.writer.write(b"".join(f.encode() if isinstance(f, Command) else f for f in frames))
        await self.writer.drain()

    async def receive(self) -> Command:
        while not self.commands:
            chunk = await self.reader.read(65536)
            if not chunk:
                raise EOFError("the connection was closed")
            self.commands += self.decoder.feed(chunk)
        return self.commands.pop(0)

    async def is_closed(self) -> bool:
        """Wait until the other end closes; whatever it still sent is dropped."""
        try:
            while await self.reader.read(65536):
                pass
        except ConnectionError:
            pass
        return True

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            pass  # the server aborted it, which is what some tests are about


@attrs.define
class Listening:
    """A server under test, and a way to meet it."""

    server: RemotingServer
    port: int
    stack: AsyncExitStack

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def raw_peer(self) -> RawPeer:
        peer = RawPeer(*await asyncio.open_connection("127.0.0.1", self.port))
        self.stack.push_async_callback(peer.close)
        return peer


Listen = Callable[..., Any]


@asynccontextmanager
async def _listening(handlers: Mapping[int, Handler], **settings: Any) -> AsyncIterator[Listening]:
    async with AsyncExitStack() as stack, RemotingServer(handlers, **settings) as server:
        port = await server.listen("127.0.0.1", 0)
        yield Listening(server, port, stack)


@pytest.fixture
def listening() -> Listen:
    """``async with listening({code: handler}, limits=…) as there``: a server on a free port."""
    return _listening
