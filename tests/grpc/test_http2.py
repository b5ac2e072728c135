"""HTTP/2 under the calls: frames of every shape, windows, limits, and peers that break the rules."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import grpc
import pytest
from hpack import Decoder, Encoder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.grpc.rocketmq5 import TOPIC, client_of, grpc_broker, make_message, named, port_of, producer_settings, until
from verniermq.contrib.grpc import http2
from verniermq.contrib.grpc.enums import Code
from verniermq.contrib.grpc.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    WITH_PRIORITY,
    GrpcStatus,
    Http2Error,
    frame,
    message_frame,
    message_prefix,
    reset_frame,
    settings_frame,
    timeout_seconds,
    window_frame,
)
from verniermq.contrib.grpc.schema import SERVICE, proto
from verniermq.contrib.grpc.stream import Stream
from verniermq.kernel import Broker

ROUTE = proto.QueryRouteRequest(topic=named(TOPIC)).SerializeToString()
PATIENCE = 30.0


@attrs.define(eq=False)
class Peer:
    """The other end of a connection, byte by byte."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    encoder: Encoder = attrs.field(factory=Encoder)
    decoder: Decoder = attrs.field(factory=Decoder)

    def write(self, *frames: bytes) -> None:
        self.writer.write(b"".join(frames))

    def fields(self, name: str = "QueryRoute", **changed: str) -> bytes:
        fields = {
            ":method": "POST", ":scheme": "http", ":path": f"/{SERVICE}/{name}", ":authority": "here", "te": "trailers",
            "content-type": "application/grpc", "x-mq-client-id": "raw@1", "x-mq-language": "C",
        }  # fmt: skip
        fields.update({key.replace("_", "-"): value for key, value in changed.items()})
        return bytes(self.encoder.encode(list(fields.items())))

    def headers(self, number: int, name: str = "QueryRoute", **changed: str) -> bytes:
        return frame(HEADERS, END_HEADERS, number, self.fields(name, **changed))

    def call(self, number: int, name: str = "QueryRoute", message: bytes = ROUTE) -> bytes:
        return self.headers(number, name) + frame(DATA, END_STREAM, number, message_frame(message))

    async def next(self) -> tuple[int, int, int, bytes]:
        async with asyncio.timeout(PATIENCE):
            head = await self.reader.readexactly(9)
            payload = await self.reader.readexactly(int.from_bytes(head[:3], "big"))
        return head[3], head[4], int.from_bytes(head[5:], "big"), payload

    async def next_of(self, *kinds: int) -> tuple[int, int, int, bytes]:
        while (found := await self.next())[0] not in kinds:
            pass
        return found

    async def answer(self, number: int) -> tuple[dict[str, str], bytes]:
        """Headers and trailers of a call, and what came between them."""
        fields: dict[str, str] = {}
        data = b""
        while True:
            kind, flags, found, payload = await self.next_of(HEADERS, DATA, GOAWAY)
            assert kind != GOAWAY, payload
            if kind == HEADERS:
                decoded = dict(self.decoder.decode(payload))
            if found == number:
                if kind == HEADERS:
                    fields.update(decoded)
                else:
                    data += payload
                if flags & END_STREAM:
                    return fields, data

    async def end(self) -> bytes:
        """Whatever comes until the connection ends."""
        async with asyncio.timeout(PATIENCE):
            try:
                return await self.reader.read(-1)
            except ConnectionResetError:
                return b""


@asynccontextmanager
async def peer_of(broker: Broker, **own: int) -> AsyncIterator[Peer]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(broker))
    writer.write(PREFACE + settings_frame({INITIAL_WINDOW_SIZE: own.get("window", 65_535)}))
    try:
        yield Peer(reader, writer)
    finally:
        writer.close()


def connections(broker: Broker) -> http2.Http2Connections:
    found: http2.Http2Connections = broker.host.active["grpc"].instance._port.server.connections
    return found


def code_of(data: bytes, kind: Any = proto.QueryRouteResponse) -> int:
    _, size = message_prefix(data)
    assert len(data) == 5 + size
    return int(kind.FromString(data[5:]).status.code)


# --- frames of every shape -----------------------------------------------------------------


async def test_a_call_that_comes_byte_by_byte_is_served() -> None:
    async with grpc_broker() as broker, peer_of(broker) as peer:
        for byte in peer.call(1):
            peer.write(bytes([byte]))
            await peer.writer.drain()
            await asyncio.sleep(0)
        fields, data = await peer.answer(1)

    assert (fields[":status"], fields["content-type"], fields["grpc-status"]) == ("200", "application/grpc", "0")
    assert code_of(data) == Code.OK


