"""Connections to name servers and brokers: one per address, shared by all requests, opened when first needed.

Requests are pipelined on it and answered in any order. When a connection is lost, the next request opens a new
one; an address that refuses is tried again after a pause that grows from 0.1 to 2 seconds, and whoever asks
meanwhile waits for that moment as long as its own timeout allows.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import time
import weakref
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import attrs

from verniermq.client.credentials import Credentials
from verniermq.client.forks import after_fork
from verniermq.client.pipeline import RequestPipeline
from verniermq.kernel import Command, Connection, ConnectionLost, Handler, PeerUnreachable, RequestTimeout, connect

logger = logging.getLogger(__name__)

FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 2.0
SILENT_SECONDS: Final = 0.2
"""A peer that answers nothing is spoken of this often at most."""

Greeting = Callable[[str, Connection], Awaitable[None]]


@attrs.define(eq=False)
class _Peer:
    """What is known of one address."""

    address: str
    connection: Connection | None = None
    quick: RequestPipeline | None = None
    """On that connection."""
    opening: asyncio.Task[Connection] | None = None
    pause: float = 0.0
    not_before: float = 0.0
    silent: float = 0.0
    """When it last did not answer in time."""


class ConnectionPool:
    """All connections of one client.

    ``greet`` is called with each new connection before anything else is sent on it; producers and consumers
    say there who they are. ``lost`` is called with the address when a peer closes one, or does not answer in time. Both
    are not for addresses in ``strangers`` (the name servers).
    """

    def __init__(
        self,
        handlers: Mapping[int, Handler],
        *,
        credentials: Credentials | None = None,
        tls: ssl.SSLContext | None = None,
        connect_timeout: float = 3.0,
        greet: Greeting | None = None,
        lost: Callable[[str], None] | None = None,
        strangers: frozenset[str] = frozenset(),
    ) -> None:
        self._handlers = handlers
        self._credentials = credentials
        self.signs: Final = credentials is not None
        self._tls = tls
        self._connect_timeout = connect_timeout
        self._greet = greet
        self._lost = lost
        self._strangers = strangers
        self._peers: dict[str, _Peer] = {}
        self._closed = False
        _pools.add(self)

    # --- asking ----------------------------------------------------------------------------

    async def request(self, address: str, command: Command, timeout: float = 3.0) -> Command:
        """Send a request to an address and wait for its answer, whatever its code.

        Raises:
            RemotingError: there is no connection, or no answer within ``timeout`` seconds.
        """
        started = time.monotonic()
        connection = self.live(address) or await self.open(address, timeout)
        if self._credentials is not None:
            self._credentials.sign(command)
        left = max(timeout - (time.monotonic() - started), 0.001)
        try:
            return await connection.request(command, left)
        except RequestTimeout:
            self.silent(address)
            raise

    def silent(self, address: str) -> None:
        """A peer did not answer in time: it may hang, and another one do its work. Said once in a moment of each."""
        peer, now = self._peers.get(address), time.monotonic()
        if self._lost is None or peer is None or address in self._strangers or now - peer.silent < SILENT_SECONDS:
            return
        peer.silent = now
        self._closed_by_peer(peer)

    async def oneway(self, address: str, command: Command, timeout: float = 3.0) -> None:
        """Send a request that is not answered.

        Raises:
            RemotingError: there is no connection.
        """
        connection = self.live(address) or await self.open(address, timeout)
        if self._credentials is not None:
            self._credentials.sign(command)
        if not connection.oneway(command):
            raise ConnectionLost(address)

    def sign(self, command: Command) -> None:
        """For requests that are sent on a connection of the pool directly."""
        if self._credentials is not None:
            self._credentials.sign(command)

    # --- connections -----------------------------------------------------------------------

    def live(self, address: str) -> Connection | None:
        """The connection to an address, if there is one now."""
        peer = self._peers.get(address)
        if peer is None or peer.connection is None or peer.connection.closed:
            return None
        return peer.connection

    def quick(self, address: str) -> RequestPipeline | None:
        """The quick way to an address, if there is a connection now."""
        peer = self._peers.get(address)
        if peer is None or peer.quick is None or peer.quick.connection.closed:
            return None
        return peer.quick

    def connected(self) -> list[str]:
        """The addresses that there are connections to."""
        return [address for address in self._peers if self.live(address) is not None]

    def is_resting(self, address: str) -> bool:
        """Whether the address refused a moment ago, so that a request to it would have to wait before the next try."""
        peer = self._peers.get(address)
        return peer is not None and self.live(address) is None and peer.not_before > time.monotonic()

    def rest(self, address: str) -> float:
        """For how many seconds more."""
        peer = self._peers.get(address)
        return max(0.0, peer.not_before - time.monotonic()) if peer is not None else 0.0

    async def open(self, address: str, timeout: float | None = None) -> Connection:
        """The connection to an address, opened if need be.

        Raises:
            PeerUnreachable: it cannot be opened, or not within ``timeout`` seconds.
        """
        timeout = self._connect_timeout if timeout is None else timeout
        if self._closed:
            raise PeerUnreachable(address, "this client is closed")
        peer = self._peers.setdefault(address, _Peer(address))
        if peer.connection is not None and not peer.connection.closed:
            return peer.connection
        if peer.opening is None:
            peer.opening = asyncio.create_task(self._open(peer), name=f"connect {address}")
            peer.opening.add_done_callback(lambda task: self._opened(peer, task))
        opening = peer.opening
        try:
            # Shielded: others may wait for the same connection with more patience.
            async with asyncio.timeout(timeout):
                return await asyncio.shield(opening)
        except TimeoutError:
            raise PeerUnreachable(address, f"no connection within {timeout:g} s") from None

    async def _open(self, peer: _Peer) -> Connection:
        wait = peer.not_before - time.monotonic()
        if wait > 0:
            await asyncio.sleep(wait)
        connection = await connect(peer.address, self._handlers, self._connect_timeout, tls=self._tls)
        quick = RequestPipeline(connection)
        if self._closed:
            connection.close()
            raise PeerUnreachable(peer.address, "this client is closed")
        try:
            if self._greet is not None and peer.address not in self._strangers:
                await self._greet(peer.address, connection)
        except BaseException:
            # Also when cancelled by a close: left open, it would keep a client alive at the broker that is gone.
            connection.close()
            raise
        if self._lost is not None and peer.address not in self._strangers:
            connection.on_close.append(lambda _: self._closed_by_peer(peer))
        peer.quick = quick
        return connection

    def _closed_by_peer(self, peer: _Peer) -> None:
        if self._lost is not None and not self._closed and self._peers.get(peer.address) is peer:
            self._lost(peer.address)

    def _opened(self, peer: _Peer, task: asyncio.Task[Connection]) -> None:
        peer.opening = None
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            peer.connection, peer.pause, peer.not_before = task.result(), 0.0, 0.0
            logger.debug("connected address=%s", peer.address)
            return
        peer.pause = min(max(peer.pause * 2, FIRST_PAUSE), LONGEST_PAUSE)
        peer.not_before = time.monotonic() + peer.pause
        logger.debug("not connected address=%s reason=%s again_in_s=%.1f", peer.address, error, peer.pause)

    def drop(self, address: str) -> None:
        """Close the connection to an address, if there is one; a later request opens a new one."""
        peer = self._peers.pop(address, None)
        if peer is not None:
            if peer.opening is not None:
                peer.opening.cancel()
            if peer.connection is not None:
                peer.connection.close()

    async def close(self) -> None:
        """Close all connections and wait until they are gone."""
        self._closed = True
        connections = [peer.connection for peer in self._peers.values() if peer.connection is not None]
        opening = [peer.opening for peer in self._peers.values() if peer.opening is not None]
        for address in list(self._peers):
            self.drop(address)
        if opening:
            await asyncio.wait(opening)
        for connection in connections:
            await connection.wait_closed()
        _pools.discard(self)

    def _let_go_after_fork(self) -> None:
        """In a forked child: put nothing in the place of the parent's sockets.

        The parent's connections stay as they are. But a socket is closed for its peer only when the last process
        has closed it, so the child must not hold on to them.
        """
        nothing = os.open(os.devnull, os.O_RDWR)
        for peer in self._peers.values():
            if peer.connection is not None and not peer.connection.closed:
                sock = peer.connection._transport.get_extra_info("socket")
                if sock is not None and sock.fileno() >= 0:
                    os.dup2(nothing, sock.fileno())
        os.close(nothing)
        _abandoned.append(self)


_pools: weakref.WeakSet[ConnectionPool] = weakref.WeakSet()
_abandoned: list[ConnectionPool] = []
"""Pools of the parent. Never collected: their transports would tell the parent's event loop to forget them."""


def _after_fork() -> None:
    for pool in list(_pools):
        pool._let_go_after_fork()
    _pools.clear()


after_fork(_after_fork)
