"""One connection of a gRPC client: HTTP/2's frames in, calls made of them, answers out (RFC 9113).

A server of gRPC's own library takes about three times the processor time for a call, most of it in threads that wake
each other. Here a call is one task of the loop, made when its message is whole, and its answer one write.

Whoever is at the other end is held to limits, each a constant below: streams at a time, the size of headers, bytes of
messages that are not whole yet, calls and milliseconds in one turn of the loop. A peer that does not read is not
read either, so that nothing piles up for it; one that says nothing is asked by a ping, and left.
"""

from __future__ import annotations

import asyncio
import logging
import struct
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, cast

import attrs

from verniermq.contrib.grpc.frames import (
    ACK,
    CONTINUATION,
    DATA,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    HEADER_SIZE,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    LARGEST_FRAME,
    LARGEST_WINDOW,
    MAX_CONCURRENT_STREAMS,
    MAX_HEADER_LIST_SIZE,
    NOT_GRPC,
    PADDED,
    PING,
    PREFACE,
    PUSH_PROMISE,
    RESPONSE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    WITH_PRIORITY,
    GrpcStatus,
    Http2Error,
    frame,
    goaway_frame,
    read_settings,
    reset_frame,
    settings_frame,
    timeout_seconds,
    window_frame,
)
from verniermq.contrib.grpc.headers import HeaderDecoder, HeadersBroken
from verniermq.contrib.grpc.stream import RpcFailed, Stream

logger = logging.getLogger(__name__)

MOST_STREAMS: Final = 1000
"""Calls of one connection at a time; a client lets others wait on its side."""
MOST_HEADER_BYTES: Final = 16 * 1024
MOST_BLOCK_BYTES: Final = 64 * 1024
"""Of headers; more than this ends the connection, less ends the call."""
ROOM: Final = 16 << 20
"""Bytes of long messages that one connection may be sending at a time."""
UNFINISHED: Final = 256 << 20
"""Bytes of messages that are not whole yet, of all connections together."""
WIDE: Final = 1 << 30
"""The window of a whole connection: streams have their own."""
BUFFER: Final = 256 * 1024
"""Bytes that wait for a peer to read them; then it is not read either."""
CALLS_PER_TURN: Final = 32
SECONDS_PER_TURN: Final = 0.005
QUIET_SECONDS: Final = 30.0
"""Silence after which a peer is asked whether it is there."""
ANSWER_SECONDS: Final = 10.0
LAST_SECONDS: Final = 1.0
"""How long a stop waits for peers to read what they are told last."""

_SETTINGS: Final = settings_frame({MAX_CONCURRENT_STREAMS: MOST_STREAMS, MAX_HEADER_LIST_SIZE: MOST_HEADER_BYTES})


class ConnectionBroken(Exception):
    """The peer broke the rules; the connection ends."""

    def __init__(self, error: Http2Error, reason: str) -> None:
        super().__init__(reason)
        self.error = error


@attrs.frozen
class Rpc:
    """What is served under a path."""

    serve: Callable[[Stream], Awaitable[None]]
    takes_many: bool = False
    """Whether it begins before the client has sent all."""


