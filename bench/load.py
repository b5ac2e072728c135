"""A load generator for one kind of request: as little work per message as Python can do, so that it is not the limit.

Frames are encoded once and written as they are; of an answer only the length is read, to count it.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import attrs

LENGTH = struct.Struct(">i")


@attrs.define(eq=False)
class Sender(asyncio.Protocol):
    """One connection that always has ``window`` requests on the way."""

    frame: bytes
    window: int
    answered: int = 0
    last_answer: bytes = b""
    _rest: bytes = b""
    _transport: asyncio.Transport = attrs.field(init=False)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]

    def start(self) -> None:
        self._transport.write(self.frame * self.window)

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        position, end, count = 0, len(data), 0
        while end - position >= 4:
            (length,) = LENGTH.unpack_from(data, position)
            if end - position < 4 + length:
                break
            self.last_answer = data[position : position + 4 + length]
            position += 4 + length
            count += 1
        self._rest = data[position:] if position < end else b""
        self.answered += count
        self._transport.write(self.following(count))

    def following(self, count: int) -> bytes:
        """What to send after so many answers: as many requests."""
        return self.frame * count


async def drive(
    address: str, frames: list[bytes], *, window: int, seconds: float, warm_up: float = 0.5,
    sender: Callable[[bytes, int], Sender] = Sender, awake: bool = False,
) -> float:  # fmt: skip
    """Requests answered per second over one connection per frame; each has ``window`` on the way.

    ``awake``: never sleep. Waking a sleeper on an idle processor of the same machine is work for whoever writes to it,
    which a peer on another machine would not be.
    """
    keeper = asyncio.create_task(_stay_awake()) if awake else None
    async with under_load(address, frames, window=window, sender=sender) as answered:
        await asyncio.sleep(warm_up)
        before, started = answered(), time.perf_counter()
        await asyncio.sleep(seconds)
        rate = (answered() - before) / (time.perf_counter() - started)
    if keeper is not None:
        keeper.cancel()
    return rate


@asynccontextmanager
async def under_load(
    address: str, frames: list[bytes], *, window: int, sender: Callable[[bytes, int], Sender] = Sender
) -> AsyncIterator[Callable[[], int]]:
    """One connection per frame, each with ``window`` requests on the way; says how many were answered so far."""
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    senders: list[Sender] = []
    for frame in frames:
        _, one = await loop.create_connection(lambda frame=frame: sender(frame, window), host, int(port))  # type: ignore[misc]
        senders.append(one)
    for one in senders:
        one.start()
    yield lambda: sum(one.answered for one in senders)
    for one in senders:
        one._transport.abort()


async def _stay_awake() -> None:
    while True:  # noqa: ASYNC110 - nothing is waited for
        await asyncio.sleep(0)
