"""Finding messages: by key and time, by unique key, by offset message id (RocketMQ: ``IndexService``).

::

    messages_dispatched ──> keys.py ──> index.py ──> indexfile.py    one entry per key, on the loop, a few µs each
    QUERY_MESSAGE ────────> handlers.py ──> the same files, in a worker thread
    verniermq message ────> command.py
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import anyio
import anyio.lowlevel
import anyio.to_thread
import attrs

from verniermq.kernel import (
    Broker,
    Command,
    Connection,
    Declaration,
    DispatchEvent,
    Duration,
    Handler,
    RequestCode,
    RequestRefused,
    Service,
    StoredMessage,
    gathered,
    hookimpl,
    setting,
)
from verniermq.plugins.query.handlers import QueryHandlers
from verniermq.plugins.query.index import Index, IndexMismatch

__all__ = ["Config", "Plugin"]

logger = logging.getLogger(__name__)

STEP = 20
"""Messages that are read from the log in one go when the index has to catch up; others get their turn then."""


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
        api=1, config=Config, summary="Finds messages by key, unique key or id: RocketMQ's index files."
    )
    config: Config
    _broker: Broker = attrs.field(init=False)
    _index: Index = attrs.field(init=False)
    _unusable: str | None = attrs.field(default=None, init=False)
    """Why there is no index this time."""
    _behind: bool = attrs.field(default=False, init=False)
    """A crash or a full disk cost us entries: nothing is added until we have caught up from the log."""
    _caught_up: anyio.Event = attrs.field(init=False)
    """Set when the index has what was stored before the broker started."""
    _sync_limit: anyio.CapacityLimiter = attrs.field(init=False)

    # --- start and stop --------------------------------------------------------------------

    @hookimpl
    def broker_created(self, broker: Broker) -> None:
        self._broker = broker
        self._index = Index(
            Path(broker.store.path) / "index",
            slots=self.config.slots,
            entries=self.config.entries,
            now_ms=broker.clock.now_ms,
        )
        self._sync_limit = anyio.CapacityLimiter(1)
        self._caught_up = anyio.Event()
        broker.store.before_close.append(self._finish)

    @hookimpl
    def redispatch_from(self, broker: Broker) -> int | None:
        store = broker.store
        try:
            # What is missing is added in the background: nobody should wait for the index to send a message.
            self._behind = self._index.load(clean=store.was_clean, full_before=store.index_timestamp) is not None
        except (IndexMismatch, OSError) as error:
            self._unusable = str(error)
            logger.error("no message can be found by key this time: %s", error)
        return None

    @hookimpl
    def request_handlers(self, broker: Broker) -> Mapping[int, Handler]:
        handlers = QueryHandlers(
            broker, self._index, self._caught_up, most=self.config.max_results,
            most_for_unique_key=self.config.unique_results,
        )  # fmt: skip
        by_key: Handler = handlers.query
        if self._unusable is not None:
            by_key = self._refuse
        else:
            self._index.trim(broker.store.end)
        return {RequestCode.QUERY_MESSAGE: by_key, RequestCode.VIEW_MESSAGE_BY_ID: handlers.view}

    def _refuse(self, request: Command, connection: Connection) -> Command:
        raise RequestRefused(f"this broker has no key index: {self._unusable}")

    @hookimpl
    def services(self) -> Iterable[Service]:
        return [] if self._unusable is not None else [Service("key index", self._run)]

    def _finish(self) -> None:
        """The store closes: everything is dispatched. What the disk had no room for is added at the next start."""
        if self._unusable is None:
            self._note_full(self._index.finish())

    # --- messages --------------------------------------------------------------------------

    @hookimpl
    @gathered
    def messages_dispatched(self, events: Sequence[DispatchEvent]) -> None:
        if self._behind or self._unusable is not None:
            return
        try:
            self._index.add(events)
        except OSError as error:
            self._behind = True
            logger.error(
                "the disk refused the key index: %s; messages from here on are found by key once there is room "
                "offset=%d", error, self._index.done,
            )  # fmt: skip

    @hookimpl
    def log_trimmed(self, min_offset: int) -> None:
        gone = self._index.forget_before(min_offset)
        if gone:
            self._broker.task_group.start_soon(anyio.to_thread.run_sync, _remove, gone)

    @hookimpl
    def runtime_info(self) -> Mapping[str, str]:
        return {"indexFiles": str(len(self._index.files)), "indexedUpToOffset": str(self._index.done)}

    # --- in the background -----------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            try:
                if self._behind:
                    await self._catch_up()
                self._caught_up.set()
                filled = await anyio.to_thread.run_sync(self._index.sync, limiter=self._sync_limit)
                self._note_full(self._index.note_synced(filled))
            except OSError as error:
                logger.warning("the disk refuses the key index still: %s; it is tried again", error)
            await anyio.sleep(self.config.sync_interval)

    def _note_full(self, end_time: int) -> None:
        store = self._broker.store
        store.index_timestamp = max(store.index_timestamp, end_time)

    async def _catch_up(self) -> None:
        """Add from the log what a crash took or the disk had no room for, a few messages at a time.

        Raises:
            OSError: there is no room still.
        """
        store, index = self._broker.store, self._index
        segment = store.settings.segment_size
        begin = offset = max(index.done, store.start)
        while offset < store.end:
            batch: list[StoredMessage] = []
            while len(batch) < STEP and offset < store.end:
                message = store.message_at(offset)
                if message is None:
                    offset += segment - offset % segment  # the rest of a segment is blank
                    continue
                batch.append(message)
                offset += message.size
            index.add(batch)
            await anyio.lowlevel.checkpoint()
        self._behind = False
        if offset > begin:
            logger.info("the key index has caught up from=%d to=%d", begin, index.done)


def _remove(paths: Sequence[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
        logger.info("index file removed file=%s", path.name)
