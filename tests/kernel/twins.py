"""Brokers that are given the same bytes, to see that two paths through the code leave the same behind.

Time stands still, also for turns of the loop, which end early when they take long. What a broker would draw at random
is counted, so that all that differs is the path.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio.lowlevel
import pytest

from verniermq.kernel.accel import lane
from verniermq.kernel.broker import Broker
from verniermq.kernel.commitlog import integrity
from verniermq.kernel.dispatch.consumequeue import ENTRY_SIZE, ConsumeQueue
from verniermq.kernel.handlers import send
from verniermq.kernel.message import pack_host
from verniermq.kernel.remoting import Connection
from verniermq.kernel.remoting.turn import SECONDS_PER_TURN
from verniermq.plugins.query import indexfile, keys
from verniermq.testing import ManualClock, running_broker

HOST = pack_host("10.0.0.5", 10911)


def take_plain_way(patch: pytest.MonkeyPatch) -> None:
    """Have brokers use nothing that is compiled."""
    patch.setattr(lane, "compiled_lane", lambda: None)
    for module in (indexfile, keys):
        patch.setattr(module, "ENTRIES", None)
    patch.setattr(integrity, "RECORDS", None)


class Socket:
    """A transport that keeps what is written; the peer reads everything at once."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.written: list[bytes] = []
        self._address = address
        self._closing = False
        self.connection: Connection | None = None

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._address if name == "peername" else default

    def is_closing(self) -> bool:
        return self._closing

    def write(self, data: bytes) -> None:
        self.written.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            assert self.connection is not None
            self.connection.connection_lost(None)

    abort = close


class Twin:
    """One broker and a peer of it."""

    def __init__(self, broker: Broker, folder: Path, address: tuple[str, int] = ("127.0.0.1", 40000)) -> None:
        self.broker = broker
        self._folder = folder
        self._address = address
        self.connect()

    def connect(self) -> None:
        """Begin a connection; the one before is closed."""
        if hasattr(self, "_socket"):
            self._socket.close()
        self._socket = Socket(self._address)
        self.connection = self._socket.connection = self.broker.server._make_connection()
        self.connection.connection_made(self._socket)  # type: ignore[arg-type]

    async def give(self, data: bytes) -> bytes:
        """Let the broker have bytes, and return what it answers to them."""
        if self.connection.closed:
            self.connect()
        self.connection.data_received(data)
        self.connection._turn.end()
        self.broker.store.dispatch()
        while self._is_busy:
            await anyio.lowlevel.checkpoint()
        self.connection.flush()
        answer = b"".join(self._socket.written)
        self._socket.written.clear()
        return answer

    @property
    def _is_busy(self) -> bool:
        """Whether something of what was given is still to be decoded, served or ended, in this turn or a later one."""
        connection, turn = self.connection, self.connection._turn
        if connection.tasks or turn._left or turn._waiting:
            return True
        return not connection.closed and bool(connection._requests or connection._left)

    def close(self) -> None:
        self._socket.close()

    def left(self) -> dict[str, bytes]:
        """The bytes of log, queues and key index, by name."""
        store = self.broker.store
        self.broker.catch_up()
        store._dispatcher.write_now()
        found = {"log": b"".join(_cut(store, start) for start in range(0, store.end, store.settings.segment_size))}
        for queue in store.queues():
            found[f"queue {queue.topic}:{queue.queue_id}"] = _entries(queue)
        for path in sorted((self._folder / "index").glob("*")):
            data = path.read_bytes()
            # A mark says up to where the file was synced, which depends on when that happened.
            slots = 40 + 4 * store_slots(self.broker)
            found["index"] = found.get("index", b"") + data[:slots] + data[slots + 20 :].rstrip(b"\0")
        return found


def store_slots(broker: Broker) -> int:
    slots = broker.configuration.plugin_tables["query"]["slots"]
    assert isinstance(slots, int)
    return slots


def _entries(queue: ConsumeQueue) -> bytes:
    """All of a queue: one read ends with a file, unless the rest is in memory, which depends on when it is written."""
    found, offset = b"", queue.min_offset
    while offset < queue.max_offset:
        data = queue.read(offset, queue.max_offset)
        assert data, f"{queue} has no entry {offset}"
        found += data
        offset += len(data) // ENTRY_SIZE
    return found


def _cut(store: Any, start: int) -> bytes:
    size = min(store.settings.segment_size, store.end - start)
    piece = store.read(start, size)
    assert piece is not None
    return bytes(piece)


def standing_still() -> float:
    return 0.0


def hasty(seed: int) -> Callable[[], float]:
    """A clock by which turns of the loop end anywhere, as they do on a busy machine."""
    chance = random.Random(seed)
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += chance.choice([0, 0, 0, 0, 2 * SECONDS_PER_TURN])
        return now

    return clock


@asynccontextmanager
async def twin(
    folder: Path, patch: pytest.MonkeyPatch, *, turn_clock: Callable[[], float] = standing_still, **settings: Any
) -> AsyncIterator[Twin]:
    """A broker that draws nothing at random, with a small key index. Its turns take as long as ``turn_clock`` says."""
    numbers = itertools.count()
    patch.setattr(send, "unique_key", lambda: f"{next(numbers):032X}")
    patch.setattr(send, "random", random.Random(7))
    chosen = {
        "store__segment_size": "1MiB",
        "store__max_message_size": "256KiB",
        "plugins__query__slots": 1009,
        "plugins__query__entries": 200_000,
        **settings,
    }
    async with running_broker(folder, clock=ManualClock(), **chosen) as broker:
        broker.store.store_host = HOST
        one = Twin(broker, folder)
        one.connection._turn.clock = turn_clock  # the one of all connections
        try:
            yield one
        finally:
            one.close()
