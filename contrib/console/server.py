"""A console on its own thread and loop: what a page takes is not taken from the broker around it."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from verniermq.contrib.console.app import ConsoleApp
from verniermq.contrib.console.console import Console
from verniermq.contrib.console.history import Sampler
from verniermq.contrib.console.pages import VIEWS
from verniermq.contrib.console.settings import listen_address
from verniermq.kernel import ConfigError


class _Accepted(H11Protocol):
    """A connection that somebody accepted, and read so much of: that comes before all that is read here."""

    def __init__(self, config: uvicorn.Config, state: ServerState, received: bytes) -> None:
        super().__init__(config=config, server_state=state, app_state={})
        self._received = received

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.data_received(self._received)


class ConsoleServer:
    """
    Args:
        listen: "" if somebody else listens, and hands connections over to :meth:`take`
        make: makes the console, on its own thread: its connections belong to that thread's loop
    """

    def __init__(self, listen: str, make: Callable[[], Console]) -> None:
        self._listen = listen
        self._make = make
        self._socket: socket.socket | None = None
        self._started: Future[asyncio.AbstractEventLoop] = Future()
        """The loop, once it serves; cancelled if it never did."""
        self._accepted: Callable[[bytes], asyncio.Protocol]
        self._stop: Callable[[], None] = lambda: None
        self._thread: threading.Thread | None = None
        self.console: Console
        """Once it is served."""
        self.address = ""
        """Where it listens, ``host:port``; "" if it does not."""

    def bind(self) -> None:
        """
        Raises:
            ConfigError: the address is taken, or not of this machine.
        """
        if not self._listen:
            return
        host, port = listen_address(self._listen)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._socket = socket.create_server((host, port), family=family, backlog=128)
        except OSError as error:
            raise ConfigError(f"the console cannot listen on {self._listen}: {error}; choose another address") from None
        port = self._socket.getsockname()[1]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def start(self) -> None:
        """Serve on a thread of its own."""
        self._thread = threading.Thread(target=self._run, name="console", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            asyncio.run(self.serve())
        finally:
            self._started.cancel()

    async def serve(self) -> None:
        """Serve until :meth:`stop` is called."""
        console = self.console = self._make()
        app = ConsoleApp(console, VIEWS)
        config = uvicorn.Config(
            app.asgi(keeps_open=bool(self._listen)), log_config=None, log_level="warning", access_log=False,
            lifespan="off", ws="none", http="h11", timeout_graceful_shutdown=2, timeout_keep_alive=30,
            limit_concurrency=256, server_header=False, h11_max_incomplete_event_size=32 * 1024,
        )  # fmt: skip
        config.load()
        server = uvicorn.Server(config)
        self._accepted = lambda received: _Accepted(config, server.server_state, received)

        def stop() -> None:
            app.stopping.set()
            server.should_exit = True

        self._stop = stop
        self._started.set_result(asyncio.get_running_loop())
        sampling = asyncio.create_task(Sampler(console).run())
        try:
            await server.serve(sockets=[] if self._socket is None else [self._socket])
        finally:
            sampling.cancel()
            console.peers.close()

    def take(self, peer: socket.socket, received: bytes) -> None:
        """Serve a connection that somebody accepted, and read so much of. May be called from any thread, and before
        the console's own has begun."""

        def hand_over(started: Future[asyncio.AbstractEventLoop]) -> None:
            if started.cancelled() or started.result().is_closed():
                peer.close()
            else:
                asyncio.run_coroutine_threadsafe(self._take(peer, received), started.result())

        self._started.add_done_callback(hand_over)

    async def _take(self, peer: socket.socket, received: bytes) -> None:
        peer.setblocking(False)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: self._accepted(received), peer)
        except OSError:
            peer.close()  # it is gone

    def stop(self) -> None:
        """May be called from any thread."""

        def end(started: Future[asyncio.AbstractEventLoop]) -> None:
            if not started.cancelled() and not started.result().is_closed():
                started.result().call_soon_threadsafe(self._stop)

        self._started.add_done_callback(end)

    def join(self) -> None:
        """Wait for the thread."""
        if self._thread is not None:
            self._thread.join(5.0)
