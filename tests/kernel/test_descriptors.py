"""More peers than file descriptors: those that are there are served, and everything is written as before."""

from __future__ import annotations

import logging
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import anyio
import pytest

from tests.plugins.peer import peer
from verniermq.kernel import ConnectionLost
from verniermq.kernel.remoting.descriptors import descriptor_limit, kept_for_files, most_queue_files
from verniermq.kernel.remoting.listener import Listener
from verniermq.testing import broker_process

pytestmark = pytest.mark.anyio

LIMIT = 160
SITE = f"""
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, ({LIMIT}, {LIMIT}))
"""


def connected(address: str, stack: ExitStack) -> socket.socket:
    host, _, port = address.rpartition(":")
    return stack.enter_context(socket.create_connection((host, int(port)), timeout=30))


def is_refused(sock: socket.socket, patience: float) -> bool:
    """Whether the broker closes it; one that it keeps says nothing."""
    sock.settimeout(patience)
    try:
        return sock.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionResetError:
        return True


async def sent_by_a_newcomer(address: str) -> None:
    with anyio.fail_after(60):
        while True:
            try:
                async with peer(address) as newcomer:
                    await newcomer.sent("first", b"after")
                    return
            except ConnectionLost:
                pass  # the broker has not heard yet that the others are gone


async def test_peers_beyond_the_limit_are_refused_and_all_else_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(SITE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with broker_process(tmp_path / "store") as process:
        async with peer(process.broker) as client:
            await client.sent("first", b"before")
            with ExitStack() as stack:
                others = [connected(process.broker, stack) for _ in range(2 * LIMIT)]
                assert is_refused(others[-1], 60)
                open_now = len(os.listdir(f"/proc/{process.pid}/fd"))
                for number in range(40):  # each a topic to save, and a queue file to make
                    await client.sent(f"topic-{number}", b"%d" % number)
                for number in range(40):
                    assert await client.bodies(f"topic-{number}") == [b"%d" % number]
                is_served = not is_refused(others[0], 0.1)
            await sent_by_a_newcomer(process.broker)
        process.stop()
        log = process.log.read_text()
        process.start()
        async with peer(process.broker) as client:
            assert {b"before", b"after"} == set(await client.bodies("first"))
            assert await client.bodies("topic-39") == [b"39"]

    assert open_now < LIMIT - 10
    assert is_served
    assert log.count("connections are refused: ") == 1
    assert f"of the {LIMIT} files" in log
    assert "Too many open files" not in log


@contextmanager
def limited(limit: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def test_without_any_descriptor_accepting_rests_and_goes_on_later(caplog: pytest.LogCaptureFixture) -> None:
    greeted = anyio.Event()

    def greet(sock: socket.socket, peer: str) -> None:
        sock.close()
        greeted.set()

    listener = Listener(greet)
    await listener.listen("127.0.0.1", 0, 10)
    name = listener.sockets[0].getsockname()
    try:
        with ExitStack() as stack, caplog.at_level(logging.ERROR):
            client = stack.enter_context(socket.socket())
            highest = max(int(number) for number in os.listdir("/proc/self/fd"))
            with limited(highest):
                while True:  # fill what is free below
                    try:
                        stack.callback(os.close, os.dup(0))
                    except OSError:
                        break
                client.setblocking(False)
                client.connect_ex(name)
                with anyio.fail_after(30):
                    while not caplog.records:  # noqa: ASYNC110 - a log tells nobody
                        await anyio.sleep(0.01)
            with anyio.fail_after(30):
                await greeted.wait()
    finally:
        listener.close()

    assert "no connection accepted, again in 1 s" in caplog.records[0].getMessage()
    assert len(caplog.records) < 5


def test_what_is_kept_for_files_follows_the_limit() -> None:
    limit = descriptor_limit()

    assert kept_for_files(1024) == 256
    assert most_queue_files(1) == 1
    assert most_queue_files(10**9) <= max(limit // 8, 1)
