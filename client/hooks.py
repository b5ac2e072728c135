"""Functions around sends and deliveries: those of the program, by decorators, and those of plugins, by the host."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from verniermq.kernel import Consuming, PluginHost, Sending

logger = logging.getLogger(__name__)

SendHook: TypeAlias = Callable[[Sending], Awaitable[None] | None]
ConsumeHook: TypeAlias = Callable[[Consuming], Awaitable[None] | None]


class SendHooks:
    """What runs around each send. False while there is nothing, so that sends without hooks pay nothing."""

    def __init__(self) -> None:
        self.before: list[SendHook] = []
        self.after: list[SendHook] = []

    def __bool__(self) -> bool:
        return bool(self.before or self.after)

    def add_plugins(self, host: PluginHost) -> None:
        self.before += host.calls("before_send")
        self.after += host.calls("after_send")

    async def run_before(self, sending: Sending) -> None:
        """What a hook raises reaches the caller of the send, and nothing is sent."""
        for hook in self.before:
            result = hook(sending)
            if inspect.isawaitable(result):
                await result

    async def run_after(self, sending: Sending) -> None:
        for hook in self.after:
            try:
                result = hook(sending)
                if inspect.isawaitable(result):
                    await result
            except Exception:
                # The message is sent, or not; a trace that fails must not change that.
                logger.exception("a hook failed after a send message=%s", sending.message_id)


class ConsumeHooks:
    """What runs around each delivery."""

    def __init__(self) -> None:
        self.before: list[ConsumeHook] = []
        self.after: list[ConsumeHook] = []

    def __bool__(self) -> bool:
        return bool(self.before or self.after)

    def add_plugins(self, host: PluginHost) -> None:
        self.before += host.calls("before_consume")
        self.after += host.calls("after_consume")

    async def run_before(self, consuming: Consuming) -> None:
        """What a hook raises means that the messages are offered again later."""
        for hook in self.before:
            result = hook(consuming)
            if inspect.isawaitable(result):
                await result

    async def run_after(self, consuming: Consuming) -> None:
        for hook in self.after:
            try:
                result = hook(consuming)
                if inspect.isawaitable(result):
                    await result
            except Exception:
                logger.exception("a hook failed after consuming queue=%s", consuming.queue)
