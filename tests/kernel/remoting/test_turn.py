"""A turn of the loop: everything that came is taken in, whoever else sent something, and whatever happened to him."""

from __future__ import annotations

import asyncio
import logging
import socket

import pytest

from tests.kernel.pulling import until
from tests.work import WorkPerTurn
from verniermq.kernel.remoting import Command, Connection, RemotingLimits
from verniermq.kernel.remoting import server as server_module
from verniermq.kernel.remoting.command import ONEWAY_FLAG
from verniermq.kernel.remoting.connection import REQUESTS_PER_TURN
from verniermq.kernel.remoting.turn import BYTES_PER_TURN, MOST_AT_ONCE, SECONDS_PER_TURN, Turn

from .conftest import Listen

pytestmark = pytest.mark.anyio

NOTE = 1
PEERS = 2 * MOST_AT_ONCE + 3


def send_all(peers: list[socket.socket], frames: list[bytes]) -> None:
    """Without a turn of the loop in between, so that the server meets all of it in one."""
    for peer, frame in zip(peers, frames, strict=True):
        peer.sendall(frame)


def connected(address: str, count: int) -> list[socket.socket]:
    host, _, port = address.rpartition(":")
    return [socket.create_connection((host, int(port))) for _ in range(count)]


def address_of(peer: socket.socket) -> str:
    host, port = peer.getsockname()
    return f"{host}:{port}"


async def test_more_than_a_turn_takes_at_once_is_served_in_the_order_in_which_each_sent_it(listening: Listen) -> None:
    noted: dict[str, list[int]] = {}

    def note(request: Command, connection: Connection) -> Command:
        noted.setdefault(connection.peer_address, []).append(request.opaque)
        return request.reply()

    async with listening({NOTE: note}) as there:
        peers = connected(there.address, PEERS)
        await until(lambda: len(there.server.connections) == PEERS)
        for half in (range(3), range(3, 6)):
            frames = b"".join(Command(NOTE, opaque=number).encode() for number in half)
            send_all(peers, [frames] * PEERS)
            await asyncio.sleep(0)
        await until(lambda: sum(map(len, noted.values())) == 6 * PEERS)

        assert list(noted.values()) == [[0, 1, 2, 3, 4, 5]] * PEERS
        for peer in peers:
            peer.setblocking(False)
            assert len(peer.recv(65536)) == 6 * len(Command(NOTE).reply().encode())
            peer.close()


async def test_what_was_sent_right_before_a_close_is_taken_in(listening: Listen) -> None:
    noted: list[int] = []

    def note(request: Command, connection: Connection) -> None:
        noted.append(request.opaque)

    async with listening({NOTE: note}) as there:
        peers = connected(there.address, 20)
        await until(lambda: len(there.server.connections) == 20)
        send_all(peers, [Command(NOTE, number, ONEWAY_FLAG).encode() for number in range(20)])
        for number, peer in enumerate(peers):
            if number % 2:  # half of them say good-bye, half of them vanish
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes([1, 0, 0, 0, 0, 0, 0, 0]))
            peer.close()
        await until(lambda: not there.server.connections)

    assert set(range(0, 20, 2)) <= set(noted)


async def test_who_sends_and_then_only_listens_gets_his_answer(listening: Listen) -> None:
    async with listening({NOTE: lambda request, connection: request.reply()}) as there:
        host, _, port = there.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(Command(NOTE, opaque=7).encode())
        writer.write_eof()

        assert await reader.read() == Command(NOTE, opaque=7).reply().encode()
        writer.close()


async def test_a_stop_answers_what_was_read_before_it(listening: Listen) -> None:
    noted: list[int] = []

    def note(request: Command, connection: Connection) -> Command:
        noted.append(request.opaque)
        return request.reply()

    async with listening({NOTE: note}) as there:
        host, _, port = there.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        await until(lambda: bool(there.server.connections))
        (connection,) = there.server.connections
        connection.data_received(Command(NOTE, opaque=7).encode())  # read in the same turn in which the stop begins
        await there.server.stop()

        assert noted == [7]
        assert await reader.read() == Command(NOTE, opaque=7).reply().encode()
        writer.close()


async def test_requests_before_bytes_that_are_no_frame_are_answered_however_they_are_cut(listening: Listen) -> None:
    async with listening({NOTE: lambda request, connection: request.reply()}) as there:
        host, _, port = there.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        await until(lambda: bool(there.server.connections))
        (connection,) = there.server.connections
        connection.data_received(Command(NOTE, opaque=1).encode())
        connection.data_received(Command(NOTE, opaque=2).encode() + b"\xff" * 8)

        assert await reader.read() == b"".join(Command(NOTE, opaque=n).reply().encode() for n in (1, 2))
        writer.close()


