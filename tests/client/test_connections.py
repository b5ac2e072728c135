"""Connections: one per broker, pipelined, signed, inside TLS, opened again after a while."""

# ruff: noqa: SIM117 - a broker and then its clients: two blocks show which is inside which

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from tests.client.place import Place, eventually, numbered, until
from tests.client.proxy import proxy
from verniermq.client import Admin, Credentials, Message, Producer, PushConsumer, ReceivedMessage, SendStatus
from verniermq.client.connection import ConnectionPool
from verniermq.client.errors import ClientError, NameServerUnreachable, NotRunning
from verniermq.client.options import name_servers
from verniermq.kernel import Command, Connection, PeerUnreachable, RemotingServer
from verniermq.testing import running_broker

pytestmark = pytest.mark.anyio

TLS = Path(__file__).parent / "tls"


# uvloop is what programs that hurry run on; asyncio's own loop is what most run on.
@pytest.fixture(params=[True, False], ids=["uvloop", "asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param}


async def test_a_client_works_on_either_event_loop(place: Place) -> None:
    topic = await place.topic("loops")
    seen: list[bytes] = []
    consumer = PushConsumer(place.name("group"), namesrv=place.namesrv, start="first")
    consumer.subscribe(topic)

    @consumer.on_message
    async def take(message: ReceivedMessage) -> None:
        seen.append(message.body)

    async with consumer:
        await place.send(topic, numbered(10))
        await until(lambda: len(seen) == 10)

    assert sorted(seen) == numbered(10)


async def test_all_requests_share_one_connection() -> None:
    async with proxy() as network, running_broker(broker__advertise=network.address) as broker:
        network.target = f"127.0.0.1:{broker.server.addresses[0][1]}"
        async with Producer("senders", namesrv=broker.name_servers[0]) as producer:
            async with anyio.create_task_group() as group:
                for body in numbered(50):
                    group.start_soon(producer.send, Message("t", body))

    assert network.connections == 1


async def test_an_address_that_refuses_is_tried_again_after_a_growing_pause() -> None:
    pool = ConnectionPool({}, connect_timeout=0.5)
    pauses = []
    try:
        for _ in range(3):
            with pytest.raises(PeerUnreachable):
                await pool.open("127.0.0.1:1", 2)
            pauses.append(pool._peers["127.0.0.1:1"].pause)
        with pytest.raises(PeerUnreachable, match="no connection within"):
            await pool.open("127.0.0.1:1", 0.01)
    finally:
        await pool.close()

    assert pauses == [0.1, 0.2, 0.4]


async def test_several_who_wait_for_a_connection_get_the_same_one() -> None:
    opened: list[Connection] = []
    server = RemotingServer({}, on_connect=opened.append)
    port = await server.listen("127.0.0.1", 0)
    pool = ConnectionPool({})
    try:
        got = await asyncio.gather(*[pool.open(f"127.0.0.1:{port}") for _ in range(20)])
    finally:
        await pool.close()
        await server.stop()

    assert len({id(connection) for connection in got}) == 1
    assert len(opened) == 1


async def test_a_client_that_is_closed_while_it_says_hello_leaves_no_connection_behind() -> None:
    greeting = anyio.Event()

    async def greet(address: str, connection: Connection) -> None:
        greeting.set()
        await anyio.sleep_forever()

    server = RemotingServer({})
    port = await server.listen("127.0.0.1", 0)
    pool = ConnectionPool({}, greet=greet)
    try:
        opening = asyncio.create_task(pool.open(f"127.0.0.1:{port}", 30))
        await greeting.wait()
        await pool.close()
        await asyncio.wait([opening])

        assert opening.cancelled()
        await until(lambda: not server.connections)
    finally:
        await server.stop()


PRIVATE = {"tls__mode": "enforcing", "tls__certificate": str(TLS / "certificate.pem"), "tls__key": str(TLS / "key.pem")}


async def test_a_producer_and_a_consumer_work_inside_tls() -> None:
    trusting = ssl.create_default_context(cafile=str(TLS / "certificate.pem"))
    async with running_broker(**PRIVATE) as broker:
        consumer = PushConsumer("readers", namesrv=broker.name_servers[0], tls=trusting, start="first")
        consumer.subscribe("t")
        async with Producer("senders", namesrv=broker.name_servers[0], tls=trusting) as producer:
            await producer.send(Message("t", b"0"))
            for number in range(1, 500):
                await producer.submit(Message("t", b"%d" % number))
        got = set()
        async with consumer:
            async for message in consumer:
                got.add(message.body)
                if len(got) == 500:
                    break

    assert got == set(numbered(500))


async def test_a_server_that_cannot_prove_who_it_is_is_not_talked_to() -> None:
    async with running_broker(**PRIVATE) as broker:
        with pytest.raises(NameServerUnreachable, match="TLS failed"):
            await Producer("senders", namesrv=broker.name_servers[0], tls=True).start()


async def test_a_client_that_wants_tls_does_not_speak_plainly_instead() -> None:
    trusting = ssl.create_default_context(cafile=str(TLS / "certificate.pem"))
    async with running_broker() as broker, pool_of(trusting) as pool:
        with pytest.raises(PeerUnreachable):
            await pool.request(broker.address, Command.request(206))


def test_a_signature_is_made_as_brokers_check_it() -> None:
    plain = Command.request(30, {"bname": "b-0", "queueId": "0", "topic": "T"})
    send = Command.request(
        310,
        {
            "a": "PG", "b": "T", "c": "TBW102", "d": "4", "e": "2", "f": "0", "g": "1700000000000", "h": "0",
            "i": "KEYS\x01k1\x02", "j": "0", "k": "false", "m": "false", "n": "b-0",
        },
        b"hi",
    )  # fmt: skip
    credentials = Credentials("ak1", "sk-secret")

    credentials.sign(plain)
    credentials.sign(send)
    credentials.sign(send)

    assert plain.ext["Signature"] == "IO1tZw5ctrc8A8vKrZvbq65LDV8="
    assert send.ext["Signature"] == "bHo+RygXaDvpeoaFOp2LsFrixjM="
    assert "sk-secret" not in repr(credentials)


async def test_every_request_of_a_client_is_signed() -> None:
    seen: list[Command] = []

    def guard(request: Command, connection: Connection) -> None:
        seen.append(request)

    async with running_broker() as broker:
        broker.server.guards = (guard,)
        credentials = Credentials("ak", "sk", security_token="st")
        async with Producer("senders", namesrv=broker.name_servers[0], credentials=credentials) as producer:
            await producer.send(Message("t", b"1"))
            await (await producer.submit(Message("t", b"2")))
            await producer.send_oneway(Message("t", b"3"))
            await producer.send(Message("t", b"4"))

    assert len(seen) >= 5
    for request in seen:
        fields = {name: value for name, value in request.ext.items() if name != "Signature"}
        expected = Command.request(request.code, fields, request.body)
        credentials.sign(expected)
        assert request.ext["Signature"] == expected.ext["Signature"]
        assert request.ext["SecurityToken"] == "st"


async def test_a_client_that_does_not_run_says_so(place: Place) -> None:
    producer = place.producer()
    with pytest.raises(NotRunning, match="was not started; use it inside 'async with'"):
        await producer.send(Message("t", b"x"))

    async with producer:
        pass

    with pytest.raises(NotRunning, match="is closed"):
        await producer.send(Message("t", b"x"))


async def test_a_client_may_be_closed_by_another_task(place: Place) -> None:
    producer = place.producer()

    async with anyio.create_task_group() as group:
        group.start_soon(producer.start)
    await producer.send(Message(await place.topic("tasks"), b"x"))
    async with anyio.create_task_group() as group:
        group.start_soon(producer.close)
    await producer.close()


async def test_a_cancelled_send_leaves_the_client_usable(place: Place) -> None:
    topic = await place.topic("cancel")
    async with place.producer() as producer:
        await producer.send(Message(topic, b"1"))
        with anyio.move_on_after(0):
            await producer.send(Message(topic, b"cancelled"))
        result = await producer.send(Message(topic, b"2"))

    assert result.status is SendStatus.SEND_OK


async def test_routes_are_looked_at_again() -> None:
    async with running_broker() as broker:
        async with (
            Producer("senders", namesrv=broker.name_servers[0], route_interval=0.05) as producer,
            Admin(namesrv=broker.name_servers[0]) as admin,
        ):
            await admin.create_topic("t", queues=2)
            before = len(await producer.queues("t"))
            await admin.create_topic("t", queues=5)
            await eventually(lambda: producer.queues("t"), lambda queues: len(queues) == 5)

    assert before == 2


def test_name_servers_are_named_in_several_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VERNIERMQ_NAMESRV", raising=False)
    monkeypatch.setenv("NAMESRV_ADDR", "c:9876")

    assert name_servers("a:9876;b:9876") == ("a:9876", "b:9876")
    assert name_servers(["a:9876", "b:9876"]) == ("a:9876", "b:9876")
    assert name_servers(None) == ("c:9876",)
    with pytest.raises(ClientError, match="names no name server"):
        name_servers(" ")


@asynccontextmanager
async def pool_of(tls: ssl.SSLContext) -> AsyncIterator[ConnectionPool]:
    pool = ConnectionPool({}, tls=tls, connect_timeout=2)
    try:
        yield pool
    finally:
        await pool.close()
