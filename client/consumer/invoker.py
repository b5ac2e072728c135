"""Calling a handler: async ones in the loop, plain functions in worker threads, hooks and the guard around both."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import anyio.to_thread
import attrs
from anyio import CapacityLimiter

from verniermq.client.background import take_back_cancel
from verniermq.client.consumer.idempotence import Guard
from verniermq.client.consumer.outcome import Verdict, is_async, verdict_of
from verniermq.client.errors import ClientError
from verniermq.client.hooks import ConsumeHooks
from verniermq.client.message import ReceivedMessage
from verniermq.kernel import Busy, Consuming, MessageQueue

logger = logging.getLogger(__name__)


@attrs.define(eq=False)
class HandlerInvoker:
    """Turns messages into verdicts by asking the program's handler."""

    handler: Callable[[Any], Any]
    takes_batch: bool
    group: str
    client_id: str
    hooks: ConsumeHooks
    threads: CapacityLimiter
    guard: Guard | None = None
    none_means_later: bool = False
    is_open: Callable[[], bool] = attrs.field(default=lambda: True)
    """Whether the consumer goes on; a handler that is cancelled while it does was not cancelled by us."""
    consumed: int = attrs.field(default=0, init=False)
    failed: int = attrs.field(default=0, init=False)
    _is_async: bool = attrs.field(init=False)
    _plain: bool = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._is_async = is_async(self.handler)
        self._plain = self._is_async and not self.takes_batch and not self.hooks and self.guard is None

    async def call(self, queue: MessageQueue, batch: list[ReceivedMessage]) -> Verdict:
        """What the handler says; an exception of its is a verdict too, and so is one of a hook or a guard."""
        try:
            if self._plain and len(batch) == 1:
                answer = await self.handler(batch[0])
                if answer is None and not self.none_means_later:
                    self.consumed += 1
                    return ALL_ONE
                verdict = verdict_of(answer, 1, none_means_later=self.none_means_later)
            elif self.guard is not None:
                verdict = await self._guarded(self.guard, queue, batch)
            else:
                verdict = await self._hooked(queue, batch)
        except BaseException as error:
            verdict = self._raised(queue, batch, error)
        self.consumed += verdict.consumed
        if not verdict.put_off:
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
        except Busy as error:
            return Verdict(0, reason=str(error), put_off=True)
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
                answer = await anyio.to_thread.run_sync(self._in_thread, given, limiter=self.threads)
            return verdict_of(answer, len(batch), none_means_later=self.none_means_later)
        except BaseException as error:
            verdict = self._raised(queue, batch, error)
            if consuming is not None:
                consuming.error = error
            return verdict

    def _in_thread(self, given: Any) -> Any:
        try:
            return self.handler(given)
        except Exception:
            raise
        except BaseException as error:
            # In a thread these end nothing; on their way through the loop they would end our task, or the loop.
            raise ClientError(f"the handler raised {error!r}") from error

    async def _one_by_one(
        self, queue: MessageQueue, batch: list[ReceivedMessage], consuming: Consuming | None
    ) -> Verdict:
        """A handler of single messages with a batch: it stops at the first one that fails."""
        for position, message in enumerate(batch):
            verdict = await self._ask(queue, [message], consuming)
            if not verdict.consumed:
                return attrs.evolve(verdict, consumed=position)
        return Verdict(len(batch))

    def _raised(self, queue: MessageQueue, batch: list[ReceivedMessage], error: BaseException) -> Verdict:
        """The verdict on what a handler raised. What was meant for us and not for the handler is raised again."""
        if not isinstance(error, Exception) and self._is_for_us(error):
            raise error
        logger.warning(
            "handler failed, messages are offered again group=%s queue=%s first=%s",
            self.group, queue, batch[0].message_id, exc_info=error,
        )  # fmt: skip
        return Verdict(0, reason=f"{type(error).__name__}: {error}")

    def _is_for_us(self, error: BaseException) -> bool:
        if isinstance(error, asyncio.CancelledError):
            # A handler whose own task or future was cancelled raises the same as one that we cancel.
            if not self.is_open():
                return True
            take_back_cancel()
            return False
        if isinstance(error, GeneratorExit):
            return _is_abandoned()
        # SystemExit and KeyboardInterrupt end the program, if this is the main thread; others may not do that.
        return threading.current_thread() is threading.main_thread()


def _is_abandoned() -> bool:
    """Whether Python throws our coroutine away, since its event loop has ended."""
    try:
        return asyncio.current_task() is None
    except RuntimeError:
        return True


ALL_ONE = Verdict(1)
