"""Handing messages to a handler in order: one queue's messages one after the other (RocketMQ:
``ConsumeMessageOrderlyService``).

A queue is read only while the broker has locked it for this client; the lock is renewed every 20 seconds, we take it
for lost after 30, the broker after 60. A message that fails is tried again in its place, so that none overtakes it.
Locks are the master's alone. A new master knows none: what the old one locked counts no more until that one locks it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Sequence
from typing import Final

import attrs

from verniermq.client.api import BrokerApi
from verniermq.client.consumer.handback import DEAD, HandBack
from verniermq.client.consumer.invoker import HandlerInvoker
from verniermq.client.consumer.offsets import Offsets
from verniermq.client.consumer.processqueue import ProcessQueue
from verniermq.client.message import ReceivedMessage
from verniermq.client.routes import Routes
from verniermq.kernel import MessageQueue, RemotingError

logger = logging.getLogger(__name__)

RENEW_SECONDS: Final = 20.0
LOCK_SECONDS: Final = 30.0
NO_LOCK_PAUSE: Final = 0.1
PUT_OFF: Final = 0.05
"""Seconds until hooks that found a message too much are asked about it again."""
SHORTEST_SUSPEND: Final = 0.01
LONGEST_SUSPEND: Final = 30.0


@attrs.define(eq=False)
class HeldLocks:
    """The queues that the brokers keep for this client alone."""

    api: BrokerApi
    routes: Routes
    group: str
    client_id: str
    _locked_by: dict[MessageQueue, str] = attrs.field(factory=dict, init=False)
    """The address of the broker that locked a queue for us last."""

    def _by_broker(self, queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
        grouped: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            address = self.routes.master_address(queue.broker_name)
            if address is not None:
                grouped.setdefault(address, []).append(queue)
        return grouped

    async def lock(self, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        """Those of the queues that are ours now."""
        locked: set[MessageQueue] = set()
        for address, share in self._by_broker(queues).items():
            try:
                found = await self.api.lock(address, self.client_id, self.group, share)
            except RemotingError as error:
                logger.warning("queues not locked address=%s queues=%d reason=%s", address, len(share), error)
                continue
            self._locked_by.update(dict.fromkeys(found, address))
            locked |= found
        return locked

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        queues = list(queues)
        for queue in queues:
            self._locked_by.pop(queue, None)
        for address, share in self._by_broker(queues).items():
            try:
                await self.api.unlock(address, self.client_id, self.group, share)
            except RemotingError as error:
                logger.warning("queues not unlocked, they expire address=%s reason=%s", address, error)

    async def renew(self, held: Sequence[ProcessQueue]) -> None:
        asked_at = time.monotonic()
        locked = await self.lock([queue.queue for queue in held])
        for queue in held:
            if queue.queue in locked:
                queue.locked_at = asked_at

    async def renew_moved(self, held: Sequence[ProcessQueue]) -> None:
        """Lock again what another master than the present one has locked."""
        moved = [queue for queue in held if not self.is_by_master(queue.queue)]
        if moved:
            await self.renew(moved)

    def is_by_master(self, queue: MessageQueue) -> bool:
        """Whether whoever locked a queue is its master still. While there is none, nobody else gets the lock."""
        return self.routes.master_address(queue.broker_name) in (None, self._locked_by.get(queue))

    def is_locked(self, held: ProcessQueue) -> bool:
        is_fresh = held.locked_at > 0 and time.monotonic() - held.locked_at < LOCK_SECONDS
        return is_fresh and self.is_by_master(held.queue)


@attrs.define(eq=False)
class OrderlyService:
    """One task per queue; at most ``workers`` of them are in a handler at a time."""

    invoker: HandlerInvoker
    offsets: Offsets
    hand_back: HandBack
    workers: asyncio.Semaphore
    batch_size: int = 1
    broadcasting: bool = False
    suspend: float = 1.0
    max_reconsume_times: int = -1
    """How often a message is tried in its place before it becomes a dead letter; -1 for ever."""
    locks: HeldLocks | None = None
    buried: int = attrs.field(default=0, init=False)
    _stopping: bool = attrs.field(default=False, init=False)
    _busy: int = attrs.field(default=0, init=False)
    _quiet: asyncio.Event = attrs.field(factory=asyncio.Event, init=False)

    def deliver(self, held: ProcessQueue, messages: Sequence[ReceivedMessage]) -> None:
        held.offer(messages)

    async def run(self, held: ProcessQueue) -> None:
        """Consume a queue until it is dropped."""
        while not held.closing and not self._stopping:
            batch = await held.take(self.batch_size)
            if not batch:
                return
            if self.locks is not None and not self.locks.is_locked(held):
                held.put_back(batch)
                await asyncio.sleep(NO_LOCK_PAUSE)
                continue
            self._busy += 1
            held.enter()
            try:
                async with self.workers:
                    pause = await self._consume(held, batch)
            except BaseException:
                held.put_back(batch)  # whoever goes on with the queue begins with them
                raise
            finally:
                held.leave()
                self._busy -= 1
                if not self._busy:
                    self._quiet.set()
            if pause:
                await asyncio.sleep(pause)

    async def _consume(self, held: ProcessQueue, batch: list[ReceivedMessage]) -> float:
        """How many seconds the queue has to wait."""
        if self._stopping or held.closing:
            held.put_back(batch)
            return 0.0
        verdict = await self.invoker.call(held.queue, batch)
        held.last_consume = time.monotonic()
        if held.dropped or verdict.left:
            return 0.0
        if verdict.put_off:
            held.put_back(batch)
            return PUT_OFF
        done, failed = batch[: verdict.consumed], batch[verdict.consumed :]
        pause = 0.0
        if failed:
            buried, again = await self._failed(failed)
            done = done + buried
            if again:
                held.put_back(again)
                wished = self.suspend if verdict.seconds is None else verdict.seconds
                pause = min(max(wished, SHORTEST_SUSPEND), LONGEST_SUSPEND)
        offset = held.remove(done)
        if done and offset is not None and not held.dropped:
            self.offsets.update(held.queue, offset, forwards_only=False)
        return pause

    async def _failed(self, failed: list[ReceivedMessage]) -> tuple[list[ReceivedMessage], list[ReceivedMessage]]:
        """Those that were given up, and those to be tried again in their place."""
        limit = self.max_reconsume_times
        buried: list[ReceivedMessage] = []
        for position, message in enumerate(failed):
            if message.body_error is not None:
                # It would fail for ever, and nothing behind it would ever be consumed.
                why = str(message.body_error)
                if not self.broadcasting and not await self.hand_back.hand_back(message, DEAD, why):
                    return buried, failed[position:]
                logger.error("message given up queue=%s reason=%s", message.queue, why)
                self.buried += 1
                buried.append(message)
            elif limit >= 0 and message.reconsume_times >= limit and not self.broadcasting:
                if not await self.hand_back.send_anew(message):
                    return buried, failed[position:]
                self.buried += 1
                buried.append(message)
            else:
                message.reconsume_times += 1
                return buried, failed[position:]
        return buried, []

    async def stop(self) -> None:
        self._stopping = True
        while self._busy:
            self._quiet.clear()
            await self._quiet.wait()
