"""Keeping popped messages invisible for as long as they are worked on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from math import inf

import attrs

from verniermq.client.consumer.popper import Popper
from verniermq.client.errors import ReceiptExpired
from verniermq.client.message import ReceivedMessage
from verniermq.kernel import RemotingError

logger = logging.getLogger(__name__)

SHORTEST = 0.05


@attrs.define(eq=False)
class Renewal:
    """Asks for more time again and again, at a third of the time that a message is invisible for."""

    popper: Popper
    invisible: float
    longest: float = inf
    """Seconds after which a message is given up: it comes again when its last time is over."""
    _held: dict[int, tuple[ReceivedMessage, float]] = attrs.field(factory=dict, init=False)
    """By identity, with the time since when it is held."""
    _asking: dict[int, asyncio.Task[None]] = attrs.field(factory=dict, init=False)

    @property
    def interval(self) -> float:
        return max(self.invisible / 3, SHORTEST)

    def add(self, messages: Iterable[ReceivedMessage]) -> None:
        now = asyncio.get_running_loop().time()
        for message in messages:
            self._held[id(message)] = (message, now)

    async def release(self, message: ReceivedMessage) -> None:
        """Leave a message alone from now on: its receipt does not change any more when this returns."""
        self._held.pop(id(message), None)
        asking = self._asking.get(id(message))
        if asking is not None:
            await asyncio.wait([asking])

    async def renew(self) -> None:
        """Ask for more time for everything in hand."""
        now = asyncio.get_running_loop().time()
        for key, (message, since) in list(self._held.items()):
            if now - since > self.longest:
                logger.warning("not done in time, it comes again seconds=%g message=%s", self.longest, message)
                del self._held[key]
            elif key not in self._asking:
                self._asking[key] = asyncio.create_task(self._ask(message))
        if self._asking:
            await asyncio.wait(list(self._asking.values()))

    async def _ask(self, message: ReceivedMessage) -> None:
        try:
            await self.popper.change_invisible(message, self.invisible)
        except ReceiptExpired as error:
            self._held.pop(id(message), None)
            logger.warning("message lost to others message=%s reason=%s", message.message_id, error)
        except RemotingError as error:
            logger.warning("no more time yet message=%s reason=%s", message.message_id, error)
        finally:
            del self._asking[id(message)]
