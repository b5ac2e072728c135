"""Connections over real sockets: requests and answers in both directions, and handlers of every kind."""

from __future__ import annotations

import asyncio
import logging

import pytest

from verniermq.kernel.codes import RequestCode, ResponseCode
from verniermq.kernel.errors import ConnectionLost, NoPermission, RequestRefused, RequestTimeout
from verniermq.kernel.message import pack_host
from verniermq.kernel.remoting import Command, Connection, RemotingLimits, connect

from .conftest import Listen

pytestmark = pytest.mark.anyio

ECHO, LATER, HELD, FAILING, REFUSING, SILENT, FAILING_LATER, REFUSING_LATER = range(1, 9)


def echo(request: Command, connection: Connection) -> Command:
    return request.reply(0, request.ext, request.body)


async def echo_later(request: Command, connection: Connection) -> Command:
    await asyncio.sleep(0)
    return request.reply(0, request.ext, request.body)


def fail(request: Command, connection: Connection) -> Command:
    raise ZeroDivisionError("by \udc80 zero")


def refuse(request: Command, connection: Connection) -> Command:
    raise NoPermission("not you")


async def fail_later(request: Command, connection: Connection) -> Command:
    await asyncio.sleep(0)
    return fail(request, connection)


async def refuse_later(request: Command, connection: Connection) -> Command:
    await asyncio.sleep(0)
    return refuse(request, connection)


async def silent(request: Command, connection: Connection) -> None:
    connection.attributes["heard"] = request.body


HANDLERS = {
    ECHO: echo,
    LATER: echo_later,
    FAILING: fail,
    REFUSING: refuse,
    SILENT: silent,
    FAILING_LATER: fail_later,
    REFUSING_LATER: refuse_later,
}


@pytest.mark.parametrize("code", [ECHO, LATER])
@pytest.mark.parametrize("binary", [True, False])
async def test_a_request_is_answered_in_its_own_form(listening: Listen, code: int, binary: bool) -> None:
    async with listening(HANDLERS) as there:
        connection = await connect(there.address)

        answer = await connection.request(Command.request(code, {"n": "ü"}, b"body", binary=binary))

        assert (answer.code, answer.ext, answer.body, answer.binary) == (0, {"n": "ü"}, b"body", binary)
        connection.close()


async def test_pipelined_requests_are_all_answered(listening: Listen) -> None:
    async with listening(HANDLERS) as there:
        peer = await there.raw_peer()
        requests = [Command(ECHO, opaque=n, body=b"%d" % n, binary=n % 2 == 0) for n in range(500)]

        await peer.send(*requests)
        answers = [await peer.receive() for _ in requests]

        assert [(a.opaque, a.body, a.binary) for a in answers] == [(n, b"%d" % n, n % 2 == 0) for n in range(500)]


async def test_requests_of_many_tasks_get_their_own_answers(listening: Listen) -> None:
    async with listening(HANDLERS) as there:
        connection = await connect(there.address)

        answers = await asyncio.gather(
            *(connection.request(Command.request(LATER if n % 3 else ECHO, body=b"%d" % n)) for n in range(200))
        )

        assert [answer.body for answer in answers] == [b"%d" % n for n in range(200)]
        connection.close()


async def test_one_way_requests_are_never_answered_not_even_with_errors(listening: Listen) -> None:
    async with listening(HANDLERS) as there:
        peer = await there.raw_peer()
        oneway = [Command(code, opaque=code, flag=2) for code in (*HANDLERS, 9999)]

        await peer.send(*oneway, *oneway)
        await peer.send(Command(LATER, opaque=77))

        assert (await peer.receive()).opaque == 77


async def test_both_ends_may_ask_on_one_connection_with_equal_opaques(listening: Listen) -> None:
    async def ask_back(request: Command, connection: Connection) -> Command:
        answer = await connection.request(Command.request(ECHO, body=b"are you there?"))
        return request.reply(0, body=answer.body + b" yes")

    async with listening({LATER: ask_back}) as there:
        connection = await connect(there.address, {ECHO: echo})

        answers = await asyncio.gather(*(connection.request(Command.request(LATER)) for _ in range(50)))

        assert {answer.body for answer in answers} == {b"are you there? yes"}
        connection.close()


