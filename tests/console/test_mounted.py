"""The console where ``http`` serves its pages: one address for health, metrics and a person."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any, Final

import anyio
import pytest

from tests.console.looking import visitor
from tests.console.test_actions import plan
from tests.plugins.peer import peer
from tests.plugins.watching import address_of
from verniermq.kernel import Broker, PluginError
from verniermq.testing import broker_process, running_broker
from verniermq.testing.ports import held_port

pytestmark = pytest.mark.anyio

MOUNTED: Final[dict[str, Any]] = {
    "plugins__enable": ["default", "http", "metrics", "console"],
    "plugins__http__listen": "127.0.0.1:0",
    "plugins__metrics__listen": "",
    "plugins__console__listen": "",
}


def http_address(broker: Broker) -> str:
    return address_of(broker, "/readyz")


async def test_pages_live_changes_and_forms_come_through(tmp_path: Path) -> None:
    async with (
        running_broker(tmp_path, **MOUNTED, plugins__console__read_only=False) as broker,
        visitor(http_address(broker)) as somebody,
        peer(broker.address) as client,
    ):
        await client.sent("orders")
        for _ in range(3):  # a browser uses a connection again, whoever serves what it asks for next
            assert "orders" in (await somebody.get("/topics")).text
            assert (await somebody.get("/livez")).status_code == 200
            assert "rocketmq_topic_number" in (await somebody.get("/metrics")).text
        assert "<html" in (await somebody.get("/nothing", status=404)).text
        assert (await somebody.http.post("/livez")).status_code == 405

        _, confirmation = await plan(somebody, "topic-create", topic="made", queues="1")
        answer = await somebody.http.post("/do/topic-create", data=confirmation)
        assert answer.status_code == 200, answer.text
        assert broker.topics.find("made") is not None
        (done,) = (await somebody.json("/audit.json"))["rows"]
        assert done["address"] == "127.0.0.1"

        async for kind, html in somebody.events("/topics.live"):
            if kind == "main" and "later" in html:
                break
            if broker.topics.find("later") is None:
                await client.sent("later")


async def test_a_body_that_comes_with_its_head_or_after_it_is_read(tmp_path: Path) -> None:
    body = b"token=0&topic=made&queues=1&padding=" + b"x" * 20_000
    async with running_broker(tmp_path, **MOUNTED, plugins__console__read_only=False) as broker:
        address = http_address(broker)
        head = (
            f"POST /do/topic-create HTTP/1.1\r\nHost: {address}\r\nContent-Length: {len(body)}\r\n"
            "Content-Type: application/x-www-form-urlencoded\r\n\r\n"
        ).encode()
        for first, second in ((head + body, b""), (head, body), (head + body[:5_000], body[5_000:])):
            host, _, port = address.rpartition(":")
            with anyio.fail_after(30):
                async with await anyio.connect_tcp(host, int(port)) as stream:
                    await stream.send(first)
                    if second:
                        await anyio.sleep(0.1)
                        await stream.send(second)
                    assert (await stream.receive()).startswith(b"HTTP/1.1 403")


async def test_a_connection_handed_over_waits_for_the_console_and_what_was_read_comes_first(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **MOUNTED) as broker:  # whose console has a thread that has hardly begun
        address = http_address(broker)
        ours, theirs = socket.socketpair()
        with ours:
            ours.sendall(f"Host: {address}\r\n\r\n".encode())
            broker.host.active["console"].instance.server.take(theirs, b"GET /cluster HTTP/1.1\r\n")

            answer = await anyio.to_thread.run_sync(ours.recv, 100)
        assert answer.startswith(b"HTTP/1.1 200")


async def test_it_comes_through_on_the_loop_of_a_broker_s_process() -> None:
    address = f"127.0.0.1:{held_port(http_address)}"
    settings = {
        "plugins.enable": '["default", "http", "console"]', "plugins.console.listen": "",
        "plugins.http.listen": address,
    }  # fmt: skip
    with broker_process(None, *(f"--set={name}={value}" for name, value in settings.items())):
        async with visitor(address) as somebody:
            for _ in range(3):
                assert "broker-a" in (await somebody.get("/cluster")).text
                assert (await somebody.get("/readyz")).json()["ready"] is True
            padding = "x" * 100_000
            assert (
                await somebody.http.post("/do/topic-create", data={"token": "0", "topic": padding})
            ).status_code == 403


async def test_it_wants_http_and_does_not_show_itself_to_everybody(tmp_path: Path) -> None:
    without = {**MOUNTED, "plugins__enable": ["default", "console"]}
    for name in ("plugins__http__listen", "plugins__metrics__listen"):
        del without[name]
    with pytest.raises(PluginError, match="the plugin 'http' is not active"):
        async with running_broker(tmp_path / "1", **without):
            pass
    with pytest.raises(PluginError, match="everybody could use it"):
        async with running_broker(tmp_path / "2", **{**MOUNTED, "plugins__http__listen": "0.0.0.0:0"}):
            pass