async def test_a_handler_that_was_cancelled_costs_one_connection_only(listening: Listen) -> None:
    def ask_a_cancelled_future(request: Command, connection: Connection) -> Command:
        if request.body == b"cursed":
            raise asyncio.CancelledError
        return request.reply()

    async with listening({NOTE: ask_a_cancelled_future}) as there:
        host, _, port = there.address.rpartition(":")
        streams = [await asyncio.open_connection(host, int(port)) for _ in range(3)]
        await until(lambda: len(there.server.connections) == 3)
        connections = list(there.server.connections)
        for number, connection in enumerate(connections):
            connection.data_received(Command(NOTE, body=b"cursed" if number == 1 else b"fine").encode())
        await until(lambda: connections[1].closed)
        for connection in there.server.connections:
            connection.data_received(Command(NOTE, body=b"fine").encode())
        await there.server.stop()

        answered = sorted([len(await reader.read()) for reader, _ in streams])
        assert answered == [0, *[2 * len(Command(NOTE).reply().encode())] * 2]
        for _, writer in streams:
            writer.close()


async def test_an_error_that_nobody_thought_of_costs_one_connection_only(
    listening: Listen, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Connection.decode

    def decode(connection: Connection, data: bytes) -> list[Command]:
        if b"cursed" in data:
            raise RuntimeError("a bug of ours")
        return real(connection, data)

    monkeypatch.setattr(Connection, "decode", decode)
    async with listening({NOTE: lambda request, connection: request.reply()}) as there:
        peers = connected(there.address, 5)
        await until(lambda: len(there.server.connections) == 5)
        bodies = [b"fine", b"fine", b"cursed", b"fine", b"fine"]
        send_all(peers, [Command(NOTE, body=body).encode() for body in bodies])

        answers, loop = [], asyncio.get_running_loop()
        for peer in peers:
            peer.setblocking(False)
            try:
                answers.append(bool(await loop.sock_recv(peer, 65536)))
            except ConnectionError:
                answers.append(False)
            peer.close()
        assert answers == [True, True, False, True, True]
        assert [r.levelno for r in caplog.records if "unexpected error" in r.getMessage()] == [logging.ERROR]


@pytest.mark.parametrize("goes", [False, True])
async def test_a_peer_that_sends_thousands_of_requests_at_once_lets_others_have_a_turn(
    listening: Listen, goes: bool
) -> None:
    work = WorkPerTurn()
    noted: list[int] = []

    def note(request: Command, connection: Connection) -> Command:
        work.note()
        noted.append(request.opaque)
        return request.reply()

    async with listening({NOTE: note}) as there:
        (peer,) = connected(there.address, 1)
        peer.setblocking(False)
        frames = b"".join(Command(NOTE, opaque=number).encode() for number in range(2000))
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(peer, frames)
        if goes:
            peer.shutdown(socket.SHUT_WR)
        received = bytearray()
        while len(received) < sum(len(Command(NOTE, opaque=number).reply().encode()) for number in range(2000)):
            chunk = await loop.sock_recv(peer, 65536)
            assert chunk, "it was closed before all was answered"
            received += chunk
        peer.close()

    assert noted == list(range(2000))
    assert work.most <= REQUESTS_PER_TURN


async def test_requests_of_one_peer_that_take_long_let_others_have_a_turn(
    listening: Listen, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, now = WorkPerTurn(), 100.0
    noted: list[int] = []

    def note(request: Command, connection: Connection) -> Command:
        nonlocal now
        work.note()
        now += SECONDS_PER_TURN / 3
        noted.append(request.opaque)
        return request.reply()

    monkeypatch.setattr(server_module, "Turn", lambda loop: Turn(loop, lambda: now))
    async with listening({NOTE: note}) as there:
        (peer,) = connected(there.address, 1)
        peer.sendall(b"".join(Command(NOTE, opaque=number).encode() for number in range(100)))
        await until(lambda: len(noted) == 100)
        peer.close()

    assert noted == list(range(100))
    assert work.most <= 2 * 4  # those of one peer, and the next turn may begin in the same one of the loop


async def test_a_peer_that_sends_thousands_of_requests_and_its_end_in_one_turn_gets_its_answers(
    listening: Listen,
) -> None:
    work = WorkPerTurn()

    def note(request: Command, connection: Connection) -> Command:
        work.note()
        return request.reply()

    async with listening({NOTE: note}) as there:
        host, _, port = there.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        await until(lambda: bool(there.server.connections))
        (connection,) = there.server.connections
        connection.data_received(b"".join(Command(NOTE, opaque=number).encode() for number in range(2000)))
        if not connection.eof_received():  # as a loop may tell it, in the turn in which the last bytes came
            connection.close()

        answers = await reader.read()
        assert answers == b"".join(Command(NOTE, opaque=number).reply().encode() for number in range(2000))
        await until(lambda: not there.server.connections)
        writer.close()

    assert work.most <= 2 * REQUESTS_PER_TURN  # the end itself ends a turn


async def test_peers_that_ask_for_much_at_once_let_others_have_a_turn(listening: Listen) -> None:
    work, peers, asked = WorkPerTurn(), 10, 200
    body, limits = bytes(128 * 1024), RemotingLimits(write_buffer_high=512 * 1024)

    def note(request: Command, connection: Connection) -> Command:
        work.note()
        return request.reply(0, body=body)

    async with listening({NOTE: note}, limits=limits) as there:
        greedy = [await there.raw_peer() for _ in range(peers)]
        frames = b"".join(Command(NOTE, opaque=number).encode() for number in range(asked))
        for peer in greedy:
            peer.writer.write(frames)
        await until(lambda: not any(connection.is_writable for connection in there.server.connections))
        last = await there.raw_peer()
        await last.send(Command(NOTE, opaque=7))
        assert (await last.receive()).opaque == 7

        for peer in greedy:
            assert [(await peer.receive()).opaque for _ in range(asked)] == list(range(asked))

    assert work.total == peers * asked + 1
    # The last one served in a turn may have begun just before enough was answered.
    assert work.most * len(body) <= BYTES_PER_TURN + limits.write_buffer_high + 2 * len(body)


class Works:
    """A handler whose requests take a millisecond each, by a clock of its own."""

    def __init__(self) -> None:
        self.now = 1.0
        self.per_turn = WorkPerTurn()
        self.noted: dict[str, list[int]] = {}
        self.order: list[str] = []

    def clock(self) -> float:
        return self.now

    def note(self, request: Command, connection: Connection) -> Command:
        self.now += 0.001
        self.per_turn.note()
        self.noted.setdefault(connection.peer_address, []).append(request.opaque)
        self.order.append(connection.peer_address)
        return request.reply()


FLOODED = 60
FLOOD = b"".join(Command(NOTE, opaque=number, body=bytes(2_000)).encode() for number in range(FLOODED))
"""More bytes than are served without a look at the clock."""


async def test_many_peers_that_send_much_at_once_let_others_have_a_turn(
    listening: Listen, monkeypatch: pytest.MonkeyPatch
) -> None:
    works = Works()
    monkeypatch.setattr(server_module, "Turn", lambda loop: Turn(loop, works.clock))

    async with listening({NOTE: works.note}) as there:
        peers = connected(there.address, 21)
        await until(lambda: len(there.server.connections) == 21)
        send_all(peers, [FLOOD] * 20 + [Command(NOTE, opaque=7).encode()])
        await until(lambda: sum(map(len, works.noted.values())) == 20 * FLOODED + 1)

        modest = address_of(peers[-1])
        assert works.order.index(modest) < FLOODED * 4, "who sent little does not wait for those who sent much"
        for peer in peers[:-1]:
            assert works.noted[address_of(peer)] == list(range(FLOODED))
        for peer in peers:
            peer.close()
    # What began before ten milliseconds were over, one peer that had been left, and one that waited.
    assert works.per_turn.most <= 10 + 3 * FLOODED


@pytest.mark.parametrize("how", ["end", "stop"])
async def test_what_a_turn_left_is_answered_when_the_peer_or_the_server_ends(
    listening: Listen, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    works = Works()
    monkeypatch.setattr(server_module, "Turn", lambda loop: Turn(loop, works.clock))

    async with listening({NOTE: works.note}) as there:
        host, _, port = there.address.rpartition(":")
        pairs = [await asyncio.open_connection(host, int(port)) for _ in range(10)]
        await until(lambda: len(there.server.connections) == 10)
        connections = list(there.server.connections)
        for connection in connections:
            connection.data_received(FLOOD)
        if how == "end":
            for connection in connections:
                if not connection.eof_received():
                    connection.close()
        else:
            await there.server.stop(5.0)

        for reader, writer in pairs:
            answers = await reader.read()
            assert answers == b"".join(Command(NOTE, opaque=number).reply().encode() for number in range(FLOODED))
            writer.close()


async def test_a_peer_that_is_left_keeps_its_order(listening: Listen) -> None:
    works = Works()
    turn = Turn(asyncio.get_running_loop(), works.clock)
    turns: list[int] = []

    async with listening({NOTE: works.note}) as there:
        host, _, port = there.address.rpartition(":")
        pairs = [await asyncio.open_connection(host, int(port)) for _ in range(4)]
        await until(lambda: len(there.server.connections) == 4)
        connections = list(there.server.connections)
        for connection in connections:
            connection._turn = turn
            connection.data_received(FLOOD)
        turn.end()
        turns.append(sum(map(len, works.noted.values())))
        for connection in connections:
            connection.data_received(Command(NOTE, opaque=FLOODED).encode())
        await until(lambda: sum(map(len, works.noted.values())) == 4 * (FLOODED + 1))

        assert turns[0] < 4 * FLOODED
        assert list(works.noted.values()) == [list(range(FLOODED + 1))] * 4
        for _, writer in pairs:
            writer.close()