async def test_our_requests_count_from_1_and_take_the_form_of_the_last_request(listening: Listen) -> None:
    def announce(request: Command, connection: Connection) -> Command:
        connection.oneway(Command.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "g"}))
        return request.reply()

    async with listening({ECHO: announce}) as there:
        peer = await there.raw_peer()

        await peer.send(Command(ECHO, opaque=9, binary=True), Command(ECHO, opaque=10))
        received = [await peer.receive() for _ in range(4)]

        announced = [command for command in received if not command.is_response]
        assert [(c.opaque, c.binary, c.is_oneway) for c in announced] == [(1, True, True), (2, False, True)]


async def test_a_held_request_is_answered_when_its_time_comes(listening: Listen) -> None:
    held: list[tuple[Command, Connection]] = []

    def hold(request: Command, connection: Connection) -> None:
        held.append((request, connection))

    async with listening({HELD: hold, ECHO: echo}) as there:
        peer = await there.raw_peer()
        await peer.send(Command(HELD, opaque=1), Command(HELD, opaque=2, flag=2), Command(ECHO, opaque=3))
        assert (await peer.receive()).opaque == 3

        for request, connection in held:
            connection.answer(request, request.reply(ResponseCode.PULL_NOT_FOUND))
        answer = await peer.receive()

        assert (answer.opaque, answer.code) == (1, ResponseCode.PULL_NOT_FOUND)


async def test_a_code_that_nobody_serves_is_answered_with_its_name(listening: Listen) -> None:
    async with listening({}) as there:
        connection = await connect(there.address)

        pop = await connection.request(Command.request(RequestCode.POP_MESSAGE))
        unknown = await connection.request(Command.request(54321))

        assert pop.code == unknown.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert "POP_MESSAGE (200050)" in pop.remark
        assert "54321" in unknown.remark
        connection.close()


@pytest.mark.parametrize("code", [REFUSING, REFUSING_LATER])
async def test_a_refusal_carries_its_code_and_text(listening: Listen, code: int) -> None:
    async with listening(HANDLERS) as there:
        connection = await connect(there.address)

        answer = await connection.request(Command.request(code))

        assert (answer.code, answer.remark) == (ResponseCode.NO_PERMISSION, "not you")
        connection.close()


