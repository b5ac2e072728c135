"""Old messages go, after 72 hours, or sooner when the disk fills (RocketMQ: ``CleanCommitLogService``).

What goes is always a whole file of the commit log, the oldest, and never the one that is written to. The consume
queues and the key index follow: their minimum rises, their files below it are removed, and a consumer that asks
for less is told where to go on. ``rules.py`` decides; this file acts.

A file is as old as its newest message. That is nearly the first message of the next file, and by the broker's own
clock; the modification time, which RocketMQ takes, changes when somebody copies a store.
"""

from __future__ import annotations

import logging
from datetime import datetime
from typing import Any, ClassVar, Final

import anyio
import anyio.to_thread
import attrs

from verniermq.kernel import (
    Command,
    Connection,
    Context,
    Declaration,
    Registry,
    RequestCode,
    format_duration,
    hookimpl,
    hookspec,
)
from verniermq.plugins.retention.rules import Config, RetentionVerdict, judge, percent_used

__all__ = ["Config", "Plugin"]

logger = logging.getLogger(__name__)

PASSES_PER_REQUEST: Final = 20
"""So many passes delete at any hour after an operator asked for it, as RocketMQ does it."""


@hookspec("announcement")
def log_trimmed(min_offset: int) -> None:
    """The log now begins at ``min_offset``: older files were deleted. Used by ``query``."""


@attrs.define(eq=False)
class Plugin:
    declaration: ClassVar = Declaration(
        api=1,
        config=Config,
        summary="Deletes old messages: by age, by hour of day, by how full the disk is.",
        requests=(RequestCode.DELETE_EXPIRED_COMMITLOG, RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE),
        hookspecs=(log_trimmed,),
    )
    config: Config
    broker: Context
    _asked: int = attrs.field(default=0, init=False)
    _percent: int = attrs.field(default=0, init=False)
    _refusing: bool = attrs.field(default=False, init=False)
    _followed: int = attrs.field(default=0, init=False)
    """Where the log began when the queues were last brought up to it."""
    _passing: anyio.Lock = attrs.field(factory=anyio.Lock, init=False)

    def setup(self, registry: Registry) -> None:
        registry.handler(RequestCode.DELETE_EXPIRED_COMMITLOG, self._delete_now)
        registry.handler(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, self._follow_now)
        registry.service("retention", self._run)

    @hookimpl
    def store_opened(self) -> None:
        self._followed = self.broker.store.start

    @hookimpl
    def settings_changed(self, settings: Any) -> None:
        self.config = settings

    # --- requests --------------------------------------------------------------------------

    async def _delete_now(self, request: Command, connection: Connection) -> Command:
        """DELETE_EXPIRED_COMMITLOG: what is old enough goes now and in the next passes, whatever the hour."""
        self._asked = PASSES_PER_REQUEST
        await self._pass()
        return request.reply()

    async def _follow_now(self, request: Command, connection: Connection) -> Command:
        """CLEAN_EXPIRED_CONSUMEQUEUE: the queues forget what the log no longer has.

        RocketMQ removes queues that are empty then, and their numbering begins anew while consumers remember the old
        one. Ours stay, empty, and go on counting.
        """
        async with self._passing:
            await self._follow()
        return request.reply()

    # --- in the background -----------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            await self.broker.clock.sleep(self.config.interval)
            await self._pass()

    async def _pass(self) -> None:
        async with self._passing:
            try:
                for _ in range(self.config.files_per_pass):
                    # Looked at anew after each file: no more goes than has to.
                    verdict = await self._look()
                    if not verdict.delete_expired or not await self._delete_oldest(verdict.forced):
                        break
                else:
                    await self._look()
                if self.broker.store.start != self._followed:
                    await self._follow()
            except OSError as error:
                logger.error("old messages cannot be deleted: %s; trying again in %g s", error, self.config.interval)
            self._asked = max(self._asked - 1, 0)

    async def _look(self) -> RetentionVerdict:
        self._percent = await anyio.to_thread.run_sync(percent_used, self.broker.store.path)
        verdict = judge(
            self.config,
            hour=datetime.fromtimestamp(self.broker.clock.now()).hour,
            percent=self._percent,
            asked=self._asked > 0,
            refusing=self._refusing,
        )
        self._refuse(verdict)
        return verdict

    def _refuse(self, verdict: RetentionVerdict) -> None:
        if verdict.refuse == self._refusing:
            return
        self._refusing = verdict.refuse
        if not verdict.refuse:
            logger.info("taking messages again disk_percent=%d", self._percent)
            self.broker.store.refuse_writes(None, "retention")
            return
        kept = self.config.min_age if self.config.force else self.config.max_age
        reason = (
            f"the disk of {self.broker.store.path} is {self._percent} % full, and [plugins.retention] "
            f"disk_refuse_at is {self.config.disk_refuse_at}; free some space, or raise it: "
            f"messages younger than {format_duration(kept)} are not deleted for new ones"
        )
        logger.error("no messages are taken any more: %s", reason)
        self.broker.store.refuse_writes(reason, "retention")

    async def _delete_oldest(self, forced: bool) -> bool:
        """Remove the oldest file of the log, if it may go.

        Raises:
            OSError: the disk refused.
        """
        store = self.broker.store
        segments = store.segments()
        if len(segments) < 2 or segments[0].active:
            return False
        age = self._age(segments[0].modified, segments[1].start)
        if not self.config.may_go(age, forced=forced):
            return False
        path = await anyio.to_thread.run_sync(store.delete_first_segment)
        if path is None:
            return False
        logger.info(
            "commit-log file deleted file=%s age_s=%d disk_percent=%d forced=%s",
            path.name, age, self._percent, age < self.config.max_age,
        )  # fmt: skip
        return True

    def _age(self, modified: float, following: int) -> float:
        """How long ago the last message came into a file, in seconds.

        A clock that was set ahead since makes nothing older, and neither does time for which no broker ran, if the
        clock alone says how long that was. One that was set back keeps things longer: by how much is known a second
        later, and nothing may go too early.
        """
        store = self.broker.store
        first = store.message_at(following)
        finished = modified if first is None else first.store_timestamp / 1000
        return self.broker.clock.now() - finished - max(store.clock_changes.doubtful_since(following), 0)

    async def _follow(self) -> None:
        """Bring the consume queues, and all that listen, up to where the log begins now.

        Raises:
            OSError: the disk refused.
        """
        start = self.broker.store.start
        await self.broker.store.expire_queues()
        self.broker.hooks.announce(log_trimmed, start)
        self._followed = start
