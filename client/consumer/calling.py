"""Calling a handler: async ones in the loop, plain functions in worker threads, hooks and the guard around both."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import anyio.to_thread
import attrs
from anyio import CapacityLimiter

from verniermq.client.consumer.idempotence import Guard
from verniermq.client.consumer.outcome import Verdict, is_async, verdict_of
from verniermq.client.hooks import ConsumeHooks
from verniermq.client.message import ReceivedMessage
from verniermq.kernel import Consuming, MessageQueue

logger = logging.getLogger(__name__)


@attrs.define(eq=False)
class Caller:
    """Turns messages into verdicts by asking the program's handler."""

    handler: Callable[[Any], Any]
    takes_batch: bool
    group: str
    client_id: str
    hooks: ConsumeHooks
    threads: CapacityLimiter
    guard: Guard | None = None
    none_means_later: bool = False
    consumed: int = attrs.field(default=0, init=False)
    failed: int = attrs.field(default=0, init=False)
    _is_async: bool = attrs.field(init=False)
    _plain: bool = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._is_async = is_async(self.handler)
        self._plain = self._is_async and not self.takes_batch and not self.hooks and self.guard is None

    async def call(self, queue: MessageQueue, batch: list[ReceivedMessage]) -> Verdict:
        """What the handler says; an exception of its is a verdict too."""
        if self._plain and len(batch) == 1:
            try:
                answer = await self.handler(batch[0])
                if answer is None and not self.none_means_later:
                    self.consumed += 1
                    return ALL_ONE
                verdict = verdict_of(answer, 1, none_means_later=self.none_means_later)
            except Exception as error:
                verdict = self._raised(queue, batch, error)
        elif self.guard is not None:
            verdict = await self._guarded(self.guard, queue, batch)
        else:
            verdict = await self._hooked(queue, batch)
        self.consumed += verdict.consumed
        self.failed += len(batch) - verdict.consumed
        return verdict

    async def _guarded(self, guard: Guard, queue: MessageQueue, batch: list[ReceivedMessage]) -> Verdict:
        fresh = [message for message in batch if await guard.begin(message)]
        if not fresh:
            return Verdict(len(batch))
        verdict = Verdict(0)
        try:
            verdict = await self._hooked(queue, fresh)
        finally:
            for position, message in enumerate(fresh):
                await guard.finish(message, consumed=position < verdict.consumed)
        if verdict.consumed == len(fresh):
            return Verdict(len(batch))
        # Repeats lie among the others; up to the first one that failed, all of the batch is done.
        return attrs.evolve(verdict, consumed=batch.index(fresh[verdict.consumed]))

    async def _hooked(self, queue: MessageQueue, batch: list[ReceivedMessage]) -> Verdict:
        if not self.hooks:
            return await self._ask(queue, batch)
        consuming = Consuming(self.group, self.client_id, queue, batch)
        started = time.monotonic()
        try:
            await self.hooks.run_before(consuming)
            verdict = await self._ask(queue, batch, consuming)
        except Exception as error:
            consuming.error = error
            verdict = Verdict(0, reason=f"a hook refused it: {error}")
        consuming.succeeded = verdict.consumed == len(batch)
        consuming.latency_ms = (time.monotonic() - started) * 1000
        await self.hooks.run_after(consuming)
        return verdict

    async def _ask(
        self, queue: MessageQueue, batch: list[ReceivedMessage], consuming: Consuming | None = None
    ) -> Verdict:
        if not self.takes_batch and len(batch) > 1:
            return await self._one_by_one(queue, batch, consuming)
        given: Any = batch if self.takes_batch else batch[0]
        try:
            if self._is_async:
                answer = await self.handler(given)
            else:
                answer = await anyio.to_thread.run_sync(self.handler, given, limiter=self.threads)
            return verdict_of(answer, len(batch), none_means_later=self.none_means_later)
        except Exception as error:
            if consuming is not None:
                consuming.error = error
            return self._raised(queue, batch, error)

    async def _one_by_one(
        self, queue: MessageQueue, batch: list[ReceivedMessage], consuming: Consuming | None
    ) -> Verdict:
        """A handler of single messages with a batch: it stops at the first one that fails."""
        for position, message in enumerate(batch):
            verdict = await self._ask(queue, [message], consuming)
            if not verdict.consumed:
                return attrs.evolve(verdict, consumed=position)
        return Verdict(len(batch))

    def _raised(self, queue: MessageQueue, batch: list[ReceivedMessage], error: Exception) -> Verdict:
        logger.warning(
            "handler failed, messages are offered again group=%s queue=%s first=%s",
            self.group, queue, batch[0].message_id, exc_info=error,
        )  # fmt: skip
        return Verdict(0, reason=f"{type(error).__name__}: {error}")


ALL_ONE = Verdict(1)
