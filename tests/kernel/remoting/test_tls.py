"""TLS and plain frames on one port: who gets in, and that whoever does not is noticed by nobody."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from verniermq.kernel import (
    Command,
    ConfigError,
    Connection,
    PeerUnreachable,
    RemotingServer,
    RequestCode,
    connect,
    load_tls,
)
from verniermq.kernel.errors import ConnectionLost
from verniermq.kernel.remoting import RemotingLimits
from verniermq.kernel.remoting.tls import TlsMode, load_outgoing_tls
from verniermq.testing import running_broker

pytestmark = pytest.mark.anyio

FILES = Path(__file__).parents[2] / "client" / "tls"
CERTIFICATE, KEY = str(FILES / "certificate.pem"), str(FILES / "key.pem")
ECHO = 900
CLIENT_HELLO = b"\x16\x03\x01"


def echo(request: Command, connection: Connection) -> Command:
    return request.reply(0, body=request.body)


@asynccontextmanager
async def server(
    mode: TlsMode = "permissive", client_ca: str = "", handshake_seconds: float = 10.0, **limits: Any
) -> AsyncIterator[RemotingServer]:
    tls = load_tls(mode, CERTIFICATE, KEY, client_ca, handshake_seconds)
    async with RemotingServer({ECHO: echo}, RemotingLimits(**limits), tls=tls) as listening:
        await listening.listen("127.0.0.1", 0)
        yield listening


def address(listening: RemotingServer) -> str:
    return f"127.0.0.1:{listening.addresses[0][1]}"


def trusting(*, with_certificate: bool = False) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=CERTIFICATE)
    if with_certificate:
        context.load_cert_chain(CERTIFICATE, KEY)
    return context


async def say(connection: Connection, body: bytes) -> bytes:
    return (await connection.request(Command.request(ECHO, body=body), 10)).body


async def closed_by_peer(sock: socket.socket) -> None:
    """Read until the other end closes; a reset is one way to."""
    loop = asyncio.get_running_loop()
    try:
        while await loop.sock_recv(sock, 65536):
            pass
    except ConnectionError:
        pass


async def opened(listening: RemotingServer, first: bytes = b"") -> socket.socket:
    """A bare socket that has said something."""
    loop = asyncio.get_running_loop()
    sock = socket.socket()
    sock.setblocking(False)
    await loop.sock_connect(sock, ("127.0.0.1", listening.addresses[0][1]))
    await loop.sock_sendall(sock, first)
    return sock


async def test_both_kinds_of_peers_are_served_on_one_port() -> None:
    async with server() as listening:
        plain = await connect(address(listening))
        private = await connect(address(listening), tls=trusting())

        assert await say(plain, b"in the open") == b"in the open"
        assert await say(private, b"in private") == b"in private"
        assert {connection.peer_address.rpartition(":")[0] for connection in listening.connections} == {"127.0.0.1"}
        plain.close()
        private.close()


async def test_a_large_body_passes_in_both_directions() -> None:
    body = b"0123456789abcdef" * 100_000
    async with server() as listening:
        connection = await connect(address(listening), tls=trusting())
        answers = await asyncio.gather(*[say(connection, body) for _ in range(5)])
        connection.close()

    assert answers == [body] * 5


async def test_what_comes_with_the_end_of_the_handshake_is_not_lost() -> None:
    async def speak(number: int) -> bytes:
        connection = await connect(address(listening), tls=context)
        try:
            return await say(connection, b"%d" % number)
        finally:
            connection.close()

    context = trusting()
    async with server() as listening:
        answers = await asyncio.gather(*[speak(number) for number in range(30)])

    assert answers == [b"%d" % number for number in range(30)]


async def test_enforcing_closes_a_peer_that_speaks_plainly() -> None:
    async with server("enforcing") as listening:
        plain = await connect(address(listening))
        with pytest.raises(ConnectionLost):
            await say(plain, b"x")
        private = await connect(address(listening), tls=trusting())

        assert await say(private, b"x") == b"x"
        private.close()


async def test_disabled_closes_a_peer_that_begins_a_handshake() -> None:
    async with server("disabled") as listening:
        with pytest.raises(PeerUnreachable, match="ended the TLS handshake; perhaps it serves plain frames only"):
            await connect(address(listening), tls=trusting())


async def test_a_client_has_to_show_a_certificate_where_one_is_asked_for() -> None:
    async with server(client_ca=CERTIFICATE) as listening:
        known = await connect(address(listening), tls=trusting(with_certificate=True))
        assert await say(known, b"x") == b"x"

        # With TLS 1.3 a client believes that all is well until it reads.
        with pytest.raises((PeerUnreachable, ConnectionLost)):
            await say(await connect(address(listening), tls=trusting()), b"x")

        assert await say(known, b"still here") == b"still here"
        known.close()


@pytest.mark.parametrize(
    "first",
    [CLIENT_HELLO + b"\x00\x05nonsense" * 10, CLIENT_HELLO + b"\xff" * 2000, b"\x16" * 100],
    ids=["nonsense", "too long", "no record"],
)
async def test_a_bad_handshake_is_closed_and_disturbs_nobody(first: bytes) -> None:
    async with server(handshake_seconds=0.3) as listening:
        good = await connect(address(listening), tls=trusting())
        sock = await opened(listening, first)
        await closed_by_peer(sock)

        assert await say(good, b"x") == b"x"
        assert len(listening.connections) == 1
        sock.close()
        good.close()


@pytest.mark.parametrize("first", [CLIENT_HELLO, b"\x16"], ids=["begun", "one byte"])
async def test_a_handshake_that_does_not_end_is_closed_in_time(first: bytes) -> None:
    async with server(handshake_seconds=0.2) as listening:
        sock = await opened(listening, first)
        await closed_by_peer(sock)
        sock.close()


async def test_a_peer_that_says_nothing_is_closed_in_time() -> None:
    async with server(idle_seconds=0.2) as listening:
        sock = await opened(listening)
        await closed_by_peer(sock)
        sock.close()


async def test_a_peer_that_closes_at_once_leaves_nothing_behind() -> None:
    async with server() as listening:
        for _ in range(3):
            (await opened(listening)).close()
        await until(lambda: listening._shared_port is not None and not listening._shared_port.detectors)
        connection = await connect(address(listening))
        assert await say(connection, b"x") == b"x"
        connection.close()


async def test_the_number_of_those_who_say_nothing_is_limited() -> None:
    async with server(max_connections=3) as listening:
        silent = [await opened(listening) for _ in range(3)]
        one_more = await opened(listening)
        await closed_by_peer(one_more)
        for sock in (*silent, one_more):
            sock.close()


async def test_many_that_are_turned_away_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "verniermq")
    async with server() as listening:
        for _ in range(20):
            (await opened(listening)).close()  # a port scanner, a health check
        await until(lambda: listening._shared_port is not None and listening._shared_port._turned_away == 19)

    lines = [record for record in caplog.records if "at the door" in record.message]
    assert [record.levelname for record in lines] == ["INFO"]
    assert "it closed without a word" in lines[0].message


async def test_a_server_that_stops_sends_newcomers_away() -> None:
    async with server() as listening:
        silent = await opened(listening)
        halfway = await opened(listening, CLIENT_HELLO)
        await until(lambda: listening._shared_port is not None and len(listening._shared_port.detectors) == 2)
        await listening.stop()
        await closed_by_peer(silent)
        await closed_by_peer(halfway)
        silent.close()
        halfway.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - a door tells nobody who waits there
            await asyncio.sleep(0.01)


# --- a broker as the client of others ------------------------------------------------------

CARRIER = {
    "broker__name": "carrier", "tls__mode": "enforcing", "tls__certificate": CERTIFICATE, "tls__key": KEY,
}  # fmt: skip


async def known_brokers(namesrv: str, tls: ssl.SSLContext) -> set[str]:
    connection = await connect(namesrv, tls=tls)
    answer = await connection.request(Command.request(RequestCode.GET_BROKER_CLUSTER_INFO))
    connection.close()
    return set(json.loads(answer.body)["brokerAddrTable"])


@pytest.mark.parametrize("client_ca", ["", CERTIFICATE])
async def test_a_broker_registers_inside_tls_when_told_to(client_ca: str) -> None:
    async with running_broker(**CARRIER, tls__client_ca=client_ca) as carrier:
        outgoing = {"tls__outgoing": True, "tls__server_ca": CERTIFICATE}
        own = {"tls__certificate": CERTIFICATE, "tls__key": KEY} if client_ca else {}
        async with running_broker(broker__name="guest", broker__namesrv=carrier.name_servers, **outgoing, **own):
            async with asyncio.timeout(60):
                while "guest" not in await known_brokers(  # noqa: ASYNC110 - asking is all that one can do
                    carrier.name_servers[0], trusting(with_certificate=True)
                ):
                    await asyncio.sleep(0.02)
        assert await known_brokers(carrier.name_servers[0], trusting(with_certificate=True)) == {"carrier"}


@pytest.mark.parametrize(
    ("settings", "why"),
    [({}, "cannot register with name server"), ({"tls__outgoing": True}, "TLS failed: CERTIFICATE_VERIFY_FAILED")],
)
async def test_a_broker_does_not_register_with_whom_it_does_not_trust_or_understand(
    settings: dict[str, Any], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_broker(**CARRIER) as carrier:
        async with running_broker(broker__name="guest", broker__namesrv=carrier.name_servers, **settings):
            await until(lambda: why in caplog.text)
        assert await known_brokers(carrier.name_servers[0], trusting()) == {"carrier"}


async def test_outgoing_tls_with_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\[tls\] server_ca: .* holds no certificates"):
        load_outgoing_tls(True, str(tmp_path / "none.pem"), "", "")
    assert load_outgoing_tls(False, "", "", "") is None


# --- settings --------------------------------------------------------------------------------


def test_a_setting_that_cannot_work_is_refused_and_says_why(tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("")

    assert load_tls("disabled", "", "") is None
    with pytest.raises(ConfigError, match="needs a certificate"):
        load_tls("permissive", "", KEY)
    with pytest.raises(ConfigError, match="needs a key"):
        load_tls("enforcing", CERTIFICATE, "")
    with pytest.raises(ConfigError, match=r"\[tls\] key: there is no file '/nowhere.pem'"):
        load_tls("permissive", CERTIFICATE, "/nowhere.pem")
    with pytest.raises(ConfigError, match=r"\[tls\] key: there is no file"):
        load_tls("permissive", CERTIFICATE, "x" * 300)  # which no system can even look for
    with pytest.raises(ConfigError, match="no certificate with its key"):
        load_tls("permissive", str(empty), KEY)
    with pytest.raises(ConfigError, match="holds no certificates"):
        load_tls("permissive", CERTIFICATE, KEY, str(empty))


def test_a_certificate_that_nobody_will_see_is_told(caplog: pytest.LogCaptureFixture) -> None:
    assert load_tls("disabled", CERTIFICATE, KEY) is None
    assert 'mode is "disabled"; "permissive" serves TLS too' in caplog.text


async def test_a_broker_and_its_name_server_take_their_settings_from_the_table() -> None:
    async with running_broker(tls__mode="enforcing", tls__certificate=CERTIFICATE, tls__key=KEY) as broker:
        for place in (broker.address, broker.name_servers[0]):
            private = await connect(place, tls=trusting())
            answer = await private.request(Command.request(206), 10)
            private.close()
            plain = await connect(place)
            with pytest.raises(ConnectionLost):
                await plain.request(Command.request(206), 10)

            assert answer.opaque == 1


async def test_a_broker_whose_certificate_is_missing_does_not_start() -> None:
    with pytest.raises(ConfigError, match="there is no file"):
        async with running_broker(tls__mode="permissive", tls__certificate="/nowhere.pem", tls__key=KEY):
            pass
