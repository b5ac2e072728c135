"""How far a group is in each queue: on the broker for a group that shares its queues, in a file for broadcasting.

Offsets are kept in memory while messages are done, and saved every few seconds, when a queue is given up and at the
end; a pull takes the newest along too.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import anyio.to_thread

from verniermq.client.api import BrokerApi, queue_from_json, queue_json
from verniermq.client.routes import Routes
from verniermq.kernel import (
    FROM_FILE,
    MessageQueue,
    PeerUnreachable,
    RemotingError,
    object_keyed_map,
    parse_fastjson,
)

logger = logging.getLogger(__name__)


class Offsets(Protocol):
    """Where a consumer keeps its places."""

    def known(self, queue: MessageQueue) -> int | None:
        """The newest place, if this consumer has one in memory."""
        ...

    def update(self, queue: MessageQueue, offset: int, *, forwards_only: bool = True) -> None: ...

    def forget(self, queue: MessageQueue) -> None: ...

    async def read(self, queue: MessageQueue) -> int | None:
        """The place that was saved; ``None`` if there is none."""
        ...

    async def save(self, queues: Iterable[MessageQueue] | None = None, *, wait: bool = False) -> None: ...


class _InMemory:
    def __init__(self) -> None:
        self._places: dict[MessageQueue, int] = {}
        self._saved: dict[MessageQueue, int] = {}

    def known(self, queue: MessageQueue) -> int | None:
        return self._places.get(queue)

    def update(self, queue: MessageQueue, offset: int, *, forwards_only: bool = True) -> None:
        known = self._places.get(queue)
        if known is None or offset > known or not forwards_only:
            self._places[queue] = offset

    def forget(self, queue: MessageQueue) -> None:
        self._places.pop(queue, None)
        self._saved.pop(queue, None)


class BrokerOffsets(_InMemory):
    """Shared by the members of a group."""

    def __init__(self, api: BrokerApi, routes: Routes, group: str) -> None:
        super().__init__()
        self._api = api
        self._routes = routes
        self._group = group

    async def _address(self, queue: MessageQueue) -> str:
        address = (await self._routes.get(queue.topic)).address(queue.broker_name)
        if address is None:
            raise PeerUnreachable(queue.broker_name, "the name server knows no address of this broker")
        return address

    async def read(self, queue: MessageQueue) -> int | None:
        return await self._api.committed(await self._address(queue), self._group, queue)

    async def save(self, queues: Iterable[MessageQueue] | None = None, *, wait: bool = False) -> None:
        """Send what changed to the brokers; what cannot be sent now stays for the next time."""
        for queue in list(self._places if queues is None else queues):
            offset = self._places.get(queue)
            if offset is None or self._saved.get(queue) == offset:
                continue
            try:
                await self._api.commit(await self._address(queue), self._group, queue, offset, wait=wait)
                self._saved[queue] = offset
            except RemotingError as error:
                logger.warning(
                    "offset not saved group=%s queue=%s offset=%d reason=%s", self._group, queue, offset, error
                )


class FileOffsets(_InMemory):
    """One consumer's own, in RocketMQ's file: ``{"offsetTable":{{"brokerName":…,"queueId":0,"topic":…}:5}}``."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self._loaded = False

    async def read(self, queue: MessageQueue) -> int | None:
        if not self._loaded:
            self._saved = await anyio.to_thread.run_sync(self._load)
            self._loaded = True
        return self._saved.get(queue)

    def _load(self) -> dict[MessageQueue, int]:
        for path in (self.path, self.path.with_name(self.path.name + ".bak")):
            try:
                table = parse_fastjson(path.read_bytes(), FROM_FILE)["offsetTable"]
                return {queue_from_json(dict(key)): int(offset) for key, offset in table.items()}
            except FileNotFoundError:
                continue
            except (ValueError, KeyError, TypeError) as error:
                logger.warning("offset file cannot be read, trying its copy path=%s reason=%s", path, error)
        return {}

    async def save(self, queues: Iterable[MessageQueue] | None = None, *, wait: bool = False) -> None:
        if any(self._saved.get(queue) != offset for queue, offset in self._places.items()):
            self._saved.update(self._places)
            await anyio.to_thread.run_sync(self._store, dict(self._saved))

    def _store(self, places: dict[MessageQueue, int]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        table = object_keyed_map((queue_json(queue), offset) for queue, offset in sorted(places.items()))
        new = self.path.with_name(self.path.name + ".tmp")
        new.write_bytes(b'{"offsetTable":%s}' % table)
        if self.path.exists():
            self.path.replace(self.path.with_name(self.path.name + ".bak"))
        new.replace(self.path)

    def forget(self, queue: MessageQueue) -> None:
        """A place of our own stays ours, whoever reads the queue now."""
