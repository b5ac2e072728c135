"""Finding messages: by key and time, by unique key, by offset message id (RocketMQ: ``IndexService``).

::

    messages_dispatched ──> keys.py ──> index.py ──> indexfile.py    one entry per key, on the loop, a few µs each
    QUERY_MESSAGE ────────> handlers.py ──> the same files, in a worker thread
    verniermq message ────> command.py
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

import anyio
import anyio.lowlevel
import anyio.to_thread
import attrs

from verniermq.kernel import (
    Command,
    Connection,
    Context,
    Declaration,
    DispatchEvent,
    Duration,
    Registry,
    RequestCode,
    RequestRefused,
    StoredMessage,
    gathered,
    hookimpl,
    parts_of,
    setting,
)
from verniermq.plugins.query.handlers import QueryHandlers
from verniermq.plugins.query.index import Index, IndexMismatch
from verniermq.protocol.query import QueryMessage, ViewMessage

__all__ = ["Config", "Plugin"]

logger = logging.getLogger(__name__)

TOLD_EVERY: Final = 60.0
"""Seconds between two lines about a disk that has no room."""

STEP = 20
"""Messages that are read from the log in one go when the index has to catch up; others get their turn then."""

SMALLEST_RECORD = 91
"""Bytes of a message without topic, body and properties."""


@attrs.frozen
class Config:
    """``[plugins.query]``"""

    slots: int = setting(
        5_000_000, "Hash slots of an index file; RocketMQ's maxHashSlotNum.", at_least=1, at_most=500_000_000
    )
    entries: int = setting(
        20_000_000, "Entries of an index file; RocketMQ's maxIndexNum.", at_least=2, at_most=100_000_000
    )
    max_results: int = setting(64, "The most messages that one query by key gets.", at_least=1)
    unique_results: int = setting(32, "The most messages that one query by unique key gets.", at_least=1)
    sync_interval: Duration = setting(
        Duration(10), "How often the index is synced; after a crash, what came since is indexed again.", at_least=0.01
    )


@attrs.define(eq=False)
class Plugin:
    declaration: ClassVar = Declaration(
        api=1,
        config=Config,
        summary="Finds messages by key, unique key or id: RocketMQ's index files.",
        requests=(RequestCode.QUERY_MESSAGE, RequestCode.VIEW_MESSAGE_BY_ID),
    )
    config: Config
    broker: Context
    _index: Index = attrs.field(init=False)
    _load: Callable[[], None] | None = attrs.field(default=None, init=False)
    """Opens the files, if that is not done yet."""
    _unusable: str | None = attrs.field(default=None, init=False)
    """Why there is no index this time."""
    _behind: bool = attrs.field(default=True, init=False)
    """The files are not read yet, or a crash or a full disk cost us entries: nothing is added until we have caught up
    from the log."""
    _handlers: QueryHandlers = attrs.field(init=False)
    _caught_up: anyio.Event = attrs.field(init=False)
    """Set when the index has what was stored before the broker started."""
    _sync_limit: anyio.CapacityLimiter = attrs.field(init=False)

    # --- start and stop --------------------------------------------------------------------

    def __attrs_post_init__(self) -> None:
        self._index = Index(
            Path(self.broker.store.path) / "index",
            slots=self.config.slots,
            entries=self.config.entries,
            now_ms=self.broker.clock.now_ms,
        )
        self._sync_limit = anyio.CapacityLimiter(1)
        self._caught_up = anyio.Event()
        self._handlers = QueryHandlers(
            self.broker, self._index, self._caught_up, most=self.config.max_results,
            most_for_unique_key=self.config.unique_results,
        )  # fmt: skip

    def setup(self, registry: Registry) -> None:
        registry.handler(RequestCode.QUERY_MESSAGE, self._query, QueryMessage)
        registry.handler(RequestCode.VIEW_MESSAGE_BY_ID, self._handlers.view, ViewMessage)
        registry.service("key index", self._run)
        registry.on_close(self._finish)

    @hookimpl
    def store_opened(self) -> None:
        store = self.broker.store
        self._load = partial(self._open, store.was_clean, store.index_timestamp, store.end)
        if store.was_clean:
            self._load()
        # Nobody should wait for the index to send a message. After a crash all its slots are looked through, which
        # takes seconds, and what it lacks is added, both in the background.

    def _open(self, clean: bool, full_before: int, log_end: int) -> None:
        """Open the files, as the store was when it was opened. After a crash in a thread."""
        try:
            self._behind = self._index.load(clean=clean, full_before=full_before) is not None
            self._index.trim(log_end)
        except (IndexMismatch, OSError) as error:
            self._unusable = str(error)
            logger.error("no message can be found by key this time: %s", error)
        finally:
            self._load = None

    def _query(self, request: Command, connection: Connection) -> Coroutine[Any, Any, Command]:
        if self._unusable is not None:
            raise RequestRefused(f"this broker has no key index: {self._unusable}")
        return self._handlers.query(request, connection)

    def _finish(self) -> None:
        """The store closes: everything is dispatched. What the disk had no room for is added at the next start."""
        if self._load is not None:
            self._load()  # the next start takes what an orderly stop leaves for whole
        if self._unusable is None:
            self._note_full(self._index.finish())

    # --- messages --------------------------------------------------------------------------

    @hookimpl
    @gathered
    def messages_dispatched(self, events: Sequence[DispatchEvent]) -> None:
        if self._behind or self._unusable is not None:
            return
        try:
            self._index.add(parts_of(events))
        except OSError as error:
            self._behind = True
            logger.error(
                "the disk refused the key index: %s; messages from here on are found by key once there is room "
                "offset=%d", error, self._index.done,
            )  # fmt: skip

    @hookimpl(optionalhook=True)
    def log_trimmed(self, min_offset: int) -> None:
        gone = self._index.forget_before(min_offset) if self._load is None else []
        if gone:
            self.broker.start_soon(anyio.to_thread.run_sync, _remove, gone)

    @hookimpl(optionalhook=True)
    def runtime_info(self) -> Mapping[str, str]:
        return {"indexFiles": str(len(self._index.files)), "indexedUpToOffset": str(self._index.done)}

    # --- in the background -----------------------------------------------------------------

    async def _run(self) -> None:
        if self._load is not None:
            await anyio.to_thread.run_sync(self._load, limiter=self._sync_limit)
            self.log_trimmed(self.broker.store.start)
        told = -TOLD_EVERY
        while self._unusable is None:
            try:
                if self._behind:
                    await self._catch_up()
                self._caught_up.set()
                filled = await anyio.to_thread.run_sync(self._index.sync, limiter=self._sync_limit)
                self._note_full(self._index.note_synced(filled))
            except OSError as error:
                if (now := self.broker.clock.monotonic()) - told >= TOLD_EVERY:
                    told = now
                    logger.warning("the disk refuses the key index still: %s; it is tried again", error)
            await anyio.sleep(self.config.sync_interval)

    def _note_full(self, end_time: int) -> None:
        store = self.broker.store
        store.index_timestamp = max(store.index_timestamp, end_time)

    async def _catch_up(self) -> None:
        """Add from the log what a crash took or the disk had no room for, a few messages at a time.

        Raises:
            OSError: there is no room still.
        """
        store, index = self.broker.store, self._index
        begin = offset = max(index.resume, store.start)
        while offset < store.end:
            batch: list[StoredMessage] = []
            for _ in range(STEP):
                if offset >= store.end:
                    break
                message = store.message_at(offset)
                if message is not None:
                    batch.append(message)
                offset = self._behind_record(offset, message)
            index.add(batch)
            await anyio.lowlevel.checkpoint()
        self._behind = False
        if offset > begin:
            logger.info("the key index has caught up from=%d to=%d", begin, index.done)

    def _behind_record(self, offset: int, message: StoredMessage | None) -> int:
        """Where the record after the one at ``offset`` begins, also if that one is damaged."""
        if message is not None:
            return offset + message.size
        segment = self.broker.store.settings.segment_size
        following = offset + segment - offset % segment
        head = self.broker.store.read(offset, 4)
        size = 0 if head is None else int.from_bytes(head, "big")
        if SMALLEST_RECORD <= size < following - offset:
            logger.error("a message is damaged and is not found by key log_offset=%d size=%d", offset, size)
            return offset + size
        return following  # the rest of a segment is blank


def _remove(paths: Sequence[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
        logger.info("index file removed file=%s", path.name)
