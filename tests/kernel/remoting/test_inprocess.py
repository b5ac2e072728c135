"""Connections without a socket: served like any other, flow control included."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from verniermq.kernel import Command, Connection, ConnectionLost, NoPermission, RemotingServer, RequestCode
from verniermq.kernel.remoting.limits import RemotingLimits
from verniermq.kernel.requests import Access, Caller, topic_access
from verniermq.kernel.requests.access import PUB
from verniermq.testing import running_broker

ECHO = 9100
PEER = ("10.1.2.3", 4567)


def echo(request: Command, connection: Connection) -> Command:
    return request.reply(ext={"peer": connection.peer_address}, body=request.body)


class Trusted:
    def caller(self, request: Command) -> None:
        return None

    def wanted(self, access: Access) -> Access:
        return access


async def test_a_request_without_a_socket_is_served_as_if_it_came_from_the_peer() -> None:
    async with RemotingServer({ECHO: echo}) as server:
        connection = server.connect_in_process(PEER, Trusted())

        answer = await connection.request(Command.request(ECHO, body=b"hello"))

        assert (answer.ext["peer"], answer.body) == ("10.1.2.3:4567", b"hello")
        assert len(server.connections) == 1


async def test_either_end_may_ask_the_other() -> None:
    async with RemotingServer({ECHO: echo}) as server:
        connection = server.connect_in_process(PEER, Trusted(), {ECHO: echo})
        (served,) = server.connections

        answer = await served.request(Command.request(ECHO, body=b"and you?"))

        assert answer.body == b"and you?"
        assert not connection.closed


async def test_many_large_requests_at_a_time_wait_for_each_other_and_all_are_answered() -> None:
    limits = RemotingLimits(write_buffer_high=1000)
    async with RemotingServer({ECHO: echo}, limits=limits) as server:
        connection = server.connect_in_process(PEER, Trusted())
        answered: list[int] = []

        async def ask(number: int) -> None:
            answer = await connection.request(Command.request(ECHO, body=bytes(500 + number)), 30)
            answered.append(len(answer.body) - 500)

        async with anyio.create_task_group() as tasks:
            for number in range(200):
                tasks.start_soon(ask, number)

        assert sorted(answered) == list(range(200))


@pytest.mark.parametrize("near", [True, False])
async def test_closing_one_end_closes_the_other_and_tells_whoever_waits(near: bool) -> None:
    async with RemotingServer({ECHO: lambda request, connection: None}) as server:
        connection = server.connect_in_process(PEER, Trusted())
        (served,) = server.connections

        async def close_soon() -> None:
            await anyio.lowlevel.checkpoint()
            (connection if near else served).close()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(close_soon)
            with pytest.raises(ConnectionLost):
                await connection.request(Command.request(ECHO), 30)
        await connection.wait_closed()
        await served.wait_closed()

        assert not server.connections


async def test_a_server_that_is_full_or_stops_takes_none() -> None:
    async with RemotingServer({ECHO: echo}, limits=RemotingLimits(max_connections=1)) as server:
        first = server.connect_in_process(PEER, Trusted())
        second = server.connect_in_process(PEER, Trusted())
        with pytest.raises(ConnectionLost):
            await second.request(Command.request(ECHO), 30)
        await server.stop()
        assert first.closed


async def test_the_identity_of_the_connection_says_who_asks_and_what_an_access_means() -> None:
    asked: list[tuple[str, list[Access]]] = []

    class Stranger(Trusted):
        def caller(self, request: Command) -> Caller:  # type: ignore[override]
            return Caller(PEER[0], "a call", "stranger", lambda secret: secret == b"opens all doors")

        def wanted(self, access: Access) -> Access:
            return topic_access(f"of-{access.name}", PUB)

    def before_access(caller: Caller, wanted: list[Access]) -> None:
        asked.append((caller.access_key, list(wanted)))
        raise NoPermission("not today")

    async with running_broker() as broker:
        broker.access._calls = [before_access]
        broker.host.guards.append(broker.access)
        context = broker.host.active["namesrv"].instance.broker
        request = Command.request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "g"})

        refused = await context.connect_in_process(PEER, Stranger()).request(request, 30)
        await context.connect_in_process(PEER, Trusted()).request(request, 30)

        assert refused.remark == "not today"
        assert asked == [("stranger", [topic_access("of-g", PUB)])]
