"""Records wait here until they are worth a message, as in RocketMQ (``AsyncTraceDispatcher``).

A message leaves when ``batch`` records are there, or ``interval`` seconds after the first; it holds up to 128,000
bytes, and the ids and keys of its records are its keys, so that the index finds it by any of them. At most 2,048
records wait: a broker that takes no traces must not fill a client's memory, so what comes then is dropped and counted.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

import anyio
import attrs

from verniermq.kernel import VernierMQError
from verniermq.plugins.sendhooks.records import Record

logger = logging.getLogger(__name__)

MOST_WAITING: Final = 2048
LARGEST_BODY: Final = 128_000
LONGEST_KEYS: Final = 10_000
"""Characters of a message's keys; all its properties together may have 32,767."""


@attrs.frozen
class TraceBatch:
    """One message full of records."""

    body: bytes
    keys: str


def packed(records: list[Record]) -> Iterator[TraceBatch]:
    """As few messages as the limits allow."""
    bodies: list[bytes] = []
    keys: dict[str, None] = {}
    size = keys_size = 0
    for record in records:
        body = record.encode().encode()
        names = [name for name in (record.message_id, *record.keys.split()) if name not in keys]
        names_size = sum(len(name) + 1 for name in names)
        if bodies and (size + len(body) > LARGEST_BODY or keys_size + names_size > LONGEST_KEYS):
            yield TraceBatch(b"".join(bodies), " ".join(keys))
            bodies, keys, size, keys_size = [], {}, 0, 0
            names = [record.message_id, *record.keys.split()]
            names_size = sum(len(name) + 1 for name in names)
        bodies.append(body)
        keys.update(dict.fromkeys(names))
        size += len(body)
        keys_size += names_size
    if bodies:
        yield TraceBatch(b"".join(bodies), " ".join(keys))


class TraceDispatcher:
    """Gathers records and sends them off, a parcel at a time, by the given function."""

    def __init__(
        self,
        send: Callable[[TraceBatch], Awaitable[None]],
        batch: int,
        interval: float,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    ) -> None:
        self._send = send
        self._batch = batch
        self._interval = interval
        self._sleep = sleep
        self._waiting: deque[Record] = deque()
        self._some = anyio.Event()
        self._enough = anyio.Event()
        self.dropped = 0
        """How many were lost because too many waited, or could not be sent."""

    def add(self, record: Record) -> None:
        if len(self._waiting) >= MOST_WAITING:
            self.dropped += 1
            if self.dropped % MOST_WAITING == 1:
                logger.warning("trace records dropped, too many wait dropped=%d limit=%d", self.dropped, MOST_WAITING)
            return
        self._waiting.append(record)
        self._some.set()
        if len(self._waiting) >= self._batch:
            self._enough.set()

    async def run(self) -> None:
        """Send parcels until cancelled."""
        while True:
            await self._some.wait()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._wait, tasks.cancel_scope)
                await self._enough.wait()
                tasks.cancel_scope.cancel()
            await self.flush()

    async def _wait(self, scope: anyio.CancelScope) -> None:
        await self._sleep(self._interval)
        scope.cancel()

    async def flush(self) -> None:
        """Send what is there now."""
        self._some, self._enough = anyio.Event(), anyio.Event()
        records = list(self._waiting)
        self._waiting.clear()
        for parcel in packed(records):
            try:
                await self._send(parcel)
            except VernierMQError as error:
                self.dropped += parcel.body.count(b"\x02")
                logger.warning("trace records lost, they could not be sent dropped=%d reason=%s", self.dropped, error)
