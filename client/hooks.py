"""Functions around sends and deliveries: those of plugins, by the host, and those of the program, by decorators.

Before a send or a delivery, and after it, the plugins are called in their order, then the program's functions in the
order in which they were given: those see what really will be sent.

==============  ============================================  =======================================
                ``RequestRefused``, or any error of the        any other error of a plugin
                program's own function
==============  ============================================  =======================================
before          refused: later hooks are not asked, the        the message is put back as it was;
                caller of the send gets the error, a           open goes on, closed refuses
                delivery is offered again later
after           logged; what happened, happened                logged and counted
==============  ============================================  =======================================
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import attrs

from verniermq.client import hookspecs
from verniermq.kernel import Consuming, Message, PluginHost, Sending

logger = logging.getLogger(__name__)

SendHook: TypeAlias = Callable[[Sending], Awaitable[None] | None]
ConsumeHook: TypeAlias = Callable[[Consuming], Awaitable[None] | None]


class SendHooks:
    """What runs around each send. False while there is nothing, so that sends without hooks pay nothing."""

    def __init__(self) -> None:
        self.before: list[SendHook] = []
        self.after: list[SendHook] = []
        # The host's own lists: a plugin that is switched off disappears from them.
        self._plugins_before: Sequence[Callable[..., Any]] = ()
        self._plugins_after: Sequence[Callable[..., Any]] = ()

    def __bool__(self) -> bool:
        return bool(self.before or self.after or self._plugins_before or self._plugins_after)

    def add_plugins(self, host: PluginHost) -> None:
        self._plugins_before = host.calls(hookspecs.before_send)
        self._plugins_after = host.calls(hookspecs.after_send)

    async def run_before(self, sending: Sending) -> None:
        """What a hook raises reaches the caller of the send, and nothing is sent."""
        for call in tuple(self._plugins_before):
            undo = partial(_restore, sending, sending.message, _copy(sending.message))
            await _finish(call(sending, undo=undo))
        for hook in self.before:
            await _finish(hook(sending))

    async def run_after(self, sending: Sending) -> None:
        for call in tuple(self._plugins_after):
            await _finish(call(sending))
        for hook in self.after:
            try:
                await _finish(hook(sending))
            except Exception:
                # The message is sent, or not; a trace that fails must not change that.
                logger.exception("a hook failed after a send message=%s", sending.message_id)


class ConsumeHooks:
    """What runs around each delivery."""

    def __init__(self) -> None:
        self.before: list[ConsumeHook] = []
        self.after: list[ConsumeHook] = []
        self._plugins_before: Sequence[Callable[..., Any]] = ()
        self._plugins_after: Sequence[Callable[..., Any]] = ()

    def __bool__(self) -> bool:
        return bool(self.before or self.after or self._plugins_before or self._plugins_after)

    def add_plugins(self, host: PluginHost) -> None:
        self._plugins_before = host.calls(hookspecs.before_consume)
        self._plugins_after = host.calls(hookspecs.after_consume)

    async def run_before(self, consuming: Consuming) -> None:
        """What a hook raises means that the messages are offered again later."""
        for hook in (*self._plugins_before, *self.before):
            await _finish(hook(consuming))

    async def run_after(self, consuming: Consuming) -> None:
        for hook in (*self._plugins_after, *self.after):
            try:
                await _finish(hook(consuming))
            except Exception:
                logger.exception("a hook failed after consuming queue=%s", consuming.queue)


async def _finish(result: Any) -> None:
    if inspect.isawaitable(result):
        await result


def _copy(message: Message) -> Message:
    return attrs.evolve(message, properties=dict(message.properties))


def _restore(sending: Sending, message: Message, earlier: Message) -> None:
    """Take back what a plugin changed before it raised; the object stays the caller's own."""
    for field in attrs.fields(Message):
        setattr(message, field.name, getattr(earlier, field.name))
    sending.message = message
