"""Health over HTTP, pages of other plugins, and requests that are none."""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import anyio
import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kernel.enabling import enabled
from tests.kernel.pulling import until
from tests.plugins.watching import address_of, ask, look
from verniermq.kernel import (
    Context,
    Declaration,
    InvalidParameter,
    NoConfig,
    PageAnswer,
    PluginError,
    Registry,
)
from verniermq.kernel.errors import VernierMQError
from verniermq.plugins.http.protocol import LARGEST_HEAD, HttpRefused, encode, parse
from verniermq.plugins.http.server import MOST_CONNECTIONS, listen_address
from verniermq.testing import running_broker

pytestmark = pytest.mark.anyio

HTTP: dict[str, Any] = {"plugins__enable": ["default", "http"], "plugins__http__listen": "127.0.0.1:0"}


def with_plugin(plugin: type) -> dict[str, Any]:
    return {**HTTP, **enabled("default", "http", x=plugin)}


def head(target: str, *fields: str, method: str = "GET") -> bytes:
    return "\r\n".join([f"{method} {target} HTTP/1.1", "Host: x", *fields, "", ""]).encode()


@attrs.define(eq=False)
class Visits:
    declaration: ClassVar = Declaration(api=1, summary="Shows pages.")
    config: NoConfig
    broker: Context
    closed: str | None = attrs.field(default=None, init=False)

    def setup(self, registry: Registry) -> None:
        registry.page("/visits", self.visits, title="Visits")
        registry.page("/text", lambda query: PageAnswer(b"<b>", "text/plain"))
        registry.page("/broken", self.broken)
        registry.page("/refused", self.refused)
        registry.page("/elsewhere", lambda query: ["here"], listen="localhost:0")
        registry.check("rooms are open", lambda: self.closed)

    async def visits(self, query: Mapping[str, str]) -> Mapping[str, Any]:
        await anyio.lowlevel.checkpoint()
        return {"rooms": dict(query)}

    def broken(self, query: Mapping[str, str]) -> Mapping[str, Any]:
        raise LookupError("a secret")

    def refused(self, query: Mapping[str, str]) -> Mapping[str, Any]:
        raise InvalidParameter("days=x; expected a number")


@attrs.define(eq=False)
class Gate:
    declaration: ClassVar = Declaration(api=1, summary="Has a page that waits.")
    config: NoConfig
    broker: Context
    reached: anyio.Event = attrs.field(factory=anyio.Event, init=False)
    opened: anyio.Event = attrs.field(factory=anyio.Event, init=False)

    def setup(self, registry: Registry) -> None:
        registry.page("/gate", self.page)

    async def page(self, query: Mapping[str, str]) -> Mapping[str, Any]:
        self.reached.set()
        await self.opened.wait()
        return {"through": True}


class SlowVisits(Visits):
    async def visits(self, query: Mapping[str, str]) -> Mapping[str, Any]:
        await anyio.sleep(600)
        return {}


# --- health ---------------------------------------------------------------------------------


async def test_a_broker_that_serves_is_alive_and_ready(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **HTTP) as broker:
        alive, ready = await look(broker, "/livez"), await look(broker, "/readyz")

    assert (alive.status, alive.json) == (200, {"alive": True, "why": ""})
    assert (ready.status, ready.json["ready"], ready.json["broker"]) == (200, True, broker.name)
    assert [check["check"] for check in ready.json["checks"]] == [
        "not stopping", "a name server knows the broker", "messages are taken", "plugins are active",
    ]  # fmt: skip
    assert ready.headers["cache-control"] == "no-store"


async def test_a_full_disk_is_not_ready_and_still_alive(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **HTTP) as broker:
        broker.store.refuse_writes("the disk is 91 % full", "retention")
        alive, ready = await look(broker, "/livez"), await look(broker, "/readyz")
        broker.store.refuse_writes(None, "retention")
        again = await look(broker, "/readyz")

    assert (alive.status, ready.status, again.status) == (200, 503, 200)
    (failed,) = [check for check in ready.json["checks"] if not check["ready"]]
    assert failed == {"check": "messages are taken", "plugin": "http", "ready": False, "why": "the disk is 91 % full"}


async def test_a_disk_that_failed_a_sync_is_not_alive(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **HTTP) as broker:
        broker.store._note_trouble(OSError(5, "Input/output error"))
        alive = await look(broker, "/livez")

    assert alive.status == 503
    assert "the disk failed while the commit log was synced" in alive.json["why"]