async def test_padding_priorities_and_continued_headers_are_read() -> None:
    async with grpc_broker() as broker, peer_of(broker) as peer:
        block = peer.fields()
        message = message_frame(ROUTE)
        peer.write(
            frame(HEADERS, PADDED | WITH_PRIORITY, 1, b"\x03" + b"\0\0\0\0\x10" + block[:5] + b"\0" * 3),
            frame(CONTINUATION, 0, 1, block[5:9]),
            frame(CONTINUATION, END_HEADERS, 1, block[9:]),
            frame(PRIORITY, 0, 1, b"\0\0\0\0\x10"),
            frame(0x77, 0, 1, b"nobody knows this kind"),
            frame(DATA, PADDED, 1, b"\x05" + message[:3] + b"\0" * 5),
            frame(DATA, 0, 1),
            frame(DATA, 0, 1, message[3:]),
            frame(DATA, END_STREAM, 1),
        )
        _, data = await peer.answer(1)

    assert code_of(data) == Code.OK


async def test_calls_on_one_connection_are_answered_each() -> None:
    numbers = range(1, 401, 2)
    async with grpc_broker() as broker, peer_of(broker) as peer:
        peer.write(window_frame(0, 10_000_000), *(peer.call(number) for number in numbers))
        ended = set()
        while len(ended) < len(numbers):
            kind, flags, number, _ = await peer.next()
            if kind == HEADERS and flags & END_STREAM:
                ended.add(number)
        await until(lambda: connections(broker).calls == 0)

    assert ended == set(numbers)


async def test_a_ping_is_answered_and_a_pong_is_not() -> None:
    async with grpc_broker() as broker, peer_of(broker) as peer:
        peer.write(frame(PING, ACK, 0, b"a pong.."), frame(PING, 0, 0, b"a ping.."))

        assert await peer.next_of(PING) == (PING, ACK, 0, b"a ping..")


@pytest.mark.parametrize(
    ("changed", "status"),
    [
        ({":path": f"/{SERVICE}/PullMessage"}, GrpcStatus.UNIMPLEMENTED),
        ({":path": "/grpc.health.v1.Health/Check"}, GrpcStatus.UNIMPLEMENTED),
        ({"x-mq-client-id": "x" * 30_000}, GrpcStatus.RESOURCE_EXHAUSTED),
    ],
)
async def test_calls_that_are_not_served_are_told_so(changed: dict[str, str], status: GrpcStatus) -> None:
    async with grpc_broker() as broker, peer_of(broker) as peer:
        block = peer.fields(**changed)
        peer.write(frame(HEADERS, 0, 1, block[:16_000]), frame(CONTINUATION, END_HEADERS, 1, block[16_000:] or b"\x83"))
        peer.write(frame(DATA, END_STREAM, 1, message_frame(ROUTE)))
        fields, data = await peer.answer(1)
        peer.write(peer.call(3))
        _, served = await peer.answer(3)

    assert (fields[":status"], fields["grpc-status"], data) == ("200", str(status.value), b"")
    assert code_of(served) == Code.OK


async def test_a_browser_is_told_that_this_is_gRPC() -> None:
    async with grpc_broker() as broker, peer_of(broker) as peer:
        peer.write(peer.headers(1, content_type="text/html"))
        fields, _ = await peer.answer(1)

    assert fields == {":status": "415"}


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"", GrpcStatus.INTERNAL),
        (message_frame(ROUTE) * 2, GrpcStatus.INTERNAL),
        (message_frame(ROUTE)[:-1], GrpcStatus.INTERNAL),
        (b"\x01" + message_frame(ROUTE)[1:], GrpcStatus.UNIMPLEMENTED),
        (b"\x00\x7f\xff\xff\xff", GrpcStatus.RESOURCE_EXHAUSTED),
        (message_frame(b"\xff" * 100), GrpcStatus.INTERNAL),
    ],
)
async def test_what_is_not_one_message_ends_its_call_alone(data: bytes, status: GrpcStatus) -> None:
    async with grpc_broker() as broker, peer_of(broker) as peer:
        peer.write(peer.headers(1), frame(DATA, END_STREAM, 1, data))
        fields, _ = await peer.answer(1)
        peer.write(peer.call(3))
        _, served = await peer.answer(3)

    assert fields["grpc-status"] == str(status.value)
    assert code_of(served) == Code.OK


