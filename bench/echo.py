"""The limit: a server on the same loop that reads the same frames and answers each with the same bytes, no more."""

from __future__ import annotations

import asyncio
import sys

import anyio
from load import LENGTH

from verniermq.kernel.loop import backend_options


class Echo(asyncio.Protocol):
    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        data = self._rest + data if self._rest else data
        position, end, count = 0, len(data), 0
        while end - position >= 4:
            (length,) = LENGTH.unpack_from(data, position)
            if end - position < 4 + length:
                break
            position += 4 + length
            count += 1
        self._rest = data[position:]
        self._transport.write(self._answer * count)  # type: ignore[attr-defined]


async def main(answer: bytes) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: Echo(answer), "127.0.0.1", 0)
    print(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await asyncio.to_thread(sys.stdin.read)  # until whoever started us closes it


if __name__ == "__main__":
    anyio.run(main, bytes.fromhex(sys.argv[1]), backend_options=backend_options())
