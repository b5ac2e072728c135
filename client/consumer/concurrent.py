"""Handing messages to a handler, many at a time and in no promised order.

RocketMQ calls it ``ConsumeMessageConcurrentlyService``.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import attrs

from verniermq.client.consumer.handback import DEAD, HandBack
from verniermq.client.consumer.invoker import HandlerInvoker
from verniermq.client.consumer.offsets import Offsets
from verniermq.client.consumer.outcome import Verdict
from verniermq.client.consumer.processqueue import ProcessQueue
from verniermq.client.consumer.waitingline import WaitingLine
from verniermq.client.message import ReceivedMessage

logger = logging.getLogger(__name__)

TURN: Final = 0.005
"""Seconds after which a worker whose handler never waits lets the rest of the program have a turn."""
AGAIN_HERE: Final = 5.0
"""Seconds until a message that could not be handed back is tried again here."""
STUCK_LEVEL: Final = 3


@attrs.define(eq=False)
class ConcurrentService:
    """Workers that take batches from all queues, first come first served."""

    invoker: HandlerInvoker
    offsets: Offsets
    hand_back: HandBack
    workers: int = 20
    batch_size: int = 1
    broadcasting: bool = False
    stuck_after: float = 900.0
    """Seconds after which a message whose handler has not returned is handed back."""
    on_retry: Callable[[], None] = attrs.field(default=lambda: None)
    """Called after a message went back to the broker."""
    retried: int = attrs.field(default=0, init=False)
    _ready: deque[tuple[ProcessQueue, list[ReceivedMessage]]] = attrs.field(factory=deque, init=False)
    _line: WaitingLine = attrs.field(init=False)
    """What the hooks find too much for now."""
    _idle: list[asyncio.Future[None]] = attrs.field(factory=list, init=False)
    _busy: int = attrs.field(default=0, init=False)
    _stopping: bool = attrs.field(default=False, init=False)
    _quiet: asyncio.Event = attrs.field(factory=asyncio.Event, init=False)

    def __attrs_post_init__(self) -> None:
        self._line = WaitingLine(self._offer, self.workers)

    def deliver(self, held: ProcessQueue, messages: Sequence[ReceivedMessage]) -> None:
        """Take over what a pull brought."""
        held.add(messages)
        size = self.batch_size
        batches = [list(messages[start : start + size]) for start in range(0, len(messages), size)]
        if held in self._line.lines:
            self._line.add(held, batches)  # behind those that came before them
            return
        self._ready.extend([(held, batch) for batch in batches])
        self._wake(len(self._ready))

    def _wake(self, count: int) -> None:
        while self._idle and count > 0:
            waiter = self._idle.pop()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1

    async def work(self) -> None:
        """One worker; as many of these run as there may be handlers at a time."""
        loop = asyncio.get_running_loop()
        turn_ends = 0.0
        while True:
            if self._stopping:
                return
            if not self._ready:
                waiter = loop.create_future()
                self._idle.append(waiter)
                await waiter
                turn_ends = loop.time() + TURN
                continue
            held, batch = self._ready.popleft()
            if held.closing:
                continue  # somebody else's now: it will be read there
            self._busy += 1
            held.enter()
            try:
                await self._consume(held, batch)
            except Exception:
                logger.exception("consuming failed unexpectedly, again in %.0f s queue=%s", AGAIN_HERE, held.queue)
                for message in batch:
                    if held.pending.get(message.queue_offset) is message:
                        loop.call_later(AGAIN_HERE, self._again, held, message)
            finally:
                held.leave()
                self._busy -= 1
                if not self._busy:
                    self._quiet.set()
            if loop.time() > turn_ends:
                await asyncio.sleep(0)
                turn_ends = loop.time() + TURN

    async def _consume(self, held: ProcessQueue, batch: list[ReceivedMessage]) -> None:
        started = held.started
        held.last_consume = now = time.monotonic()
        for message in batch:
            started[message.queue_offset] = now
        try:
            verdict = await self.invoker.call(held.queue, batch)
        finally:
            for message in batch:
                started.pop(message.queue_offset, None)
        if held.dropped or verdict.left:
            return
        if verdict.put_off:
            self._line.add(held, [batch])
            return
        if self._line.lines:
            self._line.passed(held)
        done = batch
        if verdict.consumed < len(batch):
            settled = await self._failed(held, batch[verdict.consumed :], verdict)
            done = batch[: verdict.consumed] + settled
        offset = held.remove(done)
        if offset is not None and not held.dropped:
            self.offsets.update(held.queue, offset)

    async def _failed(
        self, held: ProcessQueue, failed: list[ReceivedMessage], verdict: Verdict
    ) -> list[ReceivedMessage]:
        """Those that need no more care here."""
        if self.broadcasting:
            for message in failed:
                logger.warning(
                    "message dropped, broadcasting has no retries message=%s reason=%s",
                    message.message_id, verdict.reason,
                )  # fmt: skip
            return failed
        settled = []
        for message in failed:
            if held.pending.get(message.queue_offset) is not message:
                continue  # handed back as stuck meanwhile
            # One whose body nobody can read is dead at once: it would fail as often as it came.
            level = verdict.delay_level if message.body_error is None else DEAD
            if await self.hand_back.hand_back(message, level, verdict.reason):
                self.retried += 1
                self.on_retry()
                settled.append(message)
            else:
                message.reconsume_times += 1
                asyncio.get_running_loop().call_later(AGAIN_HERE, self._again, held, message)
        return settled

    def _again(self, held: ProcessQueue, message: ReceivedMessage) -> None:
        self._offer(held, [message])

    def _offer(self, held: ProcessQueue, batch: list[ReceivedMessage]) -> None:
        if not held.dropped and not self._stopping:
            self._ready.append((held, batch))
            self._wake(1)

    async def release_stuck(self, queues: Sequence[ProcessQueue]) -> None:
        """Hand back messages whose handlers have had them for too long, so that others are not held up by them."""
        oldest = time.monotonic() - self.stuck_after
        for held in queues:
            stuck = [held.pending[o] for o, since in list(held.started.items()) if since < oldest and o in held.pending]
            for message in stuck[:16]:
                logger.warning("handler has not returned, message handed back message=%s", message.message_id)
                if await self.hand_back.hand_back(message, STUCK_LEVEL, "the handler did not return in time"):
                    offset = held.remove([message])
                    if offset is not None:
                        self.offsets.update(held.queue, offset)

    async def stop(self) -> None:
        """Let the handlers that run finish; start no more."""
        self._stopping = True
        self._ready.clear()
        self._line.clear()
        self._wake(self.workers)
        while self._busy:
            self._quiet.clear()
            await self._quiet.wait()
