"""What one queue of a channel receives, in the client's event loop, and how it is settled from any thread."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

import attrs

from verniermq.client import ReceivedMessage, SimpleConsumer
from verniermq.client.errors import ClientError, ReceiptExpired
from verniermq.client.sync.loop import loop_thread
from verniermq.kernel import RemotingError

logger = logging.getLogger(__name__)

WAIT_SECONDS: Final = 30.0
AFTER_ERROR: Final = 1.0
MOST: Final = 32


class ForeignMessage(ValueError):
    """A message that kombu did not write."""

    def __init__(self, message: ReceivedMessage, why: Exception) -> None:
        super().__init__(f"message {message.message_id} of topic {message.topic} is not one of kombu: {why!r}")


@attrs.define(eq=False)
class QueueReader:
    """Receives as many messages as the channel has room for, and no more: others could work on them."""

    consumer: SimpleConsumer
    room: Callable[[], int]
    deliver: Callable[[ReceivedMessage], None]
    """Takes a message; raises :class:`ForeignMessage`."""
    _reading: asyncio.Task[None] | None = attrs.field(default=None, init=False)
    _has_room: asyncio.Event = attrs.field(factory=asyncio.Event, init=False)

    # --- from any thread -------------------------------------------------------------------

    def open(self, subscriptions: Sequence[tuple[str, str]]) -> None:
        """Connect; ``subscriptions`` are topics with what is wanted of them, the first ones first."""
        for topic, selector in subscriptions:
            self.consumer.subscribe(topic, selector)
        loop_thread().call(self.consumer.start)
        loop_thread().at_exit(self, self._close)

    def subscribe(self, subscriptions: Sequence[tuple[str, str]]) -> None:
        """Want these topics from now on."""
        loop_thread().call(self._subscribe, subscriptions)

    def read(self) -> None:
        """Begin to receive."""
        loop_thread().call_plain(self._begin)

    def wake(self) -> None:
        """There may be room again."""
        loop_thread().call_plain(self._has_room.set)

    def get(self) -> ReceivedMessage | None:
        """One message, if there is one now."""
        found = loop_thread().call(self.consumer.receive, 1, wait=0)
        return found[0] if found else None

    def ack(self, message: ReceivedMessage) -> None:
        loop_thread().call(self.consumer.ack, message)

    def give_back(self, message: ReceivedMessage) -> None:
        """Have it come again at once; if it cannot be said, it comes when its time is over."""
        try:
            loop_thread().call(self.consumer.change_invisible, message, 0)
        except ReceiptExpired:
            pass  # it is on its way already
        except (ClientError, RemotingError) as error:
            logger.warning("message not given back, it comes again later message=%s reason=%s", message, error)

    def dead_letter(self, message: ReceivedMessage, reason: str) -> None:
        loop_thread().call(self.consumer.dead_letter, message, reason)

    def stop(self) -> None:
        """Receive nothing more; what was received can still be settled."""
        loop_thread().call(self._stop)

    def close(self) -> None:
        loop_thread().call(self._close)
        loop_thread().forget(self)

    # --- in the loop -----------------------------------------------------------------------

    def _begin(self) -> None:
        if self._reading is None:
            self._reading = asyncio.create_task(self._read(), name=f"kombu {self.consumer.group}")

    async def _subscribe(self, subscriptions: Sequence[tuple[str, str]]) -> None:
        was_reading = self._reading is not None
        await self._stop()
        for topic, selector in subscriptions:
            self.consumer.unsubscribe(topic)  # so that it comes after those before it
            self.consumer.subscribe(topic, selector)
        if was_reading:
            self._begin()

    async def _stop(self) -> None:
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.cancel()
            await asyncio.wait([reading])

    async def _close(self) -> None:
        await self._stop()
        await self.consumer.close()

    async def _read(self) -> None:
        while True:
            try:
                if (room := self.room()) <= 0:
                    self._has_room.clear()
                    if self.room() <= 0:
                        await self._has_room.wait()
                    continue
                found = await self.consumer.receive(min(room, MOST), wait=0)
                for message in found:
                    try:
                        self.deliver(message)
                    except ForeignMessage as error:
                        logger.error("put to the dead letters group=%s reason=%s", self.consumer.group, error)
                        await self.consumer.dead_letter(message, str(error))
                if not found:
                    await self.consumer.wait_for_messages(WAIT_SECONDS)
            except (ClientError, RemotingError) as error:
                logger.warning("nothing received, again soon group=%s reason=%s", self.consumer.group, error)
                await asyncio.sleep(AFTER_ERROR)