@pytest.mark.parametrize("code", [FAILING, FAILING_LATER])
async def test_a_handler_that_raises_is_logged_and_the_connection_goes_on(
    listening: Listen, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with listening(HANDLERS) as there:
        connection = await connect(there.address)

        answer = await connection.request(Command.request(code))
        after = await connection.request(Command.request(ECHO, body=b"still here"))

        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "ZeroDivisionError: by ? zero")
        assert after.body == b"still here"
        (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert record.exc_info is not None
        connection.close()


async def test_an_answer_that_cannot_be_sent_becomes_an_error(listening: Listen) -> None:
    def too_large(request: Command, connection: Connection) -> Command:
        return request.reply(0, body=bytes(2000))

    def no_utf8(request: Command, connection: Connection) -> Command:
        return request.reply(0, {"name": "\udc80"})

    def nonsense(request: Command, connection: Connection) -> str:
        return "no command"

    handlers = {1: too_large, 2: no_utf8, 3: nonsense, ECHO + 10: echo}
    async with listening(handlers, limits=RemotingLimits(max_frame_size=1500)) as there:
        peer = await there.raw_peer()
        await peer.send(*(Command(code, opaque=code, binary=code == 2) for code in (1, 2, 3, 11)))

        answers = {answer.opaque: answer for answer in [await peer.receive() for _ in range(4)]}

        assert [answers[n].code for n in (1, 2, 3, 11)] == [1, 1, 1, 0]
        assert "exceeds max_frame_size of 1500 bytes" in answers[1].remark


async def test_a_request_without_an_answer_times_out_and_a_late_answer_does_no_harm(listening: Listen) -> None:
    held: list[tuple[Command, Connection]] = []
    async with listening({HELD: lambda *it: held.append(it), ECHO: echo}) as there:
        connection = await connect(there.address)

        with pytest.raises(RequestTimeout, match=r"did not answer code 3 within 0.01 s"):
            await connection.request(Command.request(HELD), timeout=0.01)
        for request, other_end in held:
            other_end.answer(request, request.reply())

        assert (await connection.request(Command.request(ECHO))).code == 0
        connection.close()


async def test_whoever_waits_hears_when_the_peer_is_lost(listening: Listen) -> None:
    held: list[Connection] = []

    def hold_then_close(request: Command, connection: Connection) -> None:
        held.append(connection)
        connection.close()

    async with listening({HELD: hold_then_close}) as there:
        closed: list[Connection] = []
        connection = await connect(there.address)
        connection.on_close.append(closed.append)

        with pytest.raises(ConnectionLost, match=f"127.0.0.1:{there.port}"):
            await connection.request(Command.request(HELD))
        with pytest.raises(ConnectionLost):
            await connection.request(Command.request(HELD))
        assert connection.oneway(Command.request(HELD)) is False
        with pytest.raises(ConnectionLost):
            await connection.drain()

        await connection.wait_closed()
        assert closed == [connection]
        held[0].answer(Command(HELD), Command(HELD).reply())


async def test_a_failing_close_callback_does_not_hide_the_others(listening: Listen) -> None:
    async with listening({}) as there:
        closed: list[Connection] = []
        connection = await connect(there.address)
        connection.on_close += [lambda _: 1 / 0, closed.append]  # type: ignore[list-item]

        connection.close()
        await connection.wait_closed()

        assert closed == [connection]


async def test_guards_run_before_each_handler_and_may_refuse_or_wait(listening: Listen) -> None:
    seen: list[str] = []
    go_on = asyncio.Event()

    def note(request: Command, connection: Connection) -> None:
        seen.append(f"first {request.opaque}")

    def strict(request: Command, connection: Connection) -> object:
        if request.opaque == 1:
            raise RequestRefused("too fast", ResponseCode.FLOW_CONTROL)
        return go_on.wait() if request.opaque == 2 else None

    async def last(request: Command) -> None:
        seen.append(f"last {request.opaque}")

    async with listening({ECHO: echo}, guards=(note, strict, lambda request, _: last(request))) as there:
        peer = await there.raw_peer()
        await peer.send(*(Command(ECHO, opaque=n) for n in (1, 2, 3)))

        refused, passed = await peer.receive(), await peer.receive()
        go_on.set()
        waited = await peer.receive()

        assert (refused.opaque, refused.code, refused.remark) == (1, ResponseCode.FLOW_CONTROL, "too fast")
        assert (passed.opaque, passed.code, waited.opaque, waited.code) == (3, 0, 2, 0)
        assert seen == ["first 1", "first 2", "first 3", "last 3", "last 2"]


async def test_more_work_than_allowed_is_answered_with_busy(listening: Listen) -> None:
    go_on = asyncio.Event()

    async def wait(request: Command, connection: Connection) -> Command:
        await go_on.wait()
        return request.reply()

    def slow(request: Command, connection: Connection) -> object:
        return go_on.wait() if request.code == ECHO else None

    limits = RemotingLimits(max_inflight_per_connection=2)
    async with listening({LATER: wait, ECHO: echo}, limits=limits, guards=(slow,)) as there:
        peer, other = await there.raw_peer(), await there.raw_peer()
        await peer.send(*(Command(LATER, opaque=n) for n in (1, 2, 3)), Command(ECHO, opaque=4))
        busy = [await peer.receive(), await peer.receive()]
        await other.send(Command(LATER, opaque=5))

        go_on.set()
        done = {(await peer.receive()).opaque, (await peer.receive()).opaque}

        assert [(answer.opaque, answer.code) for answer in busy] == [(3, 2), (4, 2)]
        assert done == {1, 2}
        assert (await other.receive()).code == 0


async def test_a_connection_knows_its_peer(listening: Listen) -> None:
    known: list[Connection] = []

    def remember(request: Command, connection: Connection) -> Command:
        known.append(connection)
        return request.reply()

    async with listening({ECHO: remember}) as there:
        peer = await there.raw_peer()
        await peer.send(Command(ECHO, language="GO", version=317, binary=True))
        await peer.receive()

        host, port = peer.writer.get_extra_info("sockname")
        (connection,) = known
        assert connection.peer_address == f"{host}:{port}"
        assert connection.packed_host == pack_host(host, port)
        assert (connection.language, connection.version, connection.binary) == ("GO", 317, True)


async def test_opaques_start_over_before_they_leave_32_bits(listening: Listen) -> None:
    async with listening({ECHO: echo}) as there:
        connection = await connect(there.address)
        connection._responses._last_opaque = 2**31 - 2

        answers = [await connection.request(Command.request(ECHO, binary=True)) for _ in range(2)]

        assert [answer.opaque for answer in answers] == [2**31 - 1, 1]
        connection.close()