def test_the_time_that_a_client_waits_is_read() -> None:
    times = [timeout_seconds(text) for text in ("2H", "3M", "10S", "2999m", "5u", "7n")]

    assert times == pytest.approx([7200.0, 180.0, 10.0, 2.999, 5e-6, 7e-9])
    assert {timeout_seconds(text) for text in ("", "S", "1x", "123456789S", "-1S")} == {None}


# --- windows -------------------------------------------------------------------------------


async def test_an_answer_waits_for_the_window_of_its_call_and_of_the_connection() -> None:
    body = b"x" * 100_000
    async with grpc_broker() as broker, client_of(broker) as other, peer_of(broker, window=10) as peer:
        await other.send(body)
        wanted = proto.ReceiveMessageRequest(batch_size=1)
        wanted.group.name, wanted.message_queue.topic.name = "raw", TOPIC
        wanted.filter_expression.expression = "*"
        wanted.invisible_duration.FromSeconds(30)
        wanted.long_polling_timeout.FromSeconds(10)
        peer.write(peer.call(1, "ReceiveMessage", wanted.SerializeToString()))
        _, _, _, first = await peer.next_of(DATA)
        peer.write(window_frame(1, 80_000))
        data = first
        while len(data) < 65_535:
            data += (await peer.next_of(DATA))[3]
        of_connection = len(data)
        peer.write(window_frame(0, 1_000_000), settings_frame({INITIAL_WINDOW_SIZE: 200_000}))
        fields, rest = await peer.answer(1)

    assert (len(first), of_connection, fields["grpc-status"]) == (10, 65_535, "0")
    assert body in data + rest


class CountedStreams(dict[int, Stream]):
    """Counts how often somebody goes through all of them."""

    times = 0

    def values(self) -> Any:
        self.times += 1
        return super().values()


async def test_a_frame_of_thousands_of_settings_goes_through_the_calls_once() -> None:
    async with grpc_broker() as broker, peer_of(broker) as peer:
        peer.write(peer.call(1))
        await peer.answer(1)
        (connection,) = connections(broker).open
        streams = connection._streams = CountedStreams(connection._streams)
        values = b"".join(settings_frame({INITIAL_WINDOW_SIZE: 1000 + number})[9:] for number in range(2_700))
        peer.write(peer.headers(3), frame(SETTINGS, 0, 0, values), frame(PING, 0, 0, bytes(8)))
        await peer.next_of(PING)

        assert (streams.times, streams[3].window) == (1, 3_699)


async def test_long_messages_share_the_room_of_their_connection() -> None:
    async with grpc_broker() as broker, client_of(broker) as client:
        assert (await client.send(b"small")).status.code == Code.OK
        bodies = [bytes([number]) * 3_000_000 for number in range(1, 13)]
        sent = await asyncio.gather(*(client.send(body) for body in bodies))

        assert {one.status.code for one in sent} == {Code.OK}
        assert connections(broker).unfinished_bytes == 0


async def test_who_sends_more_than_allowed_loses_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http2, "ROOM", 1000)  # enough for one message at a time, however long it is
    message = message_frame(b"\x0a" + b"x" * 300_000)
    parts = [message[at : at + 16_000] for at in range(0, len(message), 16_000)]
    async with grpc_broker() as broker, peer_of(broker) as peer:
        peer.write(peer.headers(1, "SendMessage"), frame(DATA, 0, 1, parts[0]))
        peer.write(peer.headers(3, "SendMessage"), *(frame(DATA, 0, 3, part) for part in parts))
        found = await peer.next_of(RST_STREAM)
        peer.write(peer.call(5))
        _, served = await peer.answer(5)

    assert found[2:] == (3, Http2Error.FLOW_CONTROL_ERROR.to_bytes(4, "big"))
    assert code_of(served) == Code.OK


async def test_of_too_many_unfinished_messages_the_oldest_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http2, "UNFINISHED", 100_000)
    part = message_frame(b"x" * 60_000)[:16_000]
    async with grpc_broker() as broker, peer_of(broker) as peer:
        for number in range(1, 17, 2):
            peer.write(peer.headers(number, "SendMessage"), frame(DATA, 0, number, part))
        oldest = [(await peer.next_of(HEADERS))[2], (await peer.next_of(HEADERS))[2]]
        await until(lambda: connections(broker).calls == 6)
        kept = connections(broker).unfinished_bytes
        peer.writer.close()
        await until(lambda: connections(broker).unfinished_bytes == 0)

    assert (oldest, kept) == ([1, 3], 6 * 16_000)


