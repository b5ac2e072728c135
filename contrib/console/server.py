"""A console on its own thread and loop: what a page takes is not taken from the broker around it."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable

import uvicorn

from verniermq.contrib.console.app import ConsoleApp
from verniermq.contrib.console.console import Console
from verniermq.contrib.console.history import Sampler
from verniermq.contrib.console.pages import VIEWS
from verniermq.contrib.console.settings import listen_address
from verniermq.kernel import ConfigError


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
        self._loop: asyncio.AbstractEventLoop | None = None
        self._protocol: Callable[[], asyncio.Protocol]
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
        self._thread = threading.Thread(target=lambda: asyncio.run(self.serve()), name="console", daemon=True)
        self._thread.start()

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
        self._protocol = lambda: config.http_protocol_class(
            config=config,
            server_state=server.server_state,
            app_state={},  # type: ignore[call-arg]
        )
        self._loop = asyncio.get_running_loop()

        def stop() -> None:
            app.stopping.set()
            server.should_exit = True

        self._stop = stop
        sampling = asyncio.create_task(Sampler(console).run())
        try:
            await server.serve(sockets=[] if self._socket is None else [self._socket])
        finally:
            sampling.cancel()
            console.peers.close()

    def take(self, peer: socket.socket, received: bytes) -> None:
        """Serve a connection that somebody accepted, and read so much of. May be called from any thread."""
        if self._loop is None or self._loop.is_closed():
            peer.close()
        else:
            asyncio.run_coroutine_threadsafe(self._take(peer, received), self._loop)

    async def _take(self, peer: socket.socket, received: bytes) -> None:
        peer.setblocking(False)
        try:
            _, protocol = await asyncio.get_running_loop().connect_accepted_socket(self._protocol, peer)
        except OSError:
            peer.close()  # it is gone
        else:
            protocol.data_received(received)

    def stop(self) -> None:
        """May be called from any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop)

    def join(self) -> None:
        """Wait for the thread."""
        if self._thread is not None:
            self._thread.join(5.0)
