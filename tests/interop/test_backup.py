"""A backup of a broker under full load: it is whole, has what was acknowledged before, and Apache opens it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from verniermq.client import Producer, PullConsumer
from verniermq.kernel import Message, MessageQueue

from .apache import BROKER_NAME, ApacheBroker
from .verniermq_process import VernierMQBroker
from .wire import create_topic

pytestmark = pytest.mark.timeout(600)

SENDERS, AT_LEAST = 16, 3_000
# As many bytes and entries in a file as the Apache broker of these tests expects.
SETTINGS = """\
[store]
segment_size = "16MiB"

[plugins.query]
slots = 25000
entries = 100000

[plugins.schedule]
timer_file_size = "1MiB"
"""
SIZES = ["--set=store.segment_size=16MiB", "--set=plugins.query.slots=25000", "--set=plugins.query.entries=100000"]


def command(*arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "verniermq.cli", *arguments], capture_output=True, text=True, timeout=240,
        env=os.environ, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"


@asynccontextmanager
async def load(namesrv: str) -> AsyncIterator[list[str]]:
    """Producers that send as fast as they are answered; the bodies that were acknowledged."""
    acknowledged: list[str] = []

    async def send(producer: Producer, sender: int) -> None:
        number = 0
        while True:
            body = f"{sender}-{number}"
            await producer.send(Message("orders", body.encode().ljust(1000), keys=[body]))
            acknowledged.append(body)
            number += 1

    async with Producer("shop", namesrv=namesrv) as producer, anyio.create_task_group() as tasks:
        for sender in range(SENDERS):
            tasks.start_soon(send, producer, sender)
        yield acknowledged
        tasks.cancel_scope.cancel()


async def read(namesrv: str, broker_name: str) -> set[str]:
    found = set()
    async with PullConsumer("checks", namesrv=namesrv) as consumer:
        for queue_id in range(4):
            offset = 0
            while True:
                pulled = await consumer.pull(MessageQueue("orders", broker_name, queue_id), offset)
                if not pulled.messages:
                    break
                found.update(message.body.decode().rstrip() for message in pulled.messages)
                offset = pulled.next_offset
    return found


def test_a_backup_under_load_is_whole_and_apache_serves_it(tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    config.write_text(SETTINGS)
    backup, restored, for_apache = tmp_path / "backup", tmp_path / "restored", tmp_path / "for-apache"

    async def back_up(broker: VernierMQBroker) -> list[str]:
        async with load(broker.namesrv) as acknowledged:
            with anyio.fail_after(240):
                while len(acknowledged) < AT_LEAST:  # noqa: ASYNC110 - the senders tell nobody
                    await anyio.sleep(0.05)
                before = list(acknowledged)
                what = ("store", "backup", str(backup), "--store", str(broker.store))
                await anyio.to_thread.run_sync(command, *what)
                so_far = len(acknowledged)
                while len(acknowledged) < so_far + 100:  # noqa: ASYNC110
                    await anyio.sleep(0.05)
        return before

    with VernierMQBroker(tmp_path, config=config) as broker:
        create_topic(broker.broker, broker.namesrv, "orders")
        before = anyio.run(back_up, broker)
    command("store", "restore", str(backup), "--store", str(restored))
    command("store", "restore", str(backup), "--store", str(for_apache))
    command("store", "check", str(restored), *SIZES)
    with VernierMQBroker(tmp_path, store=restored, config=config) as broker:
        ours = anyio.run(read, broker.namesrv, "broker-a")
    with ApacheBroker(tmp_path, store=for_apache) as apache:
        theirs = anyio.run(read, apache.namesrv, BROKER_NAME)

    assert len(before) >= AT_LEAST
    assert set(before) <= ours
    assert theirs == ours
