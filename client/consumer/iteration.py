"""``async for message in consumer``: the loop's body as a handler."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator

import anyio.lowlevel

from verniermq.client.consumer.outcome import Later, Outcome
from verniermq.client.message import ReceivedMessage


class Iteration:
    """Stands between the workers, which call it as a handler, and the loop, which takes messages from it."""

    def __init__(self) -> None:
        self._offered: deque[tuple[ReceivedMessage, asyncio.Future[object]]] = deque()
        self._in_hand: tuple[ReceivedMessage, asyncio.Future[object]] | None = None
        self._arrived = asyncio.Event()
        self._closed = False

    async def __call__(self, message: ReceivedMessage) -> object:
        """What a worker calls; it waits until the loop has dealt with the message."""
        answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._offered.append((message, answer))
        self._arrived.set()
        return await answer

    def settle(self, *, consumed: bool = True) -> None:
        """The message in hand is done, or not."""
        if self._in_hand is not None:
            _, answer = self._in_hand
            if not answer.done():
                answer.set_result(None if consumed else Outcome.LEFT)
            self._in_hand = None

    def later(self, message: ReceivedMessage, delay_level: int) -> None:
        if self._in_hand is not None and self._in_hand[0] is message and not self._in_hand[1].done():
            self._in_hand[1].set_result(Later(delay_level) if delay_level else Outcome.LATER)

    async def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        while True:
            self.settle()
            await anyio.lowlevel.checkpoint_if_cancelled()
            while not self._offered:
                if self._closed:
                    return
                self._arrived.clear()
                await self._arrived.wait()
            self._in_hand = self._offered.popleft()
            if not self._in_hand[1].done():
                yield self._in_hand[0]

    def close(self) -> None:
        """End the loop; what it has not seen is not consumed."""
        self._closed = True
        self._arrived.set()
        for _, answer in self._offered:
            if not answer.done():
                answer.set_result(Outcome.LEFT)
        self._offered.clear()
        self.settle(consumed=False)
