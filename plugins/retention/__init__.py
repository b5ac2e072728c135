"""Old messages go, after 72 hours or when the disk fills (RocketMQ: ``CleanCommitLogService``).

What goes is always a whole file of the commit log, the oldest, and never the one that is written to. The consume
queues and the key index follow: their minimum rises, their files below it are removed, and a consumer that asks
for less is told where to go on. ``rules.py`` decides; this file acts.

A file is as old as its newest message. That is nearly the first message of the next file, and by the broker's own
clock; the modification time, which RocketMQ takes, changes when somebody copies a store.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, ClassVar, Final

import anyio
import anyio.lowlevel
import anyio.to_thread
import attrs

from verniermq.kernel import Broker, Command, Connection, Declaration, Handler, RequestCode, Service, hookimpl
from verniermq.plugins.retention.rules import Config, Verdict, judge, percent_used

__all__ = ["Config", "Plugin"]

logger = logging.getLogger(__name__)

PASSES_PER_REQUEST: Final = 20
"""So many passes delete at any hour after an operator asked for it, as RocketMQ does it."""

QUEUES_PER_TURN: Final = 50


@attrs.define(eq=False)
class Plugin:
    declaration: ClassVar = Declaration(
        api=1, config=Config, summary="Deletes old messages: by age, by hour of day, by how full the disk is."
    )
    config: Config
    _broker: Broker = attrs.field(init=False)
    _asked: int = attrs.field(default=0, init=False)
    _percent: int = attrs.field(default=0, init=False)
    _refusing: bool = attrs.field(default=False, init=False)
    _followed: int = attrs.field(default=0, init=False)
    """Where the log began when the queues were last brought up to it."""
    _passing: anyio.Lock = attrs.field(init=False)

    @hookimpl
    def broker_created(self, broker: Broker) -> None:
        self._broker = broker
        self._passing = anyio.Lock()

    @hookimpl
    def services(self) -> Iterable[Service]:
        return [Service("retention", self._run)]

    @hookimpl
    def settings_changed(self, settings: Any) -> None:
        self.config = settings

    @hookimpl
    def request_handlers(self, broker: Broker) -> Mapping[int, Handler]:
        self._followed = broker.store.start
        return {
            RequestCode.DELETE_EXPIRED_COMMITLOG: self._delete_now,
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: self._follow_now,
        }

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
            await self._broker.clock.sleep(self.config.interval)
            await self._pass()

    async def _pass(self) -> None:
        async with self._passing:
            try:
                for _ in range(self.config.files_per_pass):
                    # Looked at anew after each file: no more goes than has to.
                    verdict = await self._look()
                    if not verdict.delete_expired or not await self._delete_oldest(verdict.ignore_age):
                        break
                else:
                    await self._look()
            except OSError as error:
                logger.error("old messages cannot be deleted: %s; trying again in %g s", error, self.config.interval)
            self._asked = max(self._asked - 1, 0)
            if self._broker.store.start != self._followed:
                await self._follow()

    async def _look(self) -> Verdict:
        self._percent = await anyio.to_thread.run_sync(percent_used, self._broker.store.path)
        verdict = judge(
            self.config,
            hour=datetime.fromtimestamp(self._broker.clock.now()).hour,
            percent=self._percent,
            asked=self._asked > 0,
            refusing=self._refusing,
        )
        self._refuse(verdict)
        return verdict

    def _refuse(self, verdict: Verdict) -> None:
        if verdict.refuse == self._refusing:
            return
        self._refusing = verdict.refuse
        if not verdict.refuse:
            logger.info("taking messages again disk_percent=%d", self._percent)
            self._broker.store.refuse_writes(None, "retention")
            return
        reason = (
            f"the disk of {self._broker.store.path} is {self._percent} % full, and [plugins.retention] "
            f"disk_refuse_at is {self.config.disk_refuse_at}; free some space, or raise it"
        )
        logger.error("no messages are taken any more: %s", reason)
        self._broker.store.refuse_writes(reason, "retention")

    async def _delete_oldest(self, ignore_age: bool) -> bool:
        """Remove the oldest file of the log, if it may go.

        Raises:
            OSError: the disk refused.
        """
        store = self._broker.store
        segments = store.segments()
        if len(segments) < 2 or segments[0].active:
            return False
        age = self._broker.clock.now() - self._finished(segments[0].modified, segments[1].start)
        if age < self.config.max_age and not ignore_age:
            return False
        path = await anyio.to_thread.run_sync(store.delete_first_segment)
        if path is None:
            return False
        logger.info(
            "commit-log file deleted file=%s age_s=%d disk_percent=%d forced=%s",
            path.name, age, self._percent, age < self.config.max_age,
        )  # fmt: skip
        return True

    def _finished(self, modified: float, following: int) -> float:
        """When the last message came into a file, in seconds since 1970."""
        first = self._broker.store.message_at(following)
        return modified if first is None else first.store_timestamp / 1000

    async def _follow(self) -> None:
        """Bring the consume queues, and all that listen, up to where the log begins now; a few queues at a time."""
        store = self._broker.store
        start = store.start
        for number, queue in enumerate(list(store.queues())):
            if not queue.gone:
                queue.delete_files_below(start)
            if number % QUEUES_PER_TURN == QUEUES_PER_TURN - 1:
                await anyio.lowlevel.checkpoint()
        self._broker.host.announce("log_trimmed", start)
        self._followed = start
