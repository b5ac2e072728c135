"""Looking at a broker's pages, as Kubernetes and Prometheus do: plain bytes over a socket."""

from __future__ import annotations

from typing import Any, Final

import anyio
import attrs
import orjson

from verniermq.kernel import Broker

PATIENCE: Final = 30.0


@attrs.frozen
class Seen:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)


def address_of(broker: Broker, path: str) -> str:
    address: str = broker.host.active["http"].instance.address_of(path)
    return address


async def look(broker: Broker, path: str, query: str = "") -> Seen:
    """GET a page of a broker."""
    return await ask(address_of(broker, path), f"GET {path}{query} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")


async def ask(address: str, head: str | bytes) -> Seen:
    """Send bytes, and read until the other side closes."""
    host, _, port = address.rpartition(":")
    with anyio.fail_after(PATIENCE):
        async with await anyio.connect_tcp(host, int(port)) as stream:
            await stream.send(head.encode() if isinstance(head, str) else head)
            received = b""
            try:
                while True:
                    received += await stream.receive()
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                pass
    top, _, body = received.partition(b"\r\n\r\n")
    line, *fields = top.decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
    return Seen(int(line.split()[1]), headers, body)