# --- peers that break the rules ------------------------------------------------------------

BROKEN = {
    "a frame that is too long": (b"\x00\x40\x01\x00\x00\x00\x00\x00\x01", Http2Error.FRAME_SIZE_ERROR),
    "data of no stream": (frame(DATA, 0, 1, b"x"), Http2Error.PROTOCOL_ERROR),
    "data of stream 0": (frame(DATA, 0, 0, b"x"), Http2Error.PROTOCOL_ERROR),
    "a stream of the server's": (frame(HEADERS, END_HEADERS, 2, b"\x82"), Http2Error.PROTOCOL_ERROR),
    "a promise": (frame(PUSH_PROMISE, END_HEADERS, 1, b"\0\0\0\2"), Http2Error.PROTOCOL_ERROR),
    "headers that cannot be read": (frame(HEADERS, END_HEADERS, 1, b"\xff\xff\xff"), Http2Error.COMPRESSION_ERROR),
    "headers in the middle of headers": (frame(HEADERS, 0, 1, b"\x82") * 2, Http2Error.PROTOCOL_ERROR),
    "a continuation of nothing": (frame(CONTINUATION, 0, 1, b"\x82"), Http2Error.PROTOCOL_ERROR),
    "headers without an end": (
        frame(HEADERS, 0, 1, b"\x82") + frame(CONTINUATION, 0, 1, b"\x82" * 16_000) * 5, Http2Error.ENHANCE_YOUR_CALM,
    ),
    "empty continuations": (
        frame(HEADERS, 0, 1, b"\x82") + frame(CONTINUATION, 0, 1) * 9, Http2Error.ENHANCE_YOUR_CALM,
    ),
    "nothing but padding": (frame(HEADERS, PADDED | END_HEADERS, 1, b"\x05abc"), Http2Error.PROTOCOL_ERROR),
    "no length of padding": (frame(HEADERS, PADDED | END_HEADERS, 1), Http2Error.FRAME_SIZE_ERROR),
    "a short ping": (frame(PING, 0, 0, b"x"), Http2Error.FRAME_SIZE_ERROR),
    "half a setting": (frame(SETTINGS, 0, 0, b"abc"), Http2Error.FRAME_SIZE_ERROR),
    "a window without end": (settings_frame({INITIAL_WINDOW_SIZE: 2**31}), Http2Error.FLOW_CONTROL_ERROR),
    "a window that overflows": (window_frame(0, 2**31 - 1), Http2Error.FLOW_CONTROL_ERROR),
    "a window of 0 more": (window_frame(0, 0), Http2Error.FLOW_CONTROL_ERROR),
    "a short window": (frame(WINDOW_UPDATE, 0, 0, b"x"), Http2Error.FRAME_SIZE_ERROR),
    "a reset of no stream": (reset_frame(1, Http2Error.NO_ERROR), Http2Error.PROTOCOL_ERROR),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
async def test_a_peer_that_breaks_the_rules_is_told_and_left(what: str) -> None:
    data, error = BROKEN[what]
    async with grpc_broker() as broker, peer_of(broker) as peer:
        peer.write(data)
        _, _, _, payload = await peer.next_of(GOAWAY)
        rest = await peer.end()

        assert (payload[4:8], rest) == (error.to_bytes(4, "big"), b"")
        await until(lambda: not connections(broker).open and not connections(broker).calls)


FRAMES = st.builds(
    frame, st.integers(0, 12), st.integers(0, 255), st.sampled_from([0, 1, 2, 3, 5, 2**31 - 1]), st.binary(max_size=60)
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=8)
@given(st.lists(st.lists(FRAMES, max_size=20), max_size=20))
def test_frames_at_random_disturb_nobody(caplog: pytest.LogCaptureFixture, many: list[list[bytes]]) -> None:
    async def run() -> None:
        async with grpc_broker() as broker, client_of(broker) as control:
            for frames in many:
                async with peer_of(broker) as peer:
                    peer.write(peer.headers(1), *frames)
                    await peer.writer.drain()
            assert (await control.call("QueryRoute", topic=named(TOPIC))).status.code == Code.OK
            await until(lambda: connections(broker).calls == 0 and len(connections(broker).open) == 1)

    asyncio.run(run())
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_calls_that_are_begun_and_reset_leave_nothing() -> None:
    async with grpc_broker() as broker, client_of(broker) as control, peer_of(broker) as peer:
        wanted = proto.ReceiveMessageRequest(batch_size=1)
        for number in range(1, 4001, 2):
            call = peer.call(number, "ReceiveMessage", wanted.SerializeToString())
            peer.write(call, reset_frame(number, Http2Error.NO_ERROR))
        await peer.writer.drain()
        assert (await control.send(b"control")).status.code == Code.OK
        peer.write(peer.call(4001))
        await peer.answer(4001)

        assert connections(broker).calls == 0


async def test_more_calls_than_a_connection_may_have_are_refused() -> None:
    async with grpc_broker() as broker, peer_of(broker) as peer:
        numbers = range(1, 2 * http2.MOST_STREAMS + 3, 2)
        peer.write(*(peer.headers(number) for number in numbers))
        found = await peer.next_of(RST_STREAM)
        peer.write(frame(DATA, END_STREAM, 1, message_frame(ROUTE)))
        _, served = await peer.answer(1)

        assert found[2:] == (numbers[-1], Http2Error.REFUSED_STREAM.to_bytes(4, "big"))
        assert code_of(served) == Code.OK


async def test_more_calls_than_all_may_have_are_refused() -> None:
    async with grpc_broker(plugins__grpc__max_calls=10) as broker, peer_of(broker) as peer, client_of(broker) as other:
        peer.write(*(peer.headers(number) for number in range(1, 21, 2)))
        await until(lambda: connections(broker).calls == 10)
        with pytest.raises(grpc.aio.AioRpcError, match="max_calls") as refused:
            await other.send(b"x")
        peer.writer.close()
        await until(lambda: connections(broker).calls == 0)

        assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await other.send(b"x")).status.code == Code.OK


