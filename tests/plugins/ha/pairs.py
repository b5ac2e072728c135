"""A master and its slaves in one process, with real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from verniermq.client import Message, Producer, SendStatus
from verniermq.kernel import Broker
from verniermq.testing import running_broker

ENABLED = ["default", "ha"]
SMALL = {"store__segment_size": "64KiB", "store__max_message_size": "16KiB"}


@asynccontextmanager
async def running_master(store: Path, role: str = "async_master", **settings: Any) -> AsyncIterator[Broker]:
    chosen = {**SMALL, "plugins__ha__role": role, **settings}
    async with running_broker(store, plugins__enable=ENABLED, **chosen) as broker:
        yield broker


@asynccontextmanager
async def running_slave(store: Path, master: Broker, broker_id: int = 1, **settings: Any) -> AsyncIterator[Broker]:
    chosen = {**SMALL, "plugins__ha__metadata_interval": "100ms", **settings}
    async with running_broker(
        store, plugins__enable=ENABLED, plugins__ha__role="slave", broker__id=broker_id,
        broker__namesrv=list(master.name_servers), **chosen,
    ) as broker:  # fmt: skip
        yield broker


def plugin(broker: Broker) -> Any:
    return broker.host.active["ha"].instance


def log_files(broker: Broker) -> dict[str, bytes]:
    return {segment.path.name: segment.path.read_bytes() for segment in broker.store.segments()}


async def send(
    master: Broker, count: int, topic: str = "orders", size: int = 300, wait: bool = True, **properties: str
) -> list[SendStatus]:
    """The status of each send, as the client sees it."""
    async with Producer("p", namesrv=master.name_servers[0]) as producer:
        statuses = []
        for number in range(count):
            body = f"{number:06d}".encode() + bytes(size)
            message = Message(topic, body, wait_store_ok=wait, properties={"KEYS": f"k{number}", **properties})
            result = await producer.send(message)
            statuses.append(result.status)
        return statuses
