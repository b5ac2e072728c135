"""A peer that reads slowly fills its own buffers, and waits; nobody else does."""

from __future__ import annotations

import asyncio
import logging

import pytest

from verniermq.kernel.remoting import Command, Connection, RemotingLimits, connect

from .conftest import Listen

pytestmark = pytest.mark.anyio

LARGE, SMALL, HELD = 1, 2, 3
BODY = bytes(200_000)
LIMITS = RemotingLimits(write_buffer_high=1_000_000, write_buffer_max=8_000_000)


async def test_a_slow_reader_is_not_served_until_it_reads_and_others_are(listening: Listen) -> None:
    served = 0

    def large(request: Command, connection: Connection) -> Command:
        nonlocal served
        served += 1
        return request.reply(0, body=[memoryview(BODY)])

    async with listening({LARGE: large, SMALL: lambda r, _: r.reply()}, limits=LIMITS) as there:
        slow, quick = await there.raw_peer(), await there.raw_peer()
        # 2,000 answers of 200 kB: far more than the sockets' and our own buffers hold together.
        await slow.send(*(Command(LARGE, opaque=n) for n in range(2000)))
        for n in range(100):
            await quick.send(Command(SMALL, opaque=n))
            assert (await quick.receive()).opaque == n
        served_unread = served

        answers = [await slow.receive() for _ in range(2000)]

        assert served_unread < 500
        assert [answer.opaque for answer in answers] == list(range(2000))
        assert all(len(answer.body) == len(BODY) for answer in answers)


async def test_a_peer_that_never_reads_is_closed_when_its_buffer_is_full(
    listening: Listen, caplog: pytest.LogCaptureFixture
) -> None:
    held: list[tuple[Command, Connection]] = []
    async with listening({HELD: lambda *it: held.append(it), SMALL: lambda r, _: r.reply()}, limits=LIMITS) as there:
        peer, other = await there.raw_peer(), await there.raw_peer()
        await peer.send(*(Command(HELD, opaque=n) for n in range(400)), Command(SMALL))
        await peer.receive()

        for request, connection in held:
            connection.answer(request, request.reply(0, body=BODY))
            await asyncio.sleep(0)
        await held[0][1].wait_closed()

        warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
        assert ["its peer does not read" in record.getMessage() for record in warnings] == [True]
        await other.send(Command(SMALL))
        assert (await other.receive()).code == 0


async def test_two_ends_that_flood_each_other_do_not_block(listening: Listen) -> None:
    limits = RemotingLimits(write_buffer_high=100_000)
    async with listening({LARGE: lambda r, _: r.reply(0, body=r.body)}, limits=limits) as there:
        connection = await connect(there.address, limits=limits)

        answers = await asyncio.gather(
            *(connection.request(Command.request(LARGE, body=BODY), timeout=60) for _ in range(200))
        )

        assert len(answers) == 200
        connection.close()


async def test_whoever_sends_much_one_way_can_wait_for_room(listening: Listen) -> None:
    received = 0
    done = asyncio.Event()

    def count(request: Command, connection: Connection) -> None:
        nonlocal received
        received += 1
        if received == 300:
            done.set()

    async with listening({LARGE: count}) as there:
        connection = await connect(there.address, limits=LIMITS)
        for _ in range(300):
            assert connection.oneway(Command.request(LARGE, body=BODY))
            await connection.drain()

        await done.wait()

        assert received == 300
        connection.close()