async def test_a_broker_that_no_name_server_knows_is_not_ready(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody = f"127.0.0.1:{taken.getsockname()[1]}"
    async with running_broker(tmp_path, **HTTP, broker__namesrv=[nobody]) as broker:
        ready = await look(broker, "/readyz")

    assert ready.status == 503
    (failed,) = [check for check in ready.json["checks"] if not check["ready"]]
    assert failed["check"] == "a name server knows the broker"
    assert failed["why"].startswith(f"{nobody}: ")


async def test_a_check_of_a_plugin_decides_too(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **with_plugin(Visits)) as broker:
        broker.host.active["x"].instance.closed = "all rooms are closed"
        ready = await look(broker, "/readyz")

    assert ready.status == 503
    assert {"check": "rooms are open", "plugin": "x", "ready": False, "why": "all rooms are closed"} in ready.json[
        "checks"
    ]


# --- pages ----------------------------------------------------------------------------------


async def test_pages_of_plugins_are_data_or_bytes(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **with_plugin(Visits)) as broker:
        data = await look(broker, "/visits", "?room=a%20b&room=c&empty=")
        text = await look(broker, "/text")
        elsewhere = await look(broker, "/elsewhere")
        addresses = {address_of(broker, path) for path in ("/visits", "/text")}

        assert len(addresses) == 1
    assert (data.status, data.json) == (200, {"rooms": {"room": "c", "empty": ""}})
    assert data.headers["content-type"] == "application/json"
    assert (text.body, text.headers["x-content-type-options"]) == (b"<b>", "nosniff")
    assert elsewhere.json == ["here"]


async def test_a_page_that_fails_or_refuses_says_so_and_gives_nothing_away(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **with_plugin(Visits)) as broker:
        broken, refused = await look(broker, "/broken"), await look(broker, "/refused")
        after = await look(broker, "/visits")

    assert (broken.status, broken.text) == (500, "the page failed, plugin x: LookupError; see the broker's log\n")
    assert (refused.status, refused.text) == (400, "days=x; expected a number\n")
    assert after.status == 200


async def test_one_connection_serves_many_requests(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **HTTP) as broker:
        two = head("/livez") + head("/redyz", "Connection: close")
        seen = await ask(address_of(broker, "/livez"), two)

    assert seen.body.count(b'"alive": true') == 1
    assert b"HTTP/1.1 404 Not Found" in seen.body
    assert b"there is no page '/redyz'; did you mean '/readyz'?" in seen.body


async def test_silent_connections_do_not_keep_a_health_check_away(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **HTTP) as broker:
        host, _, port = address_of(broker, "/livez").rpartition(":")
        server = broker.host.active["http"].instance.servers["127.0.0.1:0"]
        open_ones = []
        for number in range(MOST_CONNECTIONS):
            open_ones.append(await anyio.connect_tcp(host, int(port)))
            await until(lambda number=number: len(server._silent) == number + 1)
        seen = [await ask(f"{host}:{port}", head("/livez", "Connection: close")) for _ in range(3)]
        with pytest.raises(anyio.EndOfStream):
            await open_ones[0].receive()  # the one that had been silent for longest
        await open_ones[-1].send(head("/livez", "Connection: close"))
        last = await open_ones[-1].receive()
        for stream in open_ones:
            await stream.aclose()

    assert [one.status for one in seen] == [200, 200, 200]
    assert last.startswith(b"HTTP/1.1 200")


@pytest.mark.skipif(find_spec("uvloop") is None, reason="only uvloop raises what is no OSError")
@pytest.mark.parametrize("anyio_backend", [("asyncio", {"use_uvloop": True})], ids=["uvloop"])
async def test_who_is_gone_before_it_is_answered_leaves_no_trace(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_broker(tmp_path, **with_plugin(Gate)) as broker:
        gate = broker.host.active["x"].instance
        server = broker.host.active["http"].instance.servers["127.0.0.1:0"]
        host, _, port = address_of(broker, "/gate").rpartition(":")
        asking = socket.create_connection((host, int(port)))
        asking.sendall(head("/gate"))
        await gate.reached.wait()
        asking.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        asking.close()  # by a reset
        await anyio.sleep(0.2)  # the loop hears of it
        gate.opened.set()
        await until(lambda: not server._peers)

    assert not [record for record in caplog.records if record.exc_info]


async def test_more_connections_than_there_may_be_are_told(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **with_plugin(SlowVisits)) as broker:
        host, _, port = address_of(broker, "/livez").rpartition(":")
        server = broker.host.active["http"].instance.servers["127.0.0.1:0"]
        open_ones = [await anyio.connect_tcp(host, int(port)) for _ in range(MOST_CONNECTIONS)]
        for stream in open_ones:
            await stream.send(head("/visits"))
        await until(lambda: len(server._peers) == MOST_CONNECTIONS and not server._silent)
        refused = await ask(f"{host}:{port}", head("/livez", "Connection: close"))
        for stream in open_ones:
            await stream.aclose()

    assert refused.status == 503
    assert b"64 connections are open" in refused.body


async def test_two_plugins_cannot_have_one_page(tmp_path: Path) -> None:
    with pytest.raises(VernierMQError, match="page '/visits' is of two plugins, 'x' and 'y'"):
        async with running_broker(tmp_path, **{**HTTP, **enabled("default", "http", x=Visits, y=Visits)}):
            pass


async def test_an_address_that_is_taken_keeps_the_broker_from_starting(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(VernierMQError, match=f"cannot serve pages on {listen}: .*choose another address"):
            async with running_broker(tmp_path, **{**HTTP, "plugins__http__listen": listen}):
                pass


# --- the protocol ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"hello\r\n\r\n", 400),
        (b"GET / HTTP/2\r\n\r\n", 400),
        (head("/x", "no colon"), 400),
        (head("/x", " folded: y"), 400),
        (head("/x", method="POST"), 405),
        (head("/x", "Content-Length: 3"), 400),
        (head("/x", "Transfer-Encoding: chunked"), 400),
        (head("x"), 400),
        (head("http://elsewhere/x"), 400),
        (head("/x?" + "&".join(f"a{number}=" for number in range(101))), 400),
        (head("/%ff"), 400),
    ],
)
def test_what_is_no_request_is_refused_with_its_code(raw: bytes, status: int) -> None:
    with pytest.raises(HttpRefused) as caught:
        parse(raw)

    assert caught.value.status == status


@given(st.binary(max_size=300))
def test_any_bytes_are_a_request_or_refused(raw: bytes) -> None:
    try:
        method = parse(raw + b"\r\n\r\n").method
    except HttpRefused:
        return
    assert method in ("GET", "HEAD")


def test_who_keeps_the_connection() -> None:
    assert parse(head("/x")).keep_alive
    assert not parse(head("/x", "Connection: close")).keep_alive
    assert not parse(b"GET / HTTP/1.0\r\n\r\n").keep_alive
    assert parse(b"GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n").keep_alive


def test_a_head_request_gets_the_length_and_no_body() -> None:
    assert parse(head("/x", method="HEAD")).method == "HEAD"
    (raw,) = encode(PageAnswer([b"ab", b"c"]), with_body=False)
    assert raw.endswith(b"\r\n\r\n")
    assert b"Content-Length: 3" in raw


async def test_a_head_that_is_too_long_is_refused(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **HTTP) as broker:
        seen = await ask(address_of(broker, "/livez"), head("/livez", "X: " + "y" * LARGEST_HEAD))

    assert (seen.status, seen.text) == (431, f"the head of a request has at most {LARGEST_HEAD} bytes\n")


def test_where_to_listen_may_be_any_port() -> None:
    assert listen_address("[::1]:0") == ("::1", 0)
    assert listen_address("127.0.0.1:5557") == ("127.0.0.1", 5557)
    with pytest.raises(ValueError, match="no address"):
        listen_address("5557")


# --- what is registered ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("register", "why"),
    [
        (lambda it: it.page("visits", dict), "page 'visits': expected a path"),
        (lambda it: it.page("/a b", dict), "page '/a b': expected a path"),
        (lambda it: (it.page("/a", dict), it.page("/a", dict)), "it registers page '/a' twice"),
        (lambda it: it.metric("9", "gauge", "", lambda: 1), "metric '9': '9' is no name"),
        (lambda it: it.metric("a", "gauge", "", lambda: 1, ("b-c",)), "metric 'a': 'b-c' is no name"),
        (lambda it: it.metric("a", "counter", "", lambda: 1), "its name ends with _total"),
        (lambda it: it.metric("a", "dial", "", lambda: 1), "expected counter, gauge or histogram"),
        (lambda it: [it.metric("a", "gauge", "", lambda: 1) for _ in "ab"], "it registers metric 'a' twice"),
    ],
)
async def test_a_wrong_offer_keeps_the_broker_from_starting(tmp_path: Path, register: Any, why: str) -> None:
    class Wrong(Visits):
        def setup(self, registry: Registry) -> None:
            register(registry)

    globals()["Wrong"] = Wrong
    Wrong.__qualname__ = "Wrong"
    with pytest.raises(PluginError, match=why):
        async with running_broker(tmp_path, **enabled(x=Wrong)):
            pass
