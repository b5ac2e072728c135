"""The quick way of plain sends: its frames, and how their answers are told from everything else on the connection."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verniermq.client import Admin, Message, Producer, SendResult, SendStatus
from verniermq.client.encoder import MessageEncoder
from verniermq.client.errors import BadAnswer, SendFailed
from verniermq.client.pipeline import SMALL, RequestPipeline
from verniermq.kernel import (
    Command,
    Connection,
    MessageQueue,
    RemotingError,
    RemotingServer,
    RequestTimeout,
    ResponseCode,
    UnexpectedAnswer,
)
from verniermq.kernel.remoting import FrameDecoder, connect
from verniermq.testing import running_broker

pytestmark = pytest.mark.anyio

printable = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1, max_size=20)


# --- frames ----------------------------------------------------------------------------------


@given(
    body=st.binary(min_size=1, max_size=300),
    tags=st.none() | printable,
    keys=st.lists(printable, max_size=3),
    flag=st.integers(-(2**31), 2**31 - 1),
    delay_level=st.integers(0, 18),
    broker=printable,
    opaque=st.integers(1, 2**31 - 1),
)
def test_a_frame_from_a_template_is_the_one_that_the_general_way_writes(
    body: bytes, tags: str | None, keys: list[str], flag: int, delay_level: int, broker: str, opaque: int
) -> None:
    preparer = MessageEncoder("group%s", namespace="space")
    plain = preparer.plain(Message("topic", body, tags=tags, keys=keys, flag=flag, delay_level=delay_level))
    assert plain is not None
    queue = MessageQueue(plain.topic, broker, 3)

    frame = preparer.template(queue).frame(plain.born_ms, plain.flag, plain.properties, opaque, plain.body)

    general = preparer.whole(plain).command(queue)
    general.opaque = opaque
    assert frame == general.encode()
    (decoded,) = FrameDecoder().feed(frame)
    assert decoded.ext == {**general.ext}
    assert decoded.body == body


@pytest.mark.parametrize(
    "message",
    [Message("t", b"x", properties={"a": "b"}), Message("t", b"x" * 5000)],
    ids=["with properties", "to be compressed"],
)
def test_a_message_that_is_not_plain_takes_the_general_way(message: Message) -> None:
    assert MessageEncoder("senders").plain(message) is None


# --- answers ---------------------------------------------------------------------------------


@attrs.define(eq=False)
class Waiting:
    """Keeps what it hears."""

    heard: list[Any]
    patience: float = 30.0
    deadline: float = float("inf")
    request: str = "SEND_MESSAGE_V2 (310)"

    def answered(self, header: dict[str, Any]) -> None:
        self.heard.append(header["opaque"])

    def failed(self, error: RemotingError) -> None:
        self.heard.append(type(error))


def answer(opaque: int, body: bytes = b"") -> bytes:
    return Command(0, opaque, 1, {"queueId": "0"}, body=body).encode()


@given(
    sizes=st.lists(st.sampled_from([0, 0, 0, 10, SMALL, 3 * SMALL]), min_size=1, max_size=12),
    quick=st.lists(st.booleans(), min_size=12, max_size=12),
    cuts=st.lists(st.integers(0, 60_000), max_size=12),
)
def test_however_the_bytes_are_cut_each_answer_reaches_whoever_waits_for_it(
    sizes: list[int], quick: list[bool], cuts: list[int]
) -> None:
    async def run() -> None:
        connection = Connection()
        requests = RequestPipeline(connection)
        heard: list[Any] = []
        frames = b""
        expected_quick, general = [], {}
        for number, size in enumerate(sizes):
            if quick[number] and not size:
                opaque = requests.next_opaque()
                requests._awaited[opaque] = Waiting(heard)
                expected_quick.append(opaque)
                frames += answer(opaque)
            else:
                future: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
                connection._responses._futures[number + 1] = future
                general[future] = b"x" * size
                frames += answer(number + 1, b"x" * size)

        ends = sorted({min(cut, len(frames)) for cut in cuts} | {len(frames)})
        start = 0
        for end in ends:
            if end > start:
                connection.data_received(frames[start:end])
                start = end

        assert heard == expected_quick
        assert [future.result().body for future in general] == list(general.values())

    asyncio.run(run())


async def test_a_request_of_the_peer_with_an_awaited_number_is_no_answer() -> None:
    served: list[int] = []
    connection = Connection({40: lambda request, _: served.append(request.opaque)})
    requests = RequestPipeline(connection)
    heard: list[Any] = []
    opaque = requests.next_opaque()
    requests._awaited[opaque] = Waiting(heard)

    connection.data_received(Command(40, opaque, 0).encode())

    assert (served, heard) == ([opaque], [])


@asynccontextmanager
async def peer(handler: Any) -> AsyncIterator[tuple[RequestPipeline, RemotingServer]]:
    async with RemotingServer({310: handler}) as server:
        port = await server.listen("127.0.0.1", 0)
        connection = await connect(f"127.0.0.1:{port}")
        try:
            yield RequestPipeline(connection), server
        finally:
            connection.close()
            await connection.wait_closed()


def ask(requests: RequestPipeline, waiting: Waiting) -> None:
    opaque = requests.next_opaque()
    requests.begin(opaque, Command(310, opaque).encode(), waiting)


async def test_a_missing_answer_is_given_up_at_its_own_time() -> None:
    loop = asyncio.get_running_loop()
    async with peer(lambda request, connection: None) as (connection, _):
        heard: list[Any] = []
        now = loop.time()
        ask(connection, Waiting(heard, 60.0, now + 60))
        ask(connection, Waiting(heard, 0.1, now + 0.1))
        while not heard:  # noqa: ASYNC110 - the connection tells only those who wait
            await asyncio.sleep(0.01)

        assert heard == [RequestTimeout]


async def test_a_lost_connection_tells_everybody_who_waits() -> None:
    async with peer(lambda request, connection: connection.abort()) as (connection, _):
        heard: list[Any] = []
        ask(connection, Waiting(heard))
        ask(connection, Waiting(heard))
        await connection.connection.wait_closed()

    assert len(heard) == 2


async def test_somebody_who_fails_at_the_answer_disturbs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Waiting):
        def answered(self, header: dict[str, Any]) -> None:
            raise ZeroDivisionError

    async with peer(lambda request, connection: request.reply()) as (connection, _):
        heard: list[Any] = []
        ask(connection, Failing(heard))
        ask(connection, Waiting(heard))
        while not heard:  # noqa: ASYNC110 - the connection tells only those who wait
            await asyncio.sleep(0.01)

    assert [record.levelno for record in caplog.records] == [logging.ERROR]


# --- submit ----------------------------------------------------------------------------------


@asynccontextmanager
async def producer_with(handler: Any, **options: Any) -> AsyncIterator[Producer]:
    """A producer whose broker answers sends with a handler of the test's."""
    async with running_broker() as broker:
        async with Admin(namesrv=broker.name_servers[0]) as admin:
            await admin.create_topic("t", queues=2)
        async with Producer("senders", namesrv=broker.name_servers[0], **options) as producer:
            await producer.send(Message("t", b"first"))
            handlers = dict(broker.server.handlers)
            for connection in broker.server.connections:
                connection.handlers = {**handlers, 310: handler}
            yield producer