@attrs.define(eq=False)
class Http2Connections:
    """All connections of a port, what they serve and what they share."""

    rpcs: Mapping[str, Rpc]
    largest_message: int
    max_connections: int
    max_calls: int
    open: set[Http2Connection] = attrs.field(factory=set, init=False)
    calls: int = attrs.field(default=0, init=False)
    unfinished_bytes: int = attrs.field(default=0, init=False)
    """Of messages that are not whole yet."""
    _unfinished: dict[Stream, None] = attrs.field(factory=dict, init=False)
    """The oldest first."""
    _gone: asyncio.Future[None] | None = attrs.field(default=None, init=False)
    """Done when the last connection is gone, during a stop."""

    def note_unfinished(self, stream: Stream, more: int) -> None:
        """So many bytes more wait for the rest of their message. If there are too many, the oldest call ends."""
        self.unfinished_bytes += more
        if stream.incoming:
            self._unfinished[stream] = None
            while self.unfinished_bytes > UNFINISHED:
                oldest = next(iter(self._unfinished))
                self.forget_unfinished(oldest)
                oldest.fail(GrpcStatus.RESOURCE_EXHAUSTED, "there are too many unfinished messages here")
        elif more:
            self._unfinished.pop(stream, None)

    def forget_unfinished(self, stream: Stream) -> None:
        if stream.incoming:
            self._unfinished.pop(stream, None)
            self.unfinished_bytes -= len(stream.incoming)
            stream.incoming.clear()

    async def close(self, patience: float) -> None:
        """Take no more calls, let those under way end for a while, and hang up."""
        for connection in list(self.open):
            connection.say_goodbye()
        tasks = [task for connection in self.open for task in connection.tasks()]
        if tasks:
            await asyncio.wait(tasks, timeout=patience)
        for connection in list(self.open):
            connection.hang_up()
        await asyncio.sleep(0)
        if self.open:
            # For those that have to read the last answers first.
            self._gone = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._gone], timeout=LAST_SECONDS)
        for connection in list(self.open):
            connection.abort()

    def remove(self, connection: Http2Connection) -> None:
        self.open.discard(connection)
        if not self.open and self._gone is not None and not self._gone.done():
            self._gone.set_result(None)


