"""Reading queues: one pull is always under way for each (RocketMQ: ``PullMessageService``).

The broker holds a pull for up to 15 seconds until there is something, so a new message is here within milliseconds of
being stored. What goes wrong is tried again after a second; nothing is skipped meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Literal, TypeAlias

import attrs

from verniermq.client.api import BrokerApi
from verniermq.client.consumer.offsets import Offsets
from verniermq.client.consumer.processqueue import ProcessQueue
from verniermq.client.consumer.subscription import TopicSubscription
from verniermq.client.errors import ClientError
from verniermq.client.message import ReceivedMessage
from verniermq.client.results import PullResult, PullStatus
from verniermq.client.routes import MASTER, Routes
from verniermq.kernel import (
    ConnectionLost,
    MessageQueue,
    PeerUnreachable,
    RemotingError,
    ResponseCode,
    UnexpectedAnswer,
)

logger = logging.getLogger(__name__)

HOLD_MS: Final = 15_000
TIMEOUT: Final = 30.0
AFTER_ERROR: Final = 1.0
AFTER_MOVE: Final = 0.01
"""When the broker of a queue was found elsewhere, or its slave serves nobody."""
AFTER_FLOW_CONTROL: Final = 0.02
AFTER_DAMAGE: Final = 5.0

LOOK_CODES: Final = frozenset({
    ResponseCode.TOPIC_NOT_EXIST, ResponseCode.INVALID_PARAMETER, ResponseCode.SERVICE_NOT_AVAILABLE,
    ResponseCode.SYSTEM_BUSY,
})  # fmt: skip
"""Answers of a broker that is not, or no longer, who should be asked; 2 is that of a slave that serves no consumers."""

OnDamage: TypeAlias = Literal["skip", "wait"]


@attrs.define(eq=False)
class Puller:
    """Pulls the queues of one consumer."""

    api: BrokerApi
    routes: Routes
    offsets: Offsets
    group: str
    batch: int
    subscription: Callable[[str], TopicSubscription]
    deliver: Callable[[ProcessQueue, Sequence[ReceivedMessage]], None]
    moved: Callable[[ProcessQueue, int], Awaitable[None]]
    """The broker says that the queue continues at another offset."""
    ready: Callable[[ProcessQueue], bool]
    """Whether the queue may be pulled now: in order, while it is locked for us."""
    commits: bool = True
    """Let a pull take the newest offset along; not for broadcasting."""
    lite: bool = False
    interval: float = 0.0
    """Seconds between two pulls of a queue that both found something."""
    hold_ms: int = HOLD_MS
    on_damage: OnDamage = "skip"
    """What to do about a message that lies damaged in the broker's log."""
    damaged: int = attrs.field(default=0, init=False)
    """How many were skipped."""
    running: asyncio.Event = attrs.field(factory=asyncio.Event, init=False)
    """Cleared while the consumer is paused."""

    def __attrs_post_init__(self) -> None:
        self.running.set()

    async def run(self, held: ProcessQueue) -> None:
        """Pull a queue until it is dropped."""
        while not held.closing:
            if not self.running.is_set():
                await self.running.wait()
            await held.wait_for_room()
            if not self.ready(held):
                await asyncio.sleep(0.1)
                continue
            pause = await self._once(held)
            if pause:
                await asyncio.sleep(pause)

    async def _once(self, held: ProcessQueue) -> float:
        """One pull, and how many seconds to wait before the next."""
        try:
            result = await self._pull(held)
        except UnexpectedAnswer as error:
            return await self._refused(held, error)
        except (RemotingError, ClientError) as error:
            if held.closing:
                return 0.0
            was_slave, held.broker_id = held.broker_id != MASTER, MASTER  # if a slave failed, the master is there
            logger.warning("pull failed queue=%s reason=%s", held.queue, error)
            if isinstance(error, PeerUnreachable | ConnectionLost) and await self._is_elsewhere(held.queue):
                return AFTER_MOVE
            return AFTER_MOVE if was_slave else AFTER_ERROR
        if held.closing:
            return 0.0
        return await self._take(held, result)

    async def _pull(self, held: ProcessQueue) -> PullResult:
        queue = held.queue
        route = await self.routes.get(queue.topic)
        address = route.address(queue.broker_name, held.broker_id)
        if address is None:
            raise PeerUnreachable(queue.broker_name, "the name server knows no address of this broker")
        # The master may be gone, and a slave asked in its place: what is committed there is not the group's place.
        is_master = address == route.master(queue.broker_name)
        commit = self.offsets.known(queue) if self.commits and is_master else None
        wanted = self.subscription(queue.topic)
        return await self.api.pull(
            address,
            queue,
            held.next_offset,
            group=self.group,
            max_messages=self.batch,
            subscription=wanted.subscription,
            include_subscription=self.lite,
            hold_ms=self.hold_ms,
            commit=commit,
            lite=self.lite,
            timeout=TIMEOUT,
        )

    async def _refused(self, held: ProcessQueue, error: UnexpectedAnswer) -> float:
        if error.code == ResponseCode.FLOW_CONTROL:
            return AFTER_FLOW_CONTROL
        if held.closing:
            return 0.0
        was_slave, held.broker_id = held.broker_id != MASTER, MASTER
        logger.warning("pull refused queue=%s reason=%s", held.queue, error)
        if error.code in LOOK_CODES and await self._is_elsewhere(held.queue):
            return AFTER_MOVE
        return AFTER_MOVE if was_slave else AFTER_ERROR

    async def _is_elsewhere(self, queue: MessageQueue) -> bool:
        """Whether the queue's broker has another master now: ask before the next pull, not only every 30 seconds."""
        before = self.routes.known(queue.topic)
        try:
            after = await self.routes.fetch(queue.topic)
        except (RemotingError, ClientError) as error:
            logger.debug("no newer route topic=%s reason=%s", queue.topic, error)
            return False
        return before is not None and before.address(queue.broker_name) != after.address(queue.broker_name)

    async def _take(self, held: ProcessQueue, result: PullResult) -> float:
        held.last_pull = time.monotonic()
        held.broker_id = result.suggested_broker
        if result.status is PullStatus.OFFSET_ILLEGAL:
            await self.moved(held, result.next_offset)
            return 0.0
        held.next_offset = result.next_offset
        if result.damaged and (pause := self._damaged(held, result)):
            if result.messages:
                self.deliver(held, self.subscription(held.queue.topic).keep(result.messages))
            return pause
        messages = self.subscription(held.queue.topic).keep(result.messages)
        if messages:
            self.deliver(held, messages)
            return self.interval
        if not held.pending:
            # Everything up to here was filtered out: done, as far as this group is concerned.
            self.offsets.update(held.queue, result.next_offset)
        return 0.0

    def _damaged(self, held: ProcessQueue, result: PullResult) -> float:
        """Skip what cannot be had, or wait before the first such message: then that is for how many seconds."""
        if self.on_damage == "wait":
            first = min(result.damaged, key=lambda damaged: damaged.queue_offset)
            logger.error("damaged message, the queue waits at it group=%s message=%s", self.group, first)
            held.next_offset = first.queue_offset
            result.messages = [message for message in result.messages if message.queue_offset < first.queue_offset]
            return AFTER_DAMAGE
        for damaged in result.damaged:
            logger.error("damaged message skipped group=%s message=%s", self.group, damaged)
        self.damaged += len(result.damaged)
        return 0.0
