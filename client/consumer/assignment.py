"""The queues that are a consumer's own now: taken and given up one by one, so that none is read twice by mistake."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final

import anyio
import attrs

from verniermq.client.api import BrokerApi
from verniermq.client.consumer.offsets import Offsets
from verniermq.client.consumer.orderly import HeldLocks
from verniermq.client.consumer.processqueue import Limits, ProcessQueue
from verniermq.client.consumer.start import StartFrom, first_offset
from verniermq.client.errors import ClientError
from verniermq.client.routes import Routes
from verniermq.kernel import MessageQueue, PeerUnreachable, RemotingError

logger = logging.getLogger(__name__)

HANDOVER_SECONDS: Final = 0.5


@attrs.define(eq=False)
class Assignment:
    api: BrokerApi
    routes: Routes
    offsets: Offsets
    start_from: StartFrom
    limits: Limits
    begin: Callable[[ProcessQueue], None]
    """Start to pull and consume a queue."""
    locks: HeldLocks | None = None
    """For consumers in order."""
    changed: Callable[[str], Awaitable[None]] | None = None
    watch_span: bool = True
    held: dict[MessageQueue, ProcessQueue] = attrs.field(factory=dict, init=False)

    def of_topic(self, topic: str) -> set[MessageQueue]:
        return {queue for queue in self.held if queue.topic == topic}

    async def apply(self, topic: str, wanted: set[MessageQueue]) -> bool:
        """Give up what is not wanted, take what is; say whether all of it was taken."""
        mine = self.of_topic(topic)
        async with anyio.create_task_group() as group:
            for queue in mine - wanted:
                group.start_soon(self.release, queue)
        missing = sorted(wanted - mine)
        taken = 0
        if missing:
            locked = await self.locks.lock(missing) if self.locks is not None else set(missing)
            for queue in missing:
                if queue in locked and await self._take(queue):
                    taken += 1
        if mine - wanted or taken:
            logger.info("queues changed topic=%s mine=%s", topic, [q.queue_id for q in sorted(self.of_topic(topic))])
            if self.changed is not None:
                await self.changed(topic)
        return taken == len(missing)

    async def _take(self, queue: MessageQueue) -> bool:
        self.offsets.forget(queue)
        try:
            offset = await self.first_offset(queue)
        except (RemotingError, ClientError) as error:
            logger.warning("queue not taken, its offset is not known queue=%s reason=%s", queue, error)
            return False
        self._hold(queue, offset)
        return True

    def _hold(self, queue: MessageQueue, offset: int) -> None:
        held = ProcessQueue(queue, offset, self.limits, self.watch_span)
        if self.locks is not None:
            held.locked_at = held.last_pull
        self.held[queue] = held
        self.begin(held)

    async def first_offset(self, queue: MessageQueue) -> int:
        """Where to begin: where the group was, or by the rule for new groups."""
        saved = await self.offsets.read(queue)
        if saved is not None:
            return saved
        address = (await self.routes.get(queue.topic)).address(queue.broker_name)
        if address is None:
            raise PeerUnreachable(queue.broker_name, "the name server knows no address of this broker")
        return await first_offset(self.api, address, queue, self.start_from)

    async def release(self, queue: MessageQueue) -> None:
        """Give a queue up: what is done is saved, what is in hand is left to the next owner."""
        held = self.held.pop(queue, None)
        if held is None:
            return
        held.close()
        # In order, the next owner must not begin before this one has finished; otherwise a moment saves repeats.
        with anyio.move_on_after(None if self.locks is not None else HANDOVER_SECONDS):
            await held.wait_idle()
        held.drop()
        await self.offsets.save([queue], wait=True)
        self.offsets.forget(queue)
        if self.locks is not None:
            await self.locks.unlock([queue])

    async def restart(self, held: ProcessQueue, offset: int) -> None:
        """Go on at another offset, and forget what is in hand."""
        if self.held.get(held.queue) is not held:
            return
        logger.warning("queue continues elsewhere queue=%s from=%d at=%d", held.queue, held.next_offset, offset)
        held.drop()
        self.offsets.update(held.queue, offset, forwards_only=False)
        await self.offsets.save([held.queue], wait=True)
        if self.held.get(held.queue) is held:
            self._hold(held.queue, offset)

    async def release_all(self) -> None:
        async with anyio.create_task_group() as group:
            for queue in list(self.held):
                group.start_soon(self.release, queue)