class Http2Connection(asyncio.Protocol):
    """One connection."""

    def __init__(self, all_of_them: Http2Connections) -> None:
        self._all = all_of_them
        self.largest_message = all_of_them.largest_message
        self.peer = ("", 0)
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)
        self._loop = asyncio.get_running_loop()
        self._streams: dict[int, Stream] = {}
        self._last_id = 0
        self._is_leaving = False
        # in
        self._data = b""
        self._began = False
        self._decoder = HeaderDecoder()
        self._block: bytearray | None = None
        self._block_id = self._block_flags = 0
        self._calls_in_turn = 0
        self._resting = False
        self._credit = WIDE
        self._room = ROOM
        self._wanting: deque[tuple[Stream, int]] = deque()
        # out
        self._window = DEFAULT_WINDOW
        self._stream_window = DEFAULT_WINDOW
        self._blocked: dict[Stream, None] = {}
        self._is_writable = True
        # silence
        self._heard = 0.0
        self._asked = 0.0
        self._timer: asyncio.TimerHandle | None = None

    # --- the transport's side --------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._all.open.add(self)
        if len(self._all.open) > self._all.max_connections:
            logger.warning("gRPC connection refused, there are %d already", len(self._all.open) - 1)
            self.abort()
            return
        name = transport.get_extra_info("peername") or ("", 0)
        self.peer = (str(name[0]), int(name[1]))
        self._transport.set_write_buffer_limits(high=BUFFER)
        self._transport.write(_SETTINGS + window_frame(0, WIDE - DEFAULT_WINDOW))
        self._heard = self._loop.time()
        self._timer = self._loop.call_later(QUIET_SECONDS, self._look)

    def connection_lost(self, error: Exception | None) -> None:
        self._all.remove(self)
        if self._timer is not None:
            self._timer.cancel()
        for stream in list(self._streams.values()):
            self._drop(stream)
        self._data = b""

    def pause_writing(self) -> None:
        self._is_writable = False
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._is_writable = True
        self._pump_blocked()
        if self._is_writable and not self._resting and not self._transport.is_closing():
            self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        self._heard = self._loop.time()
        self._data = self._data + data if self._data else data
        if not self._resting:
            self._read()

    def _read(self) -> None:
        """Serve what came, for a few milliseconds at a time: others want their turn."""
        self._calls_in_turn = 0
        until = time.monotonic() + SECONDS_PER_TURN
        try:
            done = self._take_frames(until)
        except ConnectionBroken as broken:
            self._break(broken)
            return
        except (struct.error, IndexError):
            self._break(ConnectionBroken(Http2Error.FRAME_SIZE_ERROR, "a frame is too short for what it is"))
            return
        if not done:
            self._resting = True
            self._transport.pause_reading()
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._resting = False
        if self._transport.is_closing():
            return
        self._read()
        if not self._resting and self._is_writable and not self._transport.is_closing():
            self._transport.resume_reading()

    def _take_frames(self, until: float) -> bool:
        """Whether all of what came was served."""
        data, at = self._data, 0
        end = len(data)
        if not self._began:
            if not data.startswith(PREFACE):
                if PREFACE.startswith(data):
                    return True
                raise ConnectionBroken(Http2Error.PROTOCOL_ERROR, "this port serves gRPC")
            self._began, at = True, len(PREFACE)
        try:
            while end - at >= HEADER_SIZE:
                size = int.from_bytes(data[at : at + 3], "big")
                if size > LARGEST_FRAME:
                    raise ConnectionBroken(Http2Error.FRAME_SIZE_ERROR, f"a frame of {size} bytes")
                behind = at + HEADER_SIZE + size
                if behind > end:
                    break
                kind, flags = data[at + 3], data[at + 4]
                number = int.from_bytes(data[at + 5 : at + 9], "big") & LARGEST_WINDOW
                payload = data[at + HEADER_SIZE : behind]
                at = behind
                self._take_frame(kind, flags, number, payload)
                if self._calls_in_turn >= CALLS_PER_TURN or time.monotonic() > until:
                    return end - at < HEADER_SIZE
        finally:
            self._data = data[at:]
        return True

    # --- frames ----------------------------------------------------------------------------

    def _take_frame(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if self._block is not None and (kind != CONTINUATION or number != self._block_id):
            raise ConnectionBroken(Http2Error.PROTOCOL_ERROR, "headers were not continued")
        if kind == DATA:
            self._take_data(flags, number, payload)
        elif kind == HEADERS:
            self._begin_headers(flags, number, payload)
        elif kind == WINDOW_UPDATE:
            self._widen(number, int.from_bytes(payload, "big") & LARGEST_WINDOW, len(payload))
        elif kind == RST_STREAM:
            if number > self._last_id or not number:
                raise ConnectionBroken(Http2Error.PROTOCOL_ERROR, f"stream {number} was not begun")
            if (stream := self._streams.get(number)) is not None:
                self._drop(stream)
        elif kind == SETTINGS:
            if not flags & ACK:
                self._take_settings(payload)
        elif kind == PING:
            if len(payload) != 8:
                raise ConnectionBroken(Http2Error.FRAME_SIZE_ERROR, "a ping has 8 bytes")
            if not flags & ACK:
                self._transport.write(frame(PING, ACK, 0, payload))
        elif kind == CONTINUATION:
            self._continue_headers(flags, payload)
        elif kind == PUSH_PROMISE:
            raise ConnectionBroken(Http2Error.PROTOCOL_ERROR, "a client promises nothing")
        # GOAWAY: the client hangs up by itself when it has its answers. PRIORITY and unknown kinds mean nothing here.

    def _begin_headers(self, flags: int, number: int, payload: bytes) -> None:
        if not number % 2:
            raise ConnectionBroken(Http2Error.PROTOCOL_ERROR, f"a client begins no stream {number}")
        if flags & PADDED:
            padding = payload[0]
            if padding >= len(payload):
                raise ConnectionBroken(Http2Error.PROTOCOL_ERROR, "more padding than there is")
            payload = payload[1 : len(payload) - padding]
        if flags & WITH_PRIORITY:
            payload = payload[5:]
        if flags & END_HEADERS:
            self._take_headers(flags, number, payload)
        else:
            self._block, self._block_id, self._block_flags = bytearray(payload), number, flags

    def _continue_headers(self, flags: int, payload: bytes) -> None:
        if self._block is None:
            raise ConnectionBroken(Http2Error.PROTOCOL_ERROR, "there are no headers to continue")
        self._block += payload
        if len(self._block) > MOST_BLOCK_BYTES or not payload:
            raise ConnectionBroken(Http2Error.ENHANCE_YOUR_CALM, f"headers of more than {MOST_BLOCK_BYTES} bytes")
        if flags & END_HEADERS:
            block, self._block = bytes(self._block), None
            self._take_headers(self._block_flags, self._block_id, block)

    def _take_headers(self, flags: int, number: int, block: bytes) -> None:
        try:
            metadata = self._decoder.decode(block)
        except HeadersBroken as broken:
            raise ConnectionBroken(Http2Error.COMPRESSION_ERROR, str(broken)) from None
        known = self._streams.get(number)
        if known is not None:  # trailers, which no client of gRPC sends, and which end its messages if one does
            self._end(known)
            return
        if number <= self._last_id:
            raise ConnectionBroken(Http2Error.STREAM_CLOSED, f"stream {number} has ended")
        self._last_id = number
        if len(self._streams) >= MOST_STREAMS or self._is_leaving:
            self._transport.write(reset_frame(number, Http2Error.REFUSED_STREAM))
            return
        self._calls_in_turn += 1
        self._begin_call(flags, number, metadata, len(block))

    def _begin_call(self, flags: int, number: int, metadata: dict[str, str], size: int) -> None:
        stream = self._streams[number] = Stream(self, number, metadata, self._stream_window)
        self._all.calls += 1
        stream.has_ended = bool(flags & END_STREAM)
        if not metadata.get("content-type", "").startswith("application/grpc"):
            self._transport.write(frame(HEADERS, END_HEADERS | END_STREAM, number, NOT_GRPC))
            self._drop(stream)
            return
        rpc = self._all.rpcs.get(metadata.get(":path", ""))
        if rpc is None:
            stream.fail(GrpcStatus.UNIMPLEMENTED, f"{metadata.get(':path', '')[:200]} is not served here")
        elif self._all.calls > self._all.max_calls:
            what = f"{self._all.max_calls} calls are under way; try again later, or raise max_calls in [plugins.grpc]"
            stream.fail(GrpcStatus.RESOURCE_EXHAUSTED, what)
        elif size > MOST_HEADER_BYTES:
            stream.fail(GrpcStatus.RESOURCE_EXHAUSTED, f"metadata of more than {MOST_HEADER_BYTES} bytes")
        else:
            timeout = timeout_seconds(metadata.get("grpc-timeout", ""))
            if timeout is not None:
                stream.deadline = time.monotonic() + timeout
            if rpc.takes_many or stream.has_ended:
                self._start(stream, rpc)

    def _take_data(self, flags: int, number: int, payload: bytes) -> None:
        self._credit -= len(payload)
        if self._credit < WIDE // 2:
            self._transport.write(window_frame(0, WIDE - self._credit))
            self._credit = WIDE
        stream = self._streams.get(number)
        if stream is None:
            if number > self._last_id or not number:
                raise ConnectionBroken(Http2Error.PROTOCOL_ERROR, f"stream {number} was not begun")
            return  # it ended on our side before the client knew
        if stream.has_ended:
            raise ConnectionBroken(Http2Error.STREAM_CLOSED, f"stream {number} has ended")
        stream.received += len(payload)
        if stream.received > stream.allowed:
            self._transport.write(reset_frame(number, Http2Error.FLOW_CONTROL_ERROR))
            self._drop(stream)
            return
        if flags & PADDED:
            padding = payload[0]
            if padding >= len(payload):
                raise ConnectionBroken(Http2Error.PROTOCOL_ERROR, "more padding than there is")
            payload = payload[1 : len(payload) - padding]
        if payload and stream.trailers is None:
            before = len(stream.incoming)
            try:
                stream.take(payload)
            except RpcFailed as failed:
                stream.incoming.clear()
                stream.fail(failed.status, str(failed))
                return
            finally:
                self._all.note_unfinished(stream, len(stream.incoming) - before)
        if flags & END_STREAM:
            self._end(stream)

    def _end(self, stream: Stream) -> None:
        """The client has sent all of a call."""
        stream.end()
        if stream.task is None and stream.trailers is None:
            self._start(stream, self._all.rpcs[stream.metadata[":path"]])

    def _take_settings(self, payload: bytes) -> None:
        before = self._stream_window
        for setting, value in read_settings(payload):
            if setting == INITIAL_WINDOW_SIZE:
                if value > LARGEST_WINDOW:
                    raise ConnectionBroken(Http2Error.FLOW_CONTROL_ERROR, f"a window of {value} bytes")
                self._stream_window = value
        if change := self._stream_window - before:  # once, of however many values: a frame has room for thousands
            for stream in self._streams.values():
                stream.window += change
        self._transport.write(frame(SETTINGS, ACK, 0))
        self._pump_blocked()

    def _widen(self, number: int, size: int, length: int) -> None:
        if length != 4:
            raise ConnectionBroken(Http2Error.FRAME_SIZE_ERROR, "a window's update has 4 bytes")
        if not number:
            self._window += size
            if not size or self._window > LARGEST_WINDOW:
                raise ConnectionBroken(Http2Error.FLOW_CONTROL_ERROR, "the window cannot be so wide")
            self._pump_blocked()
        elif (stream := self._streams.get(number)) is not None:
            stream.window += size
            if not size or stream.window > LARGEST_WINDOW:
                self._transport.write(reset_frame(number, Http2Error.FLOW_CONTROL_ERROR))
                self._drop(stream)
            elif stream in self._blocked:
                self.pump(stream)
        elif number > self._last_id:
            raise ConnectionBroken(Http2Error.PROTOCOL_ERROR, f"stream {number} was not begun")

    # --- calls -----------------------------------------------------------------------------

    def _start(self, stream: Stream, rpc: Rpc) -> None:
        stream.task = self._loop.create_task(self._serve(stream, rpc))

    async def _serve(self, stream: Stream, rpc: Rpc) -> None:
        try:
            await rpc.serve(stream)
        except RpcFailed as failed:
            stream.fail(failed.status, str(failed))
        except Exception as error:
            logger.exception("call failed path=%s peer=%s", stream.metadata.get(":path"), self.peer)
            stream.fail(GrpcStatus.INTERNAL, f"{type(error).__name__}: {error}")

    def _drop(self, stream: Stream) -> None:
        """Forget a call: it is answered, or nobody waits for an answer any more."""
        if stream.is_closed:
            return
        stream.is_closed = True
        self._streams.pop(stream.id, None)
        self._blocked.pop(stream, None)
        self._all.calls -= 1
        self._all.forget_unfinished(stream)
        stream.outgoing = bytearray()
        self.take_room_back(stream)
        if stream.task is not None and stream.task is not asyncio.current_task():
            stream.task.cancel()
        stream.end()
        stream.wake_writer()

    # --- room for long messages ------------------------------------------------------------

    def ask_for_room(self, stream: Stream, size: int) -> None:
        """A message is longer than what the client may send: it gets the rest, now or when others have theirs."""
        self._wanting.append((stream, size))
        self._give_room()

    def _give_room(self) -> None:
        while self._wanting:
            stream, size = self._wanting[0]
            if stream.is_closed or stream.trailers is not None:
                self._wanting.popleft()
                continue
            if size > self._room and self._room < ROOM:
                return
            self._wanting.popleft()
            self._room -= size
            stream.lent += size
            self.grant(stream, size)

    def take_room_back(self, stream: Stream) -> None:
        if stream.lent:
            self._room += stream.lent
            stream.lent = 0
            self._give_room()

    def grant(self, stream: Stream, size: int) -> None:
        """Let a client send more of a call."""
        if not stream.is_closed:
            stream.give_room(size)
            self._transport.write(window_frame(stream.id, size))

    # --- answers ---------------------------------------------------------------------------

    def pump(self, stream: Stream) -> None:
        """Write of a call's answer what the client has room for."""
        if stream.is_closed:
            return
        outgoing = stream.outgoing
        parts = []
        if outgoing and not stream.is_answered:
            stream.is_answered = True
            parts.append(frame(HEADERS, END_HEADERS, stream.id, RESPONSE))
        while outgoing and self._is_writable:
            size = min(len(outgoing), LARGEST_FRAME, stream.window, self._window)
            if size <= 0:
                break
            stream.window -= size
            self._window -= size
            parts.append(frame(DATA, 0, stream.id, bytes(outgoing[:size])))
            del outgoing[:size]
            if len(parts) > BUFFER // LARGEST_FRAME:
                self._transport.write(b"".join(parts))  # which may close the door for a while
                parts.clear()
        if outgoing:
            self._blocked[stream] = None
            if parts:
                self._transport.write(b"".join(parts))
            return
        self._blocked.pop(stream, None)
        if stream.trailers is None:
            if parts:
                self._transport.write(b"".join(parts))
            stream.wake_writer()
            return
        if not stream.is_answered:
            stream.is_answered = True
            parts.append(frame(HEADERS, END_HEADERS, stream.id, RESPONSE))
        parts.append(frame(HEADERS, END_HEADERS | END_STREAM, stream.id, stream.trailers))
        if not stream.has_ended:
            parts.append(reset_frame(stream.id, Http2Error.NO_ERROR))
        self._transport.write(b"".join(parts))
        self._drop(stream)

    def _pump_blocked(self) -> None:
        for stream in list(self._blocked):
            if not self._is_writable or self._window <= 0:
                return
            # To the end of the row, so that each gets its share of a narrow window.
            self._blocked.pop(stream, None)
            self.pump(stream)

    # --- the end ---------------------------------------------------------------------------

    def _look(self) -> None:
        """Ask a silent peer whether it is there."""
        now = self._loop.time()
        silent = now - self._heard
        if silent < QUIET_SECONDS:
            self._timer = self._loop.call_later(QUIET_SECONDS - silent, self._look)
        elif self._asked > self._heard:
            logger.debug("gRPC connection closed, it answers no ping peer=%s", self.peer)
            self.abort()
        else:
            self._asked = now
            self._transport.write(frame(PING, 0, 0, b"are you?"))
            self._timer = self._loop.call_later(ANSWER_SECONDS, self._look)

    def _break(self, broken: ConnectionBroken) -> None:
        logger.debug("gRPC connection ended peer=%s reason=%s", self.peer, broken)
        self._data = b""
        self._transport.write(goaway_frame(self._last_id, broken.error, str(broken)))
        self.hang_up()

    def say_goodbye(self) -> None:
        """Take no more calls, and end those that would go on for ever."""
        if not self._is_leaving and not self._transport.is_closing():
            self._is_leaving = True
            self._transport.write(goaway_frame(self._last_id, Http2Error.NO_ERROR, "the server stops"))
            for stream in list(self._streams.values()):
                rpc = self._all.rpcs.get(stream.metadata.get(":path", ""))
                if rpc is not None and rpc.takes_many:
                    stream.fail(GrpcStatus.UNAVAILABLE, "the server stops")

    def tasks(self) -> list[asyncio.Task[None]]:
        return [stream.task for stream in self._streams.values() if stream.task is not None]

    def hang_up(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for stream in list(self._streams.values()):
            self._drop(stream)
        self._transport.close()
        # A peer that does not read would keep it open.
        self._timer = self._loop.call_later(ANSWER_SECONDS, self.abort)

    def abort(self) -> None:
        self._transport.abort()
