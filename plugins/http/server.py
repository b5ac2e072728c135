"""Listeners for pages: read a head, find the page, write the answer. Slow, silent and too many peers are let go."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypeAlias

import orjson

from verniermq.kernel import Page, PageAnswer, RequestRefused, hookspec, nearest, parse_address
from verniermq.plugins.http.protocol import LARGEST_HEAD, HttpRefused, HttpRequest, encode, parse, path_of

logger = logging.getLogger(__name__)

MOST_CONNECTIONS: Final = 64
"""Of one listener. Pages are for a few who watch; the broker's files and memory are for its clients. One more takes the
place of the one that has neither sent nor read anything for longest: silent peers must not keep a health check away."""
IDLE_SECONDS: Final = 60.0
"""How long a peer may take to send a head, or to read an answer."""
WRITTEN_AT_ONCE: Final = 1 << 18
"""More of an answer is written in the next turns of the loop, even if the system takes it: copying takes time, too."""


TakesConnection: TypeAlias = Callable[[socket.socket, bytes], object]
"""Gets the socket of a peer, which it closes in the end, and all that was read from it."""


@hookspec("question")
def other_pages() -> TakesConnection | None:
    """Who answers requests for what is no page, at the address where ``http`` serves its own. Asked when the broker has
    started. What is returned gets the connection of such a request with what was read of it, and serves it from then
    on, on any thread. Used by ``console``."""


class HttpServer:
    """Serves some pages on one address. ``failed`` is told of what a page raised; ``others`` gets the connections that
    ask for anything else."""

    def __init__(
        self, pages: Sequence[Page], failed: Callable[[Page, Exception], None], others: TakesConnection | None = None
    ) -> None:
        self._pages = {page.path: page for page in pages}
        self._failed = failed
        self._others = others
        self._server: asyncio.Server | None = None
        self._peers: set[asyncio.Task[None]] = set()
        self._silent: dict[asyncio.Task[None], None] = {}
        """Those that a head or the reading of an answer is awaited of, the longest first."""
        self.address = ""
        """Where it listens, ``host:port``."""

    async def start(self, listen: str) -> None:
        """
        Raises:
            OSError: the address is taken, or not of this machine.
        """
        host, port = listen_address(listen)
        self._server = await asyncio.start_server(self._connected, host, port, limit=LARGEST_HEAD)
        port = self._server.sockets[0].getsockname()[1]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            for peer in self._peers:
                peer.cancel()
            await asyncio.gather(*self._peers, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._peers.add(task)
        try:
            if len(self._peers) > MOST_CONNECTIONS and not self._let_one_go():
                busy = _plain(503, f"{MOST_CONNECTIONS} connections are open; close one first")
                writer.writelines(encode(busy, keep_alive=False))
                return
            while await self._serve_one(task, reader, writer):
                pass
        except (OSError, TimeoutError, asyncio.CancelledError):
            pass  # the peer is gone or too slow, or the broker stops: there is nobody to tell
        finally:
            self._peers.discard(task)
            self._silent.pop(task, None)
            writer.close()

    def _let_one_go(self) -> bool:
        """Whether there was a silent one."""
        longest = next(iter(self._silent), None)
        if longest is None:
            return False
        del self._silent[longest]
        longest.cancel()
        return True

    @asynccontextmanager
    async def _awaited(self, peer: asyncio.Task[None]) -> AsyncIterator[None]:
        """A peer has to do something now."""
        self._silent[peer] = None
        async with asyncio.timeout(IDLE_SECONDS):
            yield
        self._silent.pop(peer, None)

    async def _serve_one(
        self, peer: asyncio.Task[None], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Answer one request, and say whether another one may follow."""
        request: HttpRequest | None = None
        try:
            async with self._awaited(peer):
                head = await reader.readuntil(b"\r\n\r\n")
            if self._others is not None and path_of(head) not in self._pages:
                self._others(*await _released(head, reader, writer))
                return False
            request = parse(head)
            answer = await self._answer(request)
        except asyncio.IncompleteReadError:
            return False
        except asyncio.LimitOverrunError:
            answer = _plain(431, f"the head of a request has at most {LARGEST_HEAD} bytes")
        except HttpRefused as refused:
            answer = _plain(refused.status, str(refused))
        keep_alive = request is not None and request.keep_alive
        with_body = request is None or request.method != "HEAD"
        pieces = deque(encode(answer, with_body=with_body, keep_alive=keep_alive))
        del answer  # each piece is let go once it is written: 50 MiB in one go would hold the loop for 5 ms
        async with self._awaited(peer):
            size = 0
            while pieces:
                if writer.transport.is_closing():
                    return False  # uvloop raises what is no OSError then
                size += len(pieces[0])
                writer.write(pieces.popleft())
                await writer.drain()  # at once, as long as the system's buffers have room
                if size > WRITTEN_AT_ONCE:
                    size = 0
                    await asyncio.sleep(0)
        return keep_alive

    async def _answer(self, request: HttpRequest) -> PageAnswer:
        page = self._pages.get(request.path)
        if page is None:
            raise HttpRefused(404, f"there is no page {request.path!r}; {nearest(request.path, self._pages)}")
        try:
            content = page.serve(request.query)
            if inspect.isawaitable(content):
                content = await content
        except RequestRefused as refused:
            return _plain(400, str(refused))
        except Exception as error:
            self._failed(page, error)
            return _plain(500, f"the page failed, plugin {page.plugin}: {type(error).__name__}; see the broker's log")
        return content if isinstance(content, PageAnswer) else as_json(content)


async def _released(
    head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> tuple[socket.socket, bytes]:
    """A peer's connection for somebody else, who is not touched when ours is closed, and what was read from it."""
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    reader.feed_eof()
    received = head + await reader.read()
    writer.transport.pause_reading()  # type: ignore[attr-defined]  # the reader may have gone on
    return socket.socket(fileno=os.dup(writer.get_extra_info("socket").fileno())), received


def listen_address(text: str) -> tuple[str, int]:
    """Host and port; unlike the address of a peer, port 0 is one.

    Raises:
        ValueError: it is neither.
    """
    if text.endswith(":0"):
        return parse_address(f"{text[:-1]}1")[0], 0
    return parse_address(text)


def as_json(content: Mapping[str, Any] | Sequence[Any], status: int = 200) -> PageAnswer:
    body = orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS) + b"\n"
    return PageAnswer(body, "application/json", status)


def _plain(status: int, text: str) -> PageAnswer:
    return PageAnswer(f"{text}\n".encode(), status=status)
