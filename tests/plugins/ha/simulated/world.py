"""An event loop whose time, network and threads are a simulation: a minute passes in a moment, and a seed decides.

Code that runs here is the real one: it asks the event loop for connections, servers and the time, and gets these. Each
process of the simulation is a :class:`Node`; what it starts belongs to it, by a context variable. ::

    loop.time()            goes on when nobody has anything to do, to the next timer
    create_connection()    a pair of transports in memory; bytes take their time, in order, and wait at a cut
    to_thread.run_sync()   runs here, after a moment that is the disk's
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import random
import selectors
import socket
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import attrs

from verniermq.kernel.remoting.server import RemotingServer

HIGH = 1 << 16
"""Bytes on the way from which on a writer is told to wait."""
TICK = 1e-6


@attrs.define(eq=False)
class Node:
    """A process: a life of a replica, the coordinator, or the clients. ``host`` is the machine that it runs on."""

    host: str
    alive: bool = True
    transports: list[Transport] = attrs.field(factory=list)
    ports: list[int] = attrs.field(factory=list)


NODE: contextvars.ContextVar[Node] = contextvars.ContextVar("node")


class _Selector(selectors.SelectSelector):
    """Waits for nothing but the time."""

    def __init__(self) -> None:
        super().__init__()
        self.loop: Loop

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("everything waits, and for nothing that will come")
        self.loop.now += timeout + TICK
        return []


class Loop(asyncio.SelectorEventLoop):
    def __init__(self, chance: random.Random) -> None:
        self.now = 1000.0
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)
        self.chance = chance
        self.cuts: set[tuple[str, str]] = set()
        """(from, to): what a host says to another does not arrive."""
        self.slow: dict[str, float] = {}
        """Host → seconds that its disk takes at most."""
        self._servers: dict[int, tuple[Any, Node, contextvars.Context]] = {}
        self._port = 40000

    def time(self) -> float:
        return self.now

    # --- the network -----------------------------------------------------------------------

    def hears(self, source: str, target: str) -> bool:
        return (source, target) not in self.cuts

    def heal(self) -> None:
        self.cuts.clear()

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        node = NODE.get()
        if not port:
            self._port += 1
            port = self._port
        known = self._servers.get(port)
        if known is not None and known[1].alive:
            raise OSError(98, "Address already in use")
        self._servers[port] = (protocol_factory, node, contextvars.copy_context())
        node.ports.append(port)
        return _Server(self, port)

    def forget(self, port: int, node: Node) -> None:
        known = self._servers.get(port)
        if known is not None and known[1] is node:
            del self._servers[port]

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        node = NODE.get()
        target = self._host_of(port)
        await anyio.sleep(self.latency())
        while node.alive and not (self.hears(node.host, target) and self.hears(target, node.host)):  # noqa: ASYNC110
            await anyio.sleep(0.05)
        if not node.alive:
            raise ConnectionAbortedError(103, "this process was killed")
        known = self._servers.get(port)
        if known is None or not known[1].alive:
            raise ConnectionRefusedError(111, f"Connect call failed ('{host}', {port})")
        factory, other, context = known
        protocol, served = protocol_factory(), context.run(factory)
        ours = Transport(self, node, protocol, contextvars.copy_context())
        theirs = Transport(self, other, served, context)
        ours.peer, theirs.peer = theirs, ours
        context.run(served.connection_made, theirs)
        protocol.connection_made(ours)
        return ours, protocol

    def _host_of(self, port: int) -> str:
        known = self._servers.get(port)
        return "" if known is None else known[1].host

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))]

    def latency(self) -> float:
        return self.chance.choice((0.0, 0.0005, 0.002)) if self.chance.random() < 0.98 else 0.05

    def kill(self, node: Node) -> None:
        """It says and hears nothing more; others learn that its connections are gone."""
        node.alive = False
        for port in node.ports:
            self.forget(port, node)
        for transport in list(node.transports):
            transport.vanish()


class _Server:
    """As much of :class:`asyncio.Server` as is used."""

    def __init__(self, loop: Loop, port: int) -> None:
        self._loop, self._port, self._node = loop, port, NODE.get()
        self.sockets = [self]

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", self._port

    def close(self) -> None:
        self._loop.forget(self._port, self._node)


class _Socket:
    family = socket.AF_UNIX

    def setsockopt(self, *_: object) -> None:
        pass


RESET, END = object(), object()


class Transport(asyncio.Transport):
    """One end of a connection."""

    peer: Transport

    def __init__(self, loop: Loop, node: Node, protocol: Any, context: contextvars.Context) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2), "socket": _Socket()})
        self._loop, self._node, self._protocol, self._context = loop, node, protocol, context
        self._arriving: deque[Any] = deque()
        """What the other end said and this one has not read."""
        self._waiting = 0
        self._due = 0.0
        self._scheduled = self._reading_paused = self._writing_paused = self._closing = self._lost = False
        node.transports.append(self)

    # --- this end --------------------------------------------------------------------------

    def write(self, data: Any) -> None:
        if not self._closing and self._node.alive:
            self.peer._arrive(bytes(data), len(data))
            if not self._writing_paused and self.peer._waiting > HIGH:
                self._writing_paused = True
                self._protocol.pause_writing()

    def writelines(self, data: Any) -> None:
        self.write(b"".join(data))

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            if self._node.alive:
                self.peer._arrive(END)
            self._loop.call_soon(self._lose, None, context=self._context)

    def abort(self) -> None:
        if not self._closing:
            self._closing = True
            if self._node.alive:
                self.peer._arrive(RESET)
        self._loop.call_soon(self._lose, None, context=self._context)

    def pause_reading(self) -> None:
        self._reading_paused = True

    def resume_reading(self) -> None:
        self._reading_paused = False
        self._schedule()

    def is_reading(self) -> bool:
        return not self._reading_paused

    def get_write_buffer_size(self) -> int:
        return self.peer._waiting

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def can_write_eof(self) -> bool:
        return False

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def get_protocol(self) -> Any:
        return self._protocol

    def vanish(self) -> None:
        """Its process was killed: it gets no word of it, the other end does."""
        self.peer._arrive(RESET)

    # --- what arrives ----------------------------------------------------------------------

    def _arrive(self, what: Any, size: int = 0) -> None:
        self._arriving.append((self._loop.time() + self._loop.latency(), what, size))
        self._waiting += size
        self._schedule()

    def _schedule(self) -> None:
        if self._arriving and not self._scheduled:
            self._scheduled = True
            self._due = max(self._due, self._arriving[0][0])
            self._loop.call_at(self._due, self._deliver, context=self._context)

    def _deliver(self) -> None:
        self._scheduled = False
        if self._lost or not self._node.alive or not self._arriving or self._reading_paused:
            return
        if not self._loop.hears(self.peer._node.host, self._node.host):
            self._due = self._loop.time() + 0.05
            self._schedule()
            return
        _, what, size = self._arriving.popleft()
        self._waiting -= size
        self._relieve()
        if what is RESET:
            self._lose(ConnectionResetError(104, "Connection reset by peer"))
        elif what is END:
            if not self._protocol.eof_received():
                self.close()
        elif not self._closing:
            self._protocol.data_received(what)
        self._schedule()

    def _relieve(self) -> None:
        other = self.peer
        if other._writing_paused and self._waiting < HIGH // 2 and not other._lost and other._node.alive:
            other._writing_paused = False
            other._context.copy().run(other._protocol.resume_writing)

    def _lose(self, error: Exception | None) -> None:
        if not self._lost:
            self._lost = self._closing = True
            self._arriving.clear()
            self._protocol.connection_lost(error)
        if self in self._node.transports:
            self._node.transports.remove(self)


class LoopClock:
    """The time of the simulation, as brokers see it."""

    EPOCH = 1_700_000_000.0

    def now(self) -> float:
        return self.EPOCH + self.monotonic()

    def now_ms(self) -> int:
        return round(self.now() * 1000)

    def monotonic(self) -> float:
        loop = asyncio.get_running_loop()
        return loop.time()

    def boot(self) -> str:
        return "simulated"

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(max(seconds, 0))

    async def sleep_until(self, moment: float) -> None:
        await anyio.sleep(max(moment - self.now(), 0))


# --- what does not go through the event loop -----------------------------------------------


async def _in_no_thread(
    work: Callable[..., Any], *arguments: Any, limiter: anyio.CapacityLimiter | None = None, **_: Any
) -> Any:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, Loop)
    node = NODE.get()

    def moment() -> float:
        return loop.chance.uniform(0.0, loop.slow.get(node.host, 0.002))

    async with limiter or anyio.CapacityLimiter(1):
        with anyio.CancelScope(shield=True):
            await anyio.sleep(moment())
            done = work(*arguments)
            await anyio.sleep(moment())
            return done


async def _listen(self: RemotingServer, host: str, port: int) -> int:
    server = await asyncio.get_running_loop().create_server(self._make_connection, host, port)
    self._listeners.append(server)  # type: ignore[arg-type]
    self.addresses.append((host, server.sockets[0].getsockname()[1]))
    return self.addresses[-1][1]


@contextmanager
def simulated() -> Iterator[None]:
    """Threads, syncs and listening sockets of the simulation, in this process."""
    places: list[tuple[Any, str, Any]] = [
        (anyio.to_thread, "run_sync", _in_no_thread),
        (RemotingServer, "listen", _listen),
        (os, "fsync", lambda descriptor: None),
        (os, "fdatasync", lambda descriptor: None),
    ]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in places]
    for owner, name, value in places:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


def run(work: Callable[[], Any], seed: int) -> Any:
    """Run a coroutine function in a world of its own."""
    with simulated():
        return anyio.run(work, backend_options={"loop_factory": partial(Loop, random.Random(seed))})