async def test_a_refusal_reaches_the_future_and_the_callback() -> None:
    told: list[tuple[SendResult | None, BaseException | None]] = []

    def refuse(request: Command, connection: Connection) -> Command:
        return request.reply(ResponseCode.SYSTEM_BUSY, remark="not now")

    async with producer_with(refuse) as producer:
        future = await producer.submit(Message("t", b"x"), callback=lambda *ended: told.append(ended))
        with pytest.raises(UnexpectedAnswer, match="not now"):
            await future

    assert told == [(None, future.exception())]


async def test_an_answer_without_a_place_is_an_error_and_frees_its_place() -> None:
    async with producer_with(lambda request, connection: request.reply(0, {"queueId": "x"})) as producer:
        future = await producer.submit(Message("t", b"x"))
        with pytest.raises(BadAnswer, match="cannot be read"):
            await future
        await producer.flush()


async def test_a_status_other_than_ok_is_a_result() -> None:
    def late(request: Command, connection: Connection) -> Command:
        return request.reply(
            ResponseCode.FLUSH_DISK_TIMEOUT, {"queueId": "1", "queueOffset": "7", "msgId": "AB"}, remark="slow disk"
        )

    async with producer_with(late) as producer:
        result = await (await producer.submit(Message("t", b"x")))

    assert (result.status, result.queue.queue_id, result.queue_offset) == (SendStatus.FLUSH_DISK_TIMEOUT, 1, 7)


async def test_a_connection_that_is_cut_is_followed_by_another_try() -> None:
    tries: list[str] = []

    def cut(request: Command, connection: Connection) -> None:
        tries.append(request.text("i"))
        connection.abort()

    async with producer_with(cut, send_timeout=10) as producer:
        # The new connection is served by the broker itself.
        result = await (await producer.submit(Message("t", b"x")))

    assert len(tries) == 1
    assert result.message_id in tries[0]


async def test_a_message_that_nobody_answers_fails_within_its_timeout() -> None:
    async with producer_with(lambda request, connection: None) as producer:
        future = await producer.submit(Message("t", b"x"), timeout=0.2)
        with pytest.raises((RequestTimeout, SendFailed)):
            await future
        await producer.flush()


async def test_a_cancelled_future_frees_its_place_when_the_answer_comes() -> None:
    told: list[Any] = []
    async with running_broker() as broker, Producer("p", namesrv=broker.name_servers[0], max_in_flight=1) as producer:
        await producer.send(Message("t", b"first"))
        future = await producer.submit(Message("t", b"x"), callback=lambda *ended: told.append(ended))
        future.cancel()
        await (await producer.submit(Message("t", b"y")))

    assert told == []


async def test_a_callback_that_fails_is_reported_and_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def fail(result: SendResult | None, error: BaseException | None) -> None:
        raise ZeroDivisionError

    async with running_broker() as broker, Producer("senders", namesrv=broker.name_servers[0]) as producer:
        await producer.send(Message("t", b"first"))
        result = await (await producer.submit(Message("t", b"x"), callback=fail))
        await (await producer.submit(Message("t", b"y", properties={"a": "b"}), callback=fail))
        await producer.flush()

    assert result.status is SendStatus.SEND_OK
    assert [record.message for record in caplog.records] == ["callback failed after a send"] * 2
