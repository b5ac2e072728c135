"""Handing popped messages to a handler (RocketMQ: ``ConsumeMessagePopConcurrentlyService``).

Only as many messages are popped as there are handlers free for them, so none waits here while others could have it.
While a handler has a message, more time is asked for; what a handler did not consume comes again later.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import Final

import attrs

from verniermq.client.consumer.handback import FIRST_RETRY_LEVEL
from verniermq.client.consumer.invoker import HandlerInvoker
from verniermq.client.consumer.outcome import Verdict
from verniermq.client.consumer.popper import AFTER_ERROR, MOST, Popper, PopSource
from verniermq.client.consumer.renewal import Renewal
from verniermq.client.errors import ClientError
from verniermq.client.message import ReceivedMessage
from verniermq.kernel import MessageQueue, RemotingError

logger = logging.getLogger(__name__)

HOLD_SECONDS: Final = 15.0
TOLD_EVERY: Final = 60.0
"""Seconds between two lines about the same trouble."""
MOST_TOLD: Final = 100
PUT_OFF: Final = 0.05
"""Seconds until hooks that found messages too much are asked about them again."""
LEVELS: Final = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
"""Seconds of the delay levels 1 to 18; the consumer says when a popped message comes again, not the broker's table."""


@attrs.define(eq=False)
class PopService:
    popper: Popper
    renewal: Renewal
    invoker: HandlerInvoker
    workers: int
    batch_size: int
    running: asyncio.Event
    """Cleared while the consumer is paused."""
    _ready: deque[list[ReceivedMessage]] = attrs.field(factory=deque, init=False)
    _arrived: asyncio.Condition = attrs.field(factory=asyncio.Condition, init=False)
    _free: int = attrs.field(init=False)
    """How many messages may still be popped."""
    _again: dict[PopSource, float] = attrs.field(factory=dict, init=False)
    """When a place that failed is asked again, by the loop's clock."""
    _told: dict[str, float] = attrs.field(factory=dict, init=False)
    """Trouble → when it is told again."""
    _stopping: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._free = self.workers * self.batch_size

    # --- getting ---------------------------------------------------------------------------

    async def pop(self) -> None:
        """Keep the workers busy until stopped."""
        while not self._stopping:
            await self.running.wait()
            async with self._arrived:
                await self._arrived.wait_for(lambda: self._free > 0 or self._stopping)
            try:
                places = await self.popper.places()
            except (ClientError, RemotingError) as error:
                self._warn(error)
                await asyncio.sleep(AFTER_ERROR)
                continue
            found, answered = await self._pop_round(places)
            if not found and not self._stopping:
                await self.popper.wait(answered, HOLD_SECONDS if len(answered) == len(places) else AFTER_ERROR)

    async def _pop_round(self, places: Sequence[PopSource]) -> tuple[int, list[PopSource]]:
        """How many messages there were, and where; a place that fails is left alone for a moment, others are not."""
        found, answered = 0, []
        now = asyncio.get_running_loop().time()
        for place in places:
            if now < self._again.get(place, now):
                continue
            try:
                found += await self._pop_at(place)
                answered.append(place)
            except (ClientError, RemotingError) as error:
                self._warn(error)
                self._again[place] = asyncio.get_running_loop().time() + AFTER_ERROR
        return found, answered

    def _warn(self, error: Exception) -> None:
        """Say it once, and again when it has gone on for a while: a topic may be missing for days."""
        now, reason = asyncio.get_running_loop().time(), str(error)
        if now < self._told.get(reason, now):
            return
        if len(self._told) >= MOST_TOLD:
            self._told.clear()
        self._told[reason] = now + TOLD_EVERY
        logger.warning("nothing popped, again in %g s group=%s reason=%s", AFTER_ERROR, self.popper.group, error)

    async def _pop_at(self, place: PopSource) -> int:
        count = min(self._free, MOST)
        if count <= 0:
            return 0
        self._free -= count  # before the first wait, so that nobody pops the same room full
        messages: list[ReceivedMessage] = []
        try:
            messages = await self.popper.pop(place, count, self.renewal.invisible)
        finally:
            self._free += count - len(messages)
        self.renewal.add(messages)
        if self._stopping:
            await self._done(messages, Verdict(0, left=True))
            return 0
        async with self._arrived:
            self._ready.extend(_batches(messages, self.batch_size))
            self._arrived.notify_all()
        return len(messages)

    # --- handing out -----------------------------------------------------------------------

    async def work(self) -> None:
        """One worker; as many of these run as there may be handlers at a time."""
        while True:
            async with self._arrived:
                await self._arrived.wait_for(lambda: self._ready or self._stopping)
                if not self._ready:
                    return
                batch = self._ready.popleft()
            verdict = Verdict(0, left=True)
            try:
                verdict = await self._ask(batch)
            finally:
                await self._done(batch, verdict)

    async def _ask(self, batch: list[ReceivedMessage]) -> Verdict:
        """What the handler says, once the hooks let it have the messages; until then they are kept from others."""
        while not self._stopping:
            verdict = await self.invoker.call(batch[0].queue, batch)
            if not verdict.put_off:
                return verdict
            await asyncio.sleep(PUT_OFF)
        return Verdict(0, left=True)

    async def _done(self, batch: Sequence[ReceivedMessage], verdict: Verdict) -> None:
        try:
            await self._settle(batch, verdict)
        finally:
            async with self._arrived:
                self._free += len(batch)
                self._arrived.notify_all()

    async def _settle(self, batch: Sequence[ReceivedMessage], verdict: Verdict) -> None:
        for position, message in enumerate(batch):
            await self.renewal.release(message)
            try:
                if position < verdict.consumed:
                    await self.popper.settle(message)
                elif verdict.left:
                    await self.popper.change_invisible(message, 0)
                elif self._is_dead(message, verdict):
                    await self.popper.bury(message, verdict.reason)
                else:
                    await self.popper.change_invisible(message, _later(message, verdict))
            except (ClientError, RemotingError) as error:
                logger.warning("popped message not settled, it comes again message=%s reason=%s", message, error)

    def _is_dead(self, message: ReceivedMessage, verdict: Verdict) -> bool:
        attempts = message.reconsume_times + 1
        return verdict.delay_level < 0 or message.body_error is not None or 0 < self.popper.max_attempts <= attempts

    async def stop(self) -> None:
        """Let the handlers that run finish, and give back what none has seen."""
        self._stopping = True
        await self.popper.close()
        async with self._arrived:
            self._arrived.notify_all()
            await self._arrived.wait_for(lambda: self._free == self.workers * self.batch_size)


def _batches(messages: Sequence[ReceivedMessage], size: int) -> list[list[ReceivedMessage]]:
    """Messages of one queue together, up to ``size`` in each batch."""
    by_queue: dict[MessageQueue, list[ReceivedMessage]] = {}
    for message in messages:
        by_queue.setdefault(message.queue, []).append(message)
    return [queued[at : at + size] for queued in by_queue.values() for at in range(0, len(queued), size)]


def _later(message: ReceivedMessage, verdict: Verdict) -> float:
    if verdict.seconds is not None:
        return verdict.seconds
    level = verdict.delay_level or FIRST_RETRY_LEVEL + message.reconsume_times
    return LEVELS[min(level, len(LEVELS)) - 1]
