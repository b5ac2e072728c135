"""One peer on one socket (RocketMQ: a Netty channel with its handlers), the same for both directions.

Either side may send a request at any time; a bit of the flag tells requests from answers, and an opaque ties an
answer to its request. So this one class serves the peers that connect to us and those that we connect to.

::

    socket -> data_received -> at the end of the turn of the loop, each step for all connections:
                  decode       bytes -> requests
                  serve        request -> guards -> handler -> answer
                               answer to a request of ours -> responses.py: whoever waits for it
                  flush        answers -> one write

A connection tells its :class:`~verniermq.kernel.remoting.turn.Turn` that it has something to decode or to write, and
the turn calls these three. After many answers the turn has it wait, and serves the rest later.

Nothing that happens on one connection is felt on another: what a handler raises becomes an answer, bytes that are
no frame close this connection only, and a peer that does not read its answers is not read from either.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias, cast, final

from verniermq.kernel.codes import ResponseCode
from verniermq.kernel.errors import Busy, ConnectionLost, RequestRefused, RequestTimeout
from verniermq.kernel.maybe import Withheld, in_turn, then, watched
from verniermq.kernel.message import unpack_host
from verniermq.kernel.remoting.address import pack_peer
from verniermq.kernel.remoting.command import ONEWAY_FLAG, RESPONSE_FLAG, Command, Piece, request_name
from verniermq.kernel.remoting.frame import FrameDecoder
from verniermq.kernel.remoting.lane import Lane, Remainder
from verniermq.kernel.remoting.limits import RemotingLimits
from verniermq.kernel.remoting.responses import Answered, ResponseTable
from verniermq.kernel.remoting.turn import Turn

logger = logging.getLogger(__name__)

Answer: TypeAlias = Command | None
"""What a handler answers; ``None`` for a request that is one way, or that it answers later."""
Work: TypeAlias = Withheld[Any] | Coroutine[Any, Any, Answer]
"""What an answer comes from later."""
Handler: TypeAlias = Callable[[Command, "Connection"], Answer | Work]
"""Serves one kind of request. It returns the answer; or a coroutine that returns it; or one that is withheld; or
``None``, and calls :meth:`Connection.answer` later, or never for a request that is one way."""

Guard: TypeAlias = Callable[[Command, "Connection"], Awaitable[None] | None]
"""Asked before each handler. It raises ``RequestRefused``, or returns ``None``, or something to wait for."""

Observer: TypeAlias = Callable[[Command, "Connection", Answer, Exception | None, int], object]
"""Told after each request: its answer, or what was raised, and how many nanoseconds it took."""

LONGEST_REMARK: Final = 4096
"""Characters of an error that a peer gets to see."""
REQUESTS_PER_TURN: Final = 256
"""Requests of one peer that are served before others have a turn, however many it sent without waiting."""
FEW: Final = 4
"""So many are served without a look at the clock; of more, the rest waits when the turn has taken long."""
LARGE: Final = 128 * 1024
"""Bytes of a chunk after which a peer is read no further in this turn: some loops read megabytes without a pause."""
NO_HANDLERS: Final[Mapping[int, Handler]] = {}


@final
class Connection:
    """One peer. The server and :func:`~verniermq.kernel.remoting.client.connect` make these.

    Attributes:
        accepted: The peer connected to us. Such a peer is not read from while it does not read; see ``pause_writing``.
        on_close: Called once each, in order, when the connection is gone.
        guards, observers: Asked before and told after each request. The lists may change at any time.
        unsupported: Serves requests that have no handler.
        lane: Sees bytes before the decoder does, and serves what it can.
        sift: On a connection that we opened: sees bytes before the decoder does, and returns what it leaves to it.
        peer_address: ``10.0.0.5:43210`` or ``[2001:db8::5]:43210``.
        packed_host: The same as a record keeps it, see :func:`~verniermq.kernel.message.pack_host`.
        attributes: Whatever plugins want to remember of this peer, by a name that starts with the plugin's.
        identity: Says who makes a request, where that is not told by the signature of the request; see ``Identity``.
        language, version, binary: Of the last request received; our own requests take its form of header.
        last_active: When something was last read or written, by ``clock``.
    """

    def __init__(
        self,
        handlers: Mapping[int, Handler] = NO_HANDLERS,
        limits: RemotingLimits | None = None,
        guards: Sequence[Guard] = (),
        observers: Sequence[Observer] = (),
        unsupported: Handler | None = None,
        clock: Callable[[], float] = time.monotonic,
        accepted: bool = False,
        on_open: Callable[[Connection], None] | None = None,
        turn: Turn | None = None,
        lane: Lane | None = None,
    ) -> None:
        limits = limits or RemotingLimits()
        loop = asyncio.get_running_loop()
        self.handlers = handlers
        self.limits = limits
        self.guards = guards
        self.observers = observers
        self.unsupported: Handler = unsupported or _refuse_unsupported
        self.clock = clock
        self.accepted = accepted
        self.on_open = on_open
        self.on_close: list[Callable[[Connection], None]] = []
        self.sift: Callable[[bytes], bytes] | None = None
        self.lane = lane
        self.peer_address = ""
        self.packed_host = bytes(8)
        self.attributes: dict[str, Any] = {}
        self.identity: Any = None
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
        self._responses = ResponseTable(loop)
        self._turn = Turn(loop) if turn is None else turn
        self._parts: list[Piece] = []
        """What will be written when this turn ends."""
        self._parts_size = 0
        self._flush_due = False
        """The turn knows of it already."""
        self._paused = False
        """The peer does not read."""
        self._awaited = 0
        """Things that have to end before the peer's next request is served."""
        self._stopped = False
        """One of these two: no requests are served."""
        self._writable = asyncio.Event()
        self._requests: list[Command] = []
        """Decoded and not served yet."""
        self._left = Remainder()
        """Not decoded yet: it is behind a request that the lane could not serve."""
        self._waits = False
        """Its requests are served in a later turn, or when the peer has read the answers to earlier ones."""
        self._unsettled = False
        """There is something to do when its requests are served: see :meth:`_settle`."""
        self._ended = False
        """The peer sends nothing more; it is closed when what it sent is answered."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_full = False
        """As many requests are being worked on as may be."""
        self._last_code = 0
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
        self.peer_address = self._responses.peer = unpack_host(self.packed_host)
        self.last_active = self.clock()
        self._writable.set()
        if self.on_open is not None:
            self.on_open(self)

    def data_received(self, data: bytes) -> None:
        self.last_active = self.clock()
        if not self.accepted:
            self.decode(data if self.sift is None else self.sift(data))
            self.serve()
            return
        if len(data) >= LARGE:
            self._transport.pause_reading()
            self._unsettled = True
        self._turn.received(self, data)

    def eof_received(self) -> bool:
        """The peer will send nothing more: answer what it sent, then close this side too.

        That may take further turns. Inside TLS, where no connection is closed on one side only, it is done at once.
        """
        self._turn.end()
        self._turn.decode_left(self)
        if self._requests and self.accepted and self._transport.get_extra_info("sslcontext") is None:
            self._ended = True
            return True
        self.serve_all()
        return False

    def pause_writing(self) -> None:
        """The peer reads more slowly than we write.

        A peer that connected to us gets no new requests served until it has read the answers to the old ones,
        so that it fills its own buffers and nobody else's. A peer that we connected to is read from all the same:
        were both ends to wait for the other to read, neither ever would.
        """
        self._paused = self._stopped = True
        self._writable.clear()
        if self.accepted and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._paused = False
        self._writable.set()
        self._go_on()

    def _go_on(self) -> None:
        self._stopped = self._paused or self._awaited > 0
        if self.accepted and not self._stopped:
            self._turn.will_serve(self)

    def connection_lost(self, error: Exception | None) -> None:
        logger.debug("connection lost peer=%s reason=%s", self.peer_address, error or "closed")
        self.closed = True
        self._paused = self._stopped = False
        self._parts.clear()
        self._requests.clear()
        self._left.clear()
        self._responses.connection_lost()
        self._writable.set()
        self._gone.set()
        for callback in self.on_close:
            try:
                callback(self)
            except Exception:
                logger.exception("callback failed after a connection was lost peer=%s", self.peer_address)

    # --- requests of the peer --------------------------------------------------------------

    def decode(self, data: bytes) -> None:
        """Turn bytes into requests, and into answers to ours."""
        if self.lane is not None:
            if self._left:
                data = self._left.rest() + data  # more came before the request ahead of it is served
            elif not self._requests and not self._waits and not self._stopped and self._last_code in self.lane.codes:
                whole = self._decoder.join(data)
                if whole is not None:
                    self._left.begin(whole)
                    data = self._through_lane()
        self._feed(data)

    def _feed(self, data: bytes) -> None:
        requests = self._decoder.feed(data)
        self._requests = self._requests + requests if self._requests else requests
        if self._decoder.error is not None:
            self._left.clear()
            self._unsettled = True

    def _through_lane(self) -> bytes:
        """Have the lane serve what it can of what is left; return what is for the decoder before it can go on.

        Not for one whose last request was nothing for it.
        """
        if self.lane is not None and self._last_code in self.lane.codes and not self._is_full:
            answers = self._left.try_lane(self.lane, self)
            if answers:
                self._parts.append(answers)
                self._turn.answered += len(answers)
                self._flush_soon(len(answers))
        return self._left.piece()

    def _serve_left(self) -> None:
        """Go on behind a request that the lane could not serve, which is served now."""
        while self._left:
            if self._requests or self._stopped or self.closed or self._turn.is_full:
                self._feed(self._left.rest())
                self._unsettled = True
                return
            self._feed(self._through_lane())
            self._serve_decoded()

    def serve(self) -> None:
        """Answer the requests, onto what is written when the turn ends. Each message comes through here."""
        if self._waits:
            return
        self._serve_decoded()
        if self.lane is not None and self._left:
            self._serve_left()
        if self._unsettled:
            self._settle()

    def _serve_decoded(self) -> None:
        requests = self._requests
        if len(requests) <= REQUESTS_PER_TURN or not self.accepted:
            self._requests = []
        else:
            self._requests = requests[REQUESTS_PER_TURN:]
            requests = requests[:REQUESTS_PER_TURN]
            self._unsettled = True
        handlers = self.handlers
        parts, size = self._parts, 0
        is_timed = len(requests) > FEW and self.accepted
        clock, late = self._turn.clock, self._turn.ends_at() if is_timed else 0.0
        for command in requests:
            flag = command.flag
            if flag & RESPONSE_FLAG:
                self._responses.take(command)
                continue
            self._last_code = command.code
            self.language = command.language
            self.version = command.version
            self.binary = command.binary
            try:
                handler = handlers.get(command.code) or self.unsupported
                if self.guards or self.observers or self._is_full:
                    result = self._observed(handler, command)
                else:
                    result = handler(command, self)
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
                        self._turn.answered += size
                        self._flush_soon(size)
                        size = 0
                        if self._turn.is_full and self.accepted:
                            self._leave_after(command, requests)
                            break
            except Exception as error:
                self._refuse(command, error)
            if (is_timed and clock() > late) or (self._stopped and self.accepted):
                self._leave_after(command, requests)
                break
        if size:
            self._turn.answered += size
            self._flush_soon(size)

    def _leave_after(self, last: Command, requests: list[Command]) -> None:
        """Keep those that come after the last one served."""
        self._requests = requests[requests.index(last) + 1 :] + self._requests
        self._unsettled = True

    def hold(self) -> None:
        """Read no more until what was read is served: there was no time to decode it."""
        self._unsettled = True
        if not self.closed and not self._transport.is_closing():
            self._transport.pause_reading()

    def serve_after(self, ended: asyncio.Future[Any]) -> None:
        """Serve no more requests of this peer, and read none, until this is over: one of them has to wait for it."""
        self._awaited += 1
        self._stopped = self._unsettled = True
        if self.accepted and not self.closed and not self._transport.is_closing():
            self._transport.pause_reading()
        ended.add_done_callback(self._await_less)

    def _await_less(self, ended: asyncio.Future[Any]) -> None:
        self._awaited -= 1
        self._go_on()

    def wait(self) -> None:
        """Leave all requests to a later turn: others got enough answers in this one."""
        if self._left:
            self._feed(self._left.rest())
        self._unsettled = True
        self._settle()

    def _settle(self) -> None:
        """Some requests were served. Leave the rest to the next turn, or until the peer reads; or read on; or close."""
        if self.closed or self._transport.is_closing():
            return
        self._waits = bool(self._requests)
        if self._waits:
            self._transport.pause_reading()
            if not self._stopped:
                self._turn.will_serve(self)
            return
        self._unsettled = False
        if self._ended:
            self.close()
        elif self._decoder.error is not None:
            error = self._decoder.error
            logger.warning("connection closed, its bytes are no frame peer=%s reason=%s", self.peer_address, error)
            self.close()
        elif self.accepted and not self._stopped:
            self._transport.resume_reading()

    def serve_next(self) -> None:
        """Serve what waited, and read on if nothing is left."""
        if not self.closed and not self._stopped:
            self._waits = False
            self._unsettled = True
            self.serve()

    def serve_all(self) -> None:
        """Serve at once what waits for its turn: the connection or the server ends."""
        while self._requests and not self._stopped and not self.closed:
            self._waits = False
            self.serve()

    def _observed(self, handler: Handler, request: Command) -> Answer | Work:
        """Serve a request that guards are asked about before, or observers told of afterwards."""
        started = time.perf_counter_ns()

        def begin() -> Answer | Work:
            if self._is_full:
                # Before anything begins: a coroutine that is refused afterwards is one that nothing ever awaits.
                limit = self.limits.max_inflight_per_connection
                raise Busy(f"{limit} requests of this connection are being worked on; wait for their answers")
            # A copy of the list: a guard may take itself off it.
            waiting = in_turn(guard(request, self) for guard in tuple(self.guards))
            return then(waiting, lambda: handler(request, self))

        def ended(answer: Answer, error: BaseException | None) -> None:
            elapsed = time.perf_counter_ns() - started
            for observer in tuple(self.observers):
                observer(request, self, answer, self.reason(error), elapsed)

        return watched(begin, ended)

    def reason(self, error: BaseException | None) -> Exception | None:
        """What observers hear of an error: a request that was cancelled had lost its peer."""
        return error if error is None or isinstance(error, Exception) else ConnectionLost(self.peer_address)

    def _start(self, request: Command, work: Work) -> None:
        task: asyncio.Task[Any]
        if isinstance(work, Withheld):
            work.then_tell(partial(self._end, request))
            task = work.task
            if task in self._tasks:
                return
        else:
            task = self._loop.create_task(self._finish(request, work))
        self._tasks.add(task)
        self._is_full = len(self._tasks) >= self.limits.max_inflight_per_connection
        task.add_done_callback(self._finished)

    def _end(self, request: Command, answer: Answer, error: BaseException | None) -> None:
        if answer is not None:
            self.answer(request, answer)
        elif isinstance(error, Exception):
            self._refuse(request, error)

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        self._is_full = False

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
        opaque = self._responses.number(command)
        self._send(command)
        return await self._responses.wait_for(opaque, command.code, timeout)

    def begin(self, command: Command, timeout: float, answered: Answered) -> None:
        """Send a request and return at once; ``answered`` is called with the answer, or with an error instead.

        For many requests under way at a time, without a task and a timer for each: a missing answer is noticed up to
        a tenth of a second late. Mind :attr:`is_writable` between requests.

        Raises:
            ConnectionLost: the peer is gone already, and nothing was sent.
        """
        if self.closed:
            raise ConnectionLost(self.peer_address)
        opaque = self._responses.number(command)
        self._send(command)
        self._responses.call(opaque, command.code, timeout, answered)

    @property
    def peer_host(self) -> str:
        """The peer's address without its port, which is another one for each connection."""
        return self.peer_address.rpartition(":")[0]

    @property
    def is_writable(self) -> bool:
        """Whether the peer reads as fast as we write; wait with :meth:`drain` otherwise."""
        return not self._paused

    def oneway(self, command: Command) -> bool:
        """Send a request that is not answered; say whether there was still a connection to put it on."""
        if self.closed:
            return False
        command.flag |= ONEWAY_FLAG
        self._responses.number(command)
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
    def tasks(self) -> frozenset[asyncio.Task[Any]]:
        """The requests of the peer that are being worked on."""
        return frozenset(self._tasks)


def _refuse_unsupported(request: Command, connection: Connection) -> Answer:
    raise RequestRefused(
        f"request {request_name(request.code)} is not supported here", ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    )
