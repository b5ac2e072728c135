"""One peer on one socket (RocketMQ: a Netty channel with its handlers), the same for both directions.

Either side may send a request at any time; a bit of the flag tells requests from answers, and an opaque ties an
answer to its request. So this one class serves the peers that connect to us and those that we connect to.

::

    socket -> data_received -> Turn -> FrameDecoder -> request -> guards -> handler -> answer -> Turn
                                                    -> answer  -> asking.py: whoever waits for it
    socket <- one write for all answers of the turn of the loop <- Turn

Nothing that happens on one connection is felt on another: what a handler raises becomes an answer, bytes that are
no frame close this connection only, and a peer that does not read its answers is not read from either.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Final, TypeAlias, cast, final

from verniermq.kernel.codes import ResponseCode
from verniermq.kernel.errors import Busy, ConnectionLost, RequestRefused, RequestTimeout
from verniermq.kernel.message import unpack_host
from verniermq.kernel.remoting.address import pack_peer
from verniermq.kernel.remoting.asking import Answered, Asking
from verniermq.kernel.remoting.command import ONEWAY_FLAG, RESPONSE_FLAG, Command, Piece, request_name
from verniermq.kernel.remoting.frame import FrameDecoder
from verniermq.kernel.remoting.limits import RemotingLimits
from verniermq.kernel.remoting.turn import Turn

logger = logging.getLogger(__name__)

Answer: TypeAlias = Command | None
Handler: TypeAlias = Callable[[Command, "Connection"], Answer | Coroutine[Any, Any, Answer]]
"""Serves one kind of request. It returns the answer; or a coroutine that returns it; or ``None``, and calls
:meth:`Connection.answer` later, or never for a request that is one way."""

Guard: TypeAlias = Callable[[Command, "Connection"], Awaitable[None] | None]
"""Asked before each handler. It raises ``RequestRefused``, or returns ``None``, or something to wait for."""

LONGEST_REMARK: Final = 4096
"""Characters of an error that a peer gets to see."""
NO_HANDLERS: Final[Mapping[int, Handler]] = {}


@final
class Connection:
    """One peer. The server and :func:`~verniermq.kernel.remoting.client.connect` make these.

    Attributes:
        accepted: The peer connected to us. Such a peer is not read from while it does not read; see ``pause_writing``.
        on_close: Called once each, in order, when the connection is gone.
        on_refused: Called when a request of the peer was refused, or failed.
        sift: Sees the bytes that come before the decoder does, and returns those that it leaves to it.
        peer_address: ``10.0.0.5:43210`` or ``[2001:db8::5]:43210``.
        packed_host: The same as a record keeps it, see :func:`~verniermq.kernel.message.pack_host`.
        attributes: Whatever plugins want to remember of this peer, by a name that starts with the plugin's.
        language, version, binary: Of the last request received; our own requests take its form of header.
        last_active: When something was last read or written, by ``clock``.
    """

    def __init__(
        self,
        handlers: Mapping[int, Handler] = NO_HANDLERS,
        limits: RemotingLimits | None = None,
        guards: tuple[Guard, ...] = (),
        clock: Callable[[], float] = time.monotonic,
        accepted: bool = False,
        on_open: Callable[[Connection], None] | None = None,
        turn: Turn | None = None,
    ) -> None:
        limits = limits or RemotingLimits()
        loop = asyncio.get_running_loop()
        self.handlers = handlers
        self.limits = limits
        self.guards = guards
        self.clock = clock
        self.accepted = accepted
        self.on_open = on_open
        self.on_close: list[Callable[[Connection], None]] = []
        self.on_refused: Callable[[Command, Connection, Exception], None] | None = None
        self.sift: Callable[[bytes], bytes] | None = None
        self.peer_address = ""
        self.packed_host = bytes(8)
        self.attributes: dict[str, Any] = {}
        self.language = ""
        self.version = 0
        self.binary = False
        self.last_active = 0.0
        self.closed = False
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)
        self._loop = loop
        self._largest = limits.max_frame_size
        self._room = limits.write_buffer_high
        self._decoder = FrameDecoder(limits)
        self._last: list[Command] | None = None
        """The commands before bytes that are no frame: nothing comes after them."""
        self._asking = Asking(loop)
        self._turn = Turn(loop) if turn is None else turn
        self._parts: list[Piece] = []
        """What will be written when this turn ends."""
        self._parts_size = 0
        self._flush_due = False
        """The turn knows of it already."""
        self._paused = False
        self._writable = asyncio.Event()
        self._backlog: list[Command] = []
        """Requests that were decoded before the peer's answers filled the buffer; served when it has read them."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._gone = asyncio.Event()

    def as_protocol(self) -> asyncio.Protocol:
        """Itself, for the event loop. It has the methods of a protocol and no such base, for the sake of speed."""
        return cast(asyncio.Protocol, self)

    # --- what the event loop calls ---------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self.limits.write_buffer_high)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.packed_host = pack_peer(transport.get_extra_info("peername"))
        self.peer_address = self._asking.peer = unpack_host(self.packed_host)
        self.last_active = self.clock()
        self._writable.set()
        if self.on_open is not None:
            self.on_open(self)

    def data_received(self, data: bytes) -> None:
        self.last_active = self.clock()
        if self.accepted:
            self._turn.received(self, data)
            return
        self.take(self.decode(data))

    def decode(self, data: bytes) -> list[Command]:
        """The commands that these bytes complete, to be handed to :meth:`take`."""
        if self.sift is not None:
            data = self.sift(data)
        commands = self._decoder.feed(data)
        if self._decoder.error is not None and self._last is None:
            self._last = commands
        return commands

    def take(self, commands: list[Command]) -> None:
        """Serve commands, or keep them until the peer has read the answers to earlier ones."""
        if self._backlog:
            self._backlog += commands
        else:
            self._serve(commands)
        if commands is self._last and not self.closed:
            error = self._decoder.error
            logger.warning("connection closed, its bytes are no frame peer=%s reason=%s", self.peer_address, error)
            self.close()

    def eof_received(self) -> bool:
        """The peer will send nothing more: answer what it sent, then close this side too."""
        self._turn.end()
        return False

    def pause_writing(self) -> None:
        """The peer reads more slowly than we write.

        A peer that connected to us gets no new requests served until it has read the answers to the old ones,
        so that it fills its own buffers and nobody else's. A peer that we connected to is read from all the same:
        were both ends to wait for the other to read, neither ever would.
        """
        self._paused = True
        self._writable.clear()
        if self.accepted and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._paused = False
        self._writable.set()
        self._loop.call_soon(self._serve_backlog)

    def connection_lost(self, error: Exception | None) -> None:
        logger.debug("connection lost peer=%s reason=%s", self.peer_address, error or "closed")
        self.closed = True
        self._paused = False
        self._parts.clear()
        self._backlog.clear()
        self._asking.connection_lost()
        self._writable.set()
        self._gone.set()
        for callback in self.on_close:
            try:
                callback(self)
            except Exception:
                logger.exception("callback failed after a connection was lost peer=%s", self.peer_address)

    # --- requests of the peer --------------------------------------------------------------

    def _serve(self, commands: list[Command]) -> None:
        """Answer every request of a chunk, onto what is written when the turn ends. Each message comes through here."""
        handlers = self.handlers
        parts, size = self._parts, 0
        for command in commands:
            flag = command.flag
            if flag & RESPONSE_FLAG:
                self._asking.take(command)
                continue
            self.language = command.language
            self.version = command.version
            self.binary = command.binary
            try:
                handler = handlers.get(command.code)
                if handler is None:
                    raise _not_supported(command.code)
                result = self._guarded(handler, command) if self.guards else handler(command, self)
                if result is None:
                    continue
                if not isinstance(result, Command):
                    self._start(command, result)
                elif not flag & ONEWAY_FLAG:
                    frame = result.frame
                    if frame:  # encode_onto would do the same, but this is where most answers come through
                        parts.append(frame)
                        size += len(frame)
                    else:
                        size += result.encode_onto(parts, self._largest)
                    if size > self._room:
                        self._flush_soon(size)
                        size = 0
            except Exception as error:
                self._refuse(command, error)
            if self._paused and self.accepted:
                self._backlog = commands[commands.index(command) + 1 :]
                break
        if size:
            self._flush_soon(size)

    def _serve_backlog(self) -> None:
        if self.closed or self._paused:
            return
        backlog, self._backlog = self._backlog, []
        self._serve(backlog)
        if self.accepted and not self._paused and not self._transport.is_closing():
            self._transport.resume_reading()

    def _guarded(self, handler: Handler, request: Command) -> Answer | Coroutine[Any, Any, Answer]:
        for position, guard in enumerate(self.guards):
            waiting = guard(request, self)
            if waiting is not None:
                self._ensure_room(waiting)
                return self._wait_for_guards(waiting, self.guards[position + 1 :], handler, request)
        return handler(request, self)

    async def _wait_for_guards(
        self, waiting: Awaitable[None], others: tuple[Guard, ...], handler: Handler, request: Command
    ) -> Answer:
        await waiting
        for guard in others:
            again = guard(request, self)
            if again is not None:
                await again
        result = handler(request, self)
        return result if result is None or isinstance(result, Command) else await result

    def _start(self, request: Command, work: Coroutine[Any, Any, Answer]) -> None:
        self._ensure_room(work)
        task = self._loop.create_task(self._finish(request, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _ensure_room(self, work: Awaitable[object]) -> None:
        limit = self.limits.max_inflight_per_connection
        if len(self._tasks) >= limit:
            if isinstance(work, Coroutine):
                work.close()
            raise Busy(f"{limit} requests of this connection are being worked on; wait for their answers")

    async def _finish(self, request: Command, work: Coroutine[Any, Any, Answer]) -> None:
        # Not cancelled when the peer goes away: what a request has begun to change should not stay half done.
        try:
            response = await work
        except Exception as error:
            self._refuse(request, error)
        else:
            if response is not None:
                self.answer(request, response)

    def answer(self, request: Command, response: Command) -> None:
        """Answer a request whose handler returned ``None``. Does nothing for a one-way request or a lost peer."""
        if request.flag & ONEWAY_FLAG or self.closed:
            return
        try:
            size = response.encode_onto(self._parts, self._largest)
        except Exception as error:
            self._refuse(request, error)
        else:
            self._flush_soon(size)

    def _refuse(self, request: Command, error: Exception) -> None:
        code = ResponseCode.SYSTEM_ERROR
        if isinstance(error, RequestRefused):
            code, text = error.code, str(error)
            logger.debug("request refused peer=%s request=%s reason=%s", self.peer_address, request, text)
        else:
            text = f"{type(error).__name__}: {error}"
            logger.error(
                "request failed peer=%s request=%s", self.peer_address, request_name(request.code), exc_info=error
            )
        if not request.flag & ONEWAY_FLAG and not self.closed:
            # A text may hold what UTF-8 cannot (half a surrogate pair, from a file name): it must not fail here.
            remark = text[:LONGEST_REMARK].encode("utf-8", "replace").decode()
            self._flush_soon(request.reply(code, remark=remark).encode_onto(self._parts))
        if self.on_refused is not None:
            self.on_refused(request, self, error)

    # --- requests of ours ------------------------------------------------------------------

    async def request(self, command: Command, timeout: float = 3.0) -> Command:
        """Send a request and wait for its answer, whatever its code. The command gets an opaque of this connection.

        Raises:
            RequestTimeout: there was none within ``timeout`` seconds.
            ConnectionLost: the peer is gone.
        """
        if self._paused:
            await self._wait_until_writable(command, timeout)
        if self.closed:
            raise ConnectionLost(self.peer_address)
        opaque = self._asking.number(command)
        self._send(command)
        return await self._asking.wait_for(opaque, command.code, timeout)

    def begin(self, command: Command, timeout: float, answered: Answered) -> None:
        """Send a request and return at once; ``answered`` is called with the answer, or with an error instead.

        For many requests under way at a time, without a task and a timer for each: a missing answer is noticed up to
        a tenth of a second late. Mind :attr:`is_writable` between requests.

        Raises:
            ConnectionLost: the peer is gone already, and nothing was sent.
        """
        if self.closed:
            raise ConnectionLost(self.peer_address)
        opaque = self._asking.number(command)
        self._send(command)
        self._asking.call(opaque, command.code, timeout, answered)

    @property
    def is_writable(self) -> bool:
        """Whether the peer reads as fast as we write; wait with :meth:`drain` otherwise."""
        return not self._paused

    def oneway(self, command: Command) -> bool:
        """Send a request that is not answered; say whether there was still a connection to put it on."""
        if self.closed:
            return False
        command.flag |= ONEWAY_FLAG
        self._asking.number(command)
        self._send(command)
        return True

    def send(self, frame: bytes) -> None:
        """Write bytes that are whole frames already."""
        if not self.closed:
            self._parts.append(frame)
            self._flush_soon(len(frame))

    async def drain(self) -> None:
        """Wait until the peer has read enough, for whoever sends much that is not answered.

        Raises:
            ConnectionLost: the peer is gone.
        """
        self.flush()
        while self._paused and not self.closed:
            await self._writable.wait()
        if self.closed:
            raise ConnectionLost(self.peer_address)

    def _send(self, command: Command) -> None:
        if self.binary:
            command.binary = True
        self._flush_soon(command.encode_onto(self._parts, self._largest))

    async def _wait_until_writable(self, command: Command, timeout: float) -> None:
        try:
            async with asyncio.timeout(timeout):
                # Others waited too, and those that came first may have filled the buffer again.
                while self._paused:
                    await self._writable.wait()
        except TimeoutError:
            raise RequestTimeout(self.peer_address, request_name(command.code), timeout) from None

    # --- writing and closing ---------------------------------------------------------------

    def _flush_soon(self, size: int) -> None:
        self._parts_size += size
        if self._parts_size > self._room:
            # Much at once: written now, so that whoever looks at the buffer next sees how full it is.
            self.flush()
        elif not self._flush_due:
            self._flush_due = True
            self._turn.will_write(self)

    def flush(self) -> None:
        """Write what was answered and asked so far."""
        self._flush_due = False
        self._parts_size = 0
        parts = self._parts
        if not parts:
            return
        data = b"".join(parts)
        parts.clear()
        if self._transport.is_closing():
            return
        self._transport.write(data)
        self.last_active = self.clock()
        if self._paused and self._transport.get_write_buffer_size() > self.limits.write_buffer_max:
            logger.warning(
                "connection closed, its peer does not read peer=%s unsent=%d limit=%d",
                self.peer_address, self._transport.get_write_buffer_size(), self.limits.write_buffer_max,
            )  # fmt: skip
            self.abort()

    def close(self) -> None:
        """Write what was answered so far, then close. Does nothing when closed already."""
        if not self.closed:
            self.flush()
            self.closed = True
            self._transport.close()

    def abort(self) -> None:
        """Close without writing what is still unsent."""
        self.closed = True
        self._transport.abort()

    async def wait_closed(self) -> None:
        """Wait until the socket is gone and every ``on_close`` was called."""
        await self._gone.wait()

    @property
    def tasks(self) -> frozenset[asyncio.Task[None]]:
        """The requests of the peer that are being worked on."""
        return frozenset(self._tasks)


def _not_supported(code: int) -> RequestRefused:
    return RequestRefused(
        f"request {request_name(code)} is not supported here; perhaps a plugin that serves it is not active",
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
    )