async def test_a_peer_that_does_not_read_is_not_read() -> None:
    async with grpc_broker() as broker, client_of(broker) as control, peer_of(broker) as peer:
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        pings = frame(PING, 0, 0, b"a ping..") * 10_000

        async def flood() -> None:
            for _ in range(600):
                peer.write(pings)
                async with asyncio.timeout(1):
                    await peer.writer.drain()

        with pytest.raises(TimeoutError):
            await flood()

        assert (await control.send(b"control")).status.code == Code.OK


async def test_a_silent_peer_is_asked_and_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http2, "QUIET_SECONDS", 0.2)
    monkeypatch.setattr(http2, "ANSWER_SECONDS", 0.2)
    async with grpc_broker() as broker, peer_of(broker) as peer:
        kind, flags, _, text = await peer.next_of(PING)
        peer.write(frame(PING, ACK, 0, text))
        again = await peer.next_of(PING)
        rest = await peer.end()

    assert (kind, flags, again[3], rest) == (PING, 0, text, b"")


# --- the end -------------------------------------------------------------------------------


async def test_a_stop_says_goodbye_and_ends_what_would_go_on_for_ever() -> None:
    async with grpc_broker() as broker, client_of(broker) as client, peer_of(broker) as peer:
        async with client.telemetry(producer_settings(TOPIC)) as stream:
            assert (await stream.read()).status.code == Code.OK
            began = asyncio.get_running_loop().time()
            await broker.host.active["grpc"].instance._port.stop()
            took = asyncio.get_running_loop().time() - began
            assert await stream.code() == grpc.StatusCode.UNAVAILABLE
        _, _, _, payload = await peer.next_of(GOAWAY)

    assert payload[4:8] == Http2Error.NO_ERROR.to_bytes(4, "big")
    assert took < http2.ANSWER_SECONDS


async def test_a_call_under_way_is_answered_before_a_stop() -> None:
    async with grpc_broker() as broker, client_of(broker) as client:
        sending = [asyncio.create_task(client.call("SendMessage", messages=[make_message(b"x")])) for _ in range(20)]
        await until(lambda: connections(broker).calls > 0 or all(task.done() for task in sending))
        await broker.host.active["grpc"].instance._port.stop()
        done = await asyncio.gather(*sending, return_exceptions=True)

    for one in done:  # each of them has an answer, or was not begun
        assert isinstance(one, grpc.aio.AioRpcError) or one.status.code == Code.OK
