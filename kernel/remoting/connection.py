"""One peer on one socket (RocketMQ: a Netty channel with its handlers), the same for both directions.

Either side may send a request at any time; a bit of the flag tells requests from answers, and an opaque ties an
answer to its request. So this one class serves the peers that connect to us and those that we connect to.

::

    socket -> data_received -> FrameDecoder -> request -> guards -> handler -> answer -.
                                            -> answer  -> the task that waits for it    |
    socket <- one write for all answers of the chunk, or of the turn of the loop <------'

Nothing that happens on one connection is felt on another: what a handler raises becomes an answer, bytes that are
no frame close this connection only, and a peer that does not read its answers is not read from either.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Final, TypeAlias, cast

import attrs

from verniermq.kernel.codes import ResponseCode
from verniermq.kernel.errors import Busy, ConnectionLost, RequestRefused, RequestTimeout
from verniermq.kernel.message import unpack_host
from verniermq.kernel.remoting.address import pack_peer
from verniermq.kernel.remoting.command import ONEWAY_FLAG, RESPONSE_FLAG, Command, Piece, request_name
from verniermq.kernel.remoting.frame import FrameDecoder
from verniermq.kernel.remoting.limits import RemotingLimits

logger = logging.getLogger(__name__)

Answer: TypeAlias = Command | None
Handler: TypeAlias = Callable[[Command, "Connection"], Answer | Coroutine[Any, Any, Answer]]
"""Serves one kind of request. It returns the answer; or a coroutine that returns it; or ``None``, and calls
:meth:`Connection.answer` later, or never for a request that is one way."""

Guard: TypeAlias = Callable[[Command, "Connection"], Awaitable[None] | None]
"""Asked before each handler. It raises ``RequestRefused``, or returns ``None``, or something to wait for."""

Answered: TypeAlias = Callable[[Command | None, Exception | None], None]
"""Hears how a request ended: with an answer, or with an error."""

EXPIRY_TICK: Final = 0.1
"""Seconds. Requests whose time ends within the same tick share a timer."""
LARGEST_OPAQUE: Final = 2**31 - 1
LONGEST_REMARK: Final = 4096
"""Characters of an error that a peer gets to see."""
NO_HANDLERS: Final[Mapping[int, Handler]] = {}


@attrs.define(eq=False)
class Connection(asyncio.Protocol):
    """One peer. The server and :func:`~verniermq.kernel.remoting.client.connect` make these."""

    handlers: Mapping[int, Handler] = NO_HANDLERS
    limits: RemotingLimits = attrs.Factory(RemotingLimits)
    guards: tuple[Guard, ...] = ()
    clock: Callable[[], float] = time.monotonic
    accepted: bool = False
    """The peer connected to us. Such a peer is not read from while it does not read; see ``pause_writing``."""
    on_open: Callable[[Connection], None] | None = None
    on_close: list[Callable[[Connection], None]] = attrs.Factory(list)
    """Called once each, in order, when the connection is gone."""
    on_refused: Callable[[Command, Connection, Exception], None] | None = None
    """Called when a request of the peer was refused, or failed."""

    peer_address: str = attrs.field(default="", init=False)
    """``10.0.0.5:43210`` or ``[2001:db8::5]:43210``."""
    packed_host: bytes = attrs.field(default=bytes(8), init=False)
    """The same as a record keeps it, see :func:`~verniermq.kernel.message.pack_host`."""
    attributes: dict[str, Any] = attrs.field(factory=dict, init=False)
    """Whatever plugins want to remember of this peer, by a name that starts with the plugin's."""
    language: str = attrs.field(default="", init=False)
    version: int = attrs.field(default=0, init=False)
    binary: bool = attrs.field(default=False, init=False)
    """These three are of the last request received; our own requests take its form of header."""
    last_active: float = attrs.field(default=0.0, init=False)
    """When something was last read or written, by ``clock``."""
    closed: bool = attrs.field(default=False, init=False)

    _transport: asyncio.Transport = attrs.field(default=cast(asyncio.Transport, None), init=False)
    _loop: asyncio.AbstractEventLoop = attrs.field(factory=asyncio.get_running_loop, init=False)
    _decoder: FrameDecoder = attrs.field(init=False)
    _parts: list[Piece] = attrs.field(factory=list, init=False)
    """What will be written when this turn ends."""
    _parts_size: int = attrs.field(default=0, init=False)
    """Bytes in there that did not come from ``_serve``, which counts its own."""
    _flush_due: bool = attrs.field(default=False, init=False)
    """Somebody will flush at the end of this turn already."""
    _paused: bool = attrs.field(default=False, init=False)
    _writable: asyncio.Event = attrs.field(factory=asyncio.Event, init=False)
    _backlog: list[Command] = attrs.field(factory=list, init=False)
    """Requests that were decoded before the peer's answers filled the buffer; served when it has read them."""
    _last_opaque: int = attrs.field(default=0, init=False)
    _waiting: dict[int, asyncio.Future[Command]] = attrs.field(factory=dict, init=False)
    _begun: dict[int, Answered] = attrs.field(factory=dict, init=False)
    """The same for requests of :meth:`begin`."""
    _due: dict[int, list[int]] = attrs.field(factory=dict, init=False)
    """Tick → the opaques that have to be answered by then."""
    _tasks: set[asyncio.Task[None]] = attrs.field(factory=set, init=False)
    _gone: asyncio.Event = attrs.field(factory=asyncio.Event, init=False)

    def __attrs_post_init__(self) -> None:
        self._decoder = FrameDecoder(self.limits)

    # --- what the event loop calls ---------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self.limits.write_buffer_high)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.packed_host = pack_peer(transport.get_extra_info("peername"))
        self.peer_address = unpack_host(self.packed_host)
        self.last_active = self.clock()
        self._writable.set()
        if self.on_open is not None:
            self.on_open(self)

    def data_received(self, data: bytes) -> None:
        self.last_active = self.clock()
        commands = self._decoder.feed(data)
        if self._backlog:
            self._backlog += commands
        else:
            self._serve(commands)
        if self._decoder.error is not None and not self.closed:
            logger.warning(
                "connection closed, its bytes are no frame peer=%s reason=%s", self.peer_address, self._decoder.error
            )
            self.close()

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
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(ConnectionLost(self.peer_address))
        self._waiting.clear()
        begun, self._begun = self._begun, {}
        self._due.clear()
        for answered in begun.values():
            self._tell(answered, None, ConnectionLost(self.peer_address))
        self._writable.set()
        self._gone.set()
        for callback in self.on_close:
            try:
                callback(self)
            except Exception:
                logger.exception("callback failed after a connection was lost peer=%s", self.peer_address)

    # --- requests of the peer --------------------------------------------------------------

    def _serve(self, commands: list[Command]) -> None:
        """Answer every request of a chunk, and write the answers at once. Each message comes through here."""
        self._flush_due = True
        handlers = self.handlers
        parts = self._parts
        largest = self.limits.max_frame_size
        room = self.limits.write_buffer_high
        for command in commands:
            flag = command.flag
            if flag & RESPONSE_FLAG:
                self._take_answer(command)
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
                if result.__class__ is not Command:
                    self._start(command, cast(Coroutine[Any, Any, Answer], result))
                elif not flag & ONEWAY_FLAG:
                    room -= result.encode_onto(parts, largest)
            except Exception as error:
                self._refuse(command, error)
            if room < 0:
                self._flush()
                self._flush_due = True
                if self._paused and self.accepted:
                    self._backlog = commands[commands.index(command) + 1 :]
                    break
                room = self.limits.write_buffer_high
        self._flush()

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
            size = response.encode_onto(self._parts, self.limits.max_frame_size)
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
        future: asyncio.Future[Command] = self._loop.create_future()
        opaque = self._number(command)
        self._waiting[opaque] = future
        timer = self._loop.call_later(timeout, self._expire, future, command.code, timeout)
        try:
            self._send(command)
            return await future
        finally:
            timer.cancel()
            self._waiting.pop(opaque, None)

    def begin(self, command: Command, timeout: float, answered: Answered) -> None:
        """Send a request and return at once; ``answered`` is called with the answer, or with an error instead.

        For many requests under way at a time, without a task and a timer for each: a missing answer is noticed up to
        a tenth of a second late. Mind :attr:`is_writable` between requests.

        Raises:
            ConnectionLost: the peer is gone already, and nothing was sent.
        """
        if self.closed:
            raise ConnectionLost(self.peer_address)
        opaque = self._number(command)
        self._send(command)
        self._begun[opaque] = answered
        tick = int((self._loop.time() + timeout) / EXPIRY_TICK) + 1
        due = self._due.get(tick)
        if due is None:
            due = self._due[tick] = []
            self._loop.call_at(tick * EXPIRY_TICK, self._expire_begun, tick, command.code, timeout)
        due.append(opaque)

    def _expire_begun(self, tick: int, code: int, timeout: float) -> None:
        begun = self._begun
        for opaque in self._due.pop(tick, ()):
            answered = begun.pop(opaque, None)
            if answered is not None:
                self._tell(answered, None, RequestTimeout(self.peer_address, request_name(code), timeout))

    def _tell(self, answered: Answered, response: Command | None, error: Exception | None) -> None:
        try:
            answered(response, error)
        except Exception:
            logger.exception("callback failed after a request peer=%s", self.peer_address)

    @property
    def is_writable(self) -> bool:
        """Whether the peer reads as fast as we write; wait with :meth:`drain` otherwise."""
        return not self._paused

    def oneway(self, command: Command) -> bool:
        """Send a request that is not answered; say whether there was still a connection to put it on."""
        if self.closed:
            return False
        command.flag |= ONEWAY_FLAG
        self._number(command)
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
        self._flush()
        while self._paused and not self.closed:
            await self._writable.wait()
        if self.closed:
            raise ConnectionLost(self.peer_address)

    def _number(self, command: Command) -> int:
        # From 1: a client of Node takes 0 for "none".
        self._last_opaque = opaque = self._last_opaque + 1 if self._last_opaque < LARGEST_OPAQUE else 1
        command.opaque = opaque
        return opaque

    def _send(self, command: Command) -> None:
        if self.binary:
            command.binary = True
        self._flush_soon(command.encode_onto(self._parts, self.limits.max_frame_size))

    async def _wait_until_writable(self, command: Command, timeout: float) -> None:
        try:
            async with asyncio.timeout(timeout):
                # Others waited too, and those that came first may have filled the buffer again.
                while self._paused:
                    await self._writable.wait()
        except TimeoutError:
            raise RequestTimeout(self.peer_address, request_name(command.code), timeout) from None

    def _expire(self, future: asyncio.Future[Command], code: int, timeout: float) -> None:
        if not future.done():
            future.set_exception(RequestTimeout(self.peer_address, request_name(code), timeout))

    def _take_answer(self, response: Command) -> None:
        answered = self._begun.pop(response.opaque, None)
        if answered is not None:
            self._tell(answered, response, None)
            return
        future = self._waiting.get(response.opaque)
        if future is None or future.done():
            logger.debug("answer that nobody waits for peer=%s opaque=%d", self.peer_address, response.opaque)
        else:
            future.set_result(response)

    # --- writing and closing ---------------------------------------------------------------

    def _flush_soon(self, size: int) -> None:
        self._parts_size += size
        if self._parts_size > self.limits.write_buffer_high:
            # Much at once: written now, so that whoever looks at the buffer next sees how full it is.
            self._flush()
        elif not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
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
            self._flush()
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
