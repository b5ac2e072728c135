"""Messages that were popped and not acknowledged in time come again (RocketMQ: ``PopReviveService``).

When the invisible time of a checkpoint is over, each of its messages that nobody acknowledged is copied into
the retry topic of its group, which pops look into as well. The copy comes first and the note that the old one
is done with second: a crash between the two delivers the message once more rather than never.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.lowlevel
import attrs

from verniermq.kernel import RETRY_PREFIX, Context, Histogram, RequestRefused, StoredMessage, TopicConfig
from verniermq.plugins.pop.checkpoint import CheckPoint
from verniermq.plugins.pop.handle import retry_topic
from verniermq.plugins.pop.inflight import InFlight

if TYPE_CHECKING:
    from verniermq.plugins.pop import Config

logger = logging.getLogger(__name__)

FIRST_POP_TIME: Final = "1ST_POP_TIME"

LONGEST_PAUSE: Final = 5.0
"""Low marks are committed, and what others wrote into the revive log is found, at least this often."""

SCAN_MS: Final = (1.0, 10.0, 100.0, 1000.0, 2000.0, 3000.0)
"""Apache's ranges."""

_SHORTEST_PAUSE: Final = 0.02
_TRY_AGAIN_SECONDS: Final = 10.0
_CHECKPOINTS_PER_TURN: Final = 64


class ReviveService:
    def __init__(self, broker: Context, config: Config, inflight: InFlight) -> None:
        self._broker = broker
        self.config = config
        self._inflight = inflight
        self._earlier = anyio.Event()
        inflight.on_earlier = lambda: self._earlier.set()
        self.scans = Histogram(SCAN_MS)
        """How long looks for what is due took, in milliseconds."""
        self.retried: Counter[tuple[str, str]] = Counter()
        """Messages that came again, by group and topic."""

    async def run(self) -> None:
        while True:
            await self.revive_due()
            self._earlier = anyio.Event()
            due = self._inflight.next_due()
            wait = LONGEST_PAUSE
            if due is not None:
                wait = min(max(due, _SHORTEST_PAUSE), LONGEST_PAUSE)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._sleep_then_cancel, wait, tasks.cancel_scope)
                await self._earlier.wait()
                tasks.cancel_scope.cancel()

    async def _sleep_then_cancel(self, seconds: float, scope: anyio.CancelScope) -> None:
        await self._broker.clock.sleep(seconds)
        scope.cancel()

    async def revive_due(self) -> None:
        """Bring back everything whose time is over."""
        started = time.perf_counter()
        self._inflight.advance()
        number = 0
        while checkpoint := self._inflight.take_due():
            try:
                if (fetching := self._fetching(checkpoint)) is not None:
                    await fetching
                self._revive(checkpoint)
            except (RequestRefused, OSError) as error:
                # The store takes no writes, or the disk does not read; what is in flight stays so until they do.
                logger.warning("popped messages cannot be revived now: %s; trying again", error)
                self._inflight.postpone(checkpoint, _TRY_AGAIN_SECONDS)
            number += 1
            if number % _CHECKPOINTS_PER_TURN == 0:
                await anyio.lowlevel.checkpoint()
        self._inflight.advance()
        self.scans.observe((time.perf_counter() - started) * 1000)

    def _fetching(self, checkpoint: CheckPoint) -> Coroutine[Any, Any, None] | None:
        """Something to await if the messages have to come from the disk."""
        queue = self._broker.store.queue(checkpoint.topic, checkpoint.queue_id)
        if queue is None:
            return None
        entries = [entry for offset in checkpoint.open_offsets for entry in queue.entries(offset, 1)]
        return self._broker.store.fetching([(place, size) for place, size, _ in entries])

    def _revive(self, checkpoint: CheckPoint) -> None:
        queue = self._broker.store.queue(checkpoint.topic, checkpoint.queue_id)
        for offset in checkpoint.open_offsets:
            entries = [] if queue is None or offset < queue.min_offset else queue.entries(offset, 1)
            message = self._broker.store.message_at(*entries[0][:2]) if entries else None
            if message is None:
                logger.warning(
                    "a popped message is gone from the log, or damaged topic=%s queue=%d offset=%d group=%s",
                    checkpoint.topic, checkpoint.queue_id, offset, checkpoint.group,
                )  # fmt: skip
            else:
                self._put_again(checkpoint, message)
        self._inflight.acknowledge(checkpoint, checkpoint.open_offsets)

    def _put_again(self, checkpoint: CheckPoint, message: StoredMessage) -> None:
        topic = checkpoint.topic
        if not topic.startswith(RETRY_PREFIX):
            topic = retry_topic(topic, checkpoint.group)
        queue_id = checkpoint.queue_id if self.config.separate_retry_queues else 0
        known = self._broker.topics.find(topic)
        if known is None or known.queues <= queue_id:
            # Put, not ensured: there may be one for each group and topic, so the limits are for it too.
            known = known or TopicConfig(topic, 1, 1)
            self._broker.topics.put(attrs.evolve(known, read_queues=queue_id + 1, write_queues=queue_id + 1))
        if self._broker.offsets.committed(checkpoint.group, topic, queue_id) is None:
            self._broker.offsets.commit(checkpoint.group, topic, queue_id, 0)
        again = message.pending(topic=topic, queue_id=queue_id, reconsume_times=message.reconsume_times + 1)
        again.properties.setdefault(FIRST_POP_TIME, str(checkpoint.pop_time))
        self._broker.store.append(again)
        self.retried[checkpoint.group, checkpoint.topic] += 1
