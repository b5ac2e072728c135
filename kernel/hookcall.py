"""One plugin's implementation of one hook: called, counted, timed, and stopped from doing harm.

An exception never travels from a plugin into the kernel: it becomes what the plugin declared, "go on without
me" or "refuse the request". ``RequestRefused`` is no failure but an answer, and passes.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from time import perf_counter_ns
from typing import Any, Literal

import attrs

from verniermq.kernel.discovery import Candidate
from verniermq.kernel.errors import PluginFailed, RequestRefused
from verniermq.kernel.message import PendingMessage
from verniermq.kernel.plugin import Concern, Declaration

logger = logging.getLogger(__name__)


@attrs.define(eq=False)
class ActivePlugin:
    """A plugin that was made, and how it has been doing."""

    name: str
    instance: Any
    declaration: Declaration
    config: Any
    candidate: Candidate
    state: Literal["active", "switched off"] = "active"
    reason: str = ""
    calls: dict[str, HookCall] = attrs.Factory(dict)

    @property
    def failures(self) -> int:
        return sum(call.failures for call in self.calls.values())


@attrs.define(eq=False)
class HookCall:
    """One plugin's implementation of one hook, with its figures."""

    plugin: ActivePlugin
    hook: str
    function: Callable[..., Any]
    """Takes all arguments of the specification, in its order."""
    concern: Concern
    give_up: Callable[[ActivePlugin, str, Exception], None]
    """Called when the plugin failed as often in a row as it has patience for."""
    calls: int = 0
    failures: int = 0
    failures_in_a_row: int = 0
    nanoseconds: int = 0

    def __call__(self, *arguments: Any) -> Any:
        """Call the implementation; its exception is counted and becomes ``None``, or ``PluginFailed``."""
        started = perf_counter_ns()
        self.calls += 1
        try:
            result = self.function(*arguments)
        except RequestRefused:
            self.failures_in_a_row = 0
            raise
        except Exception as error:
            self.nanoseconds += perf_counter_ns() - started
            self.failed(error)
            return None
        self.nanoseconds += perf_counter_ns() - started
        if inspect.isawaitable(result):
            return self._awaited(result)
        self.failures_in_a_row = 0
        return result

    async def _awaited(self, result: Awaitable[Any]) -> Any:
        started = perf_counter_ns()
        try:
            value = await result
        except RequestRefused:
            self.failures_in_a_row = 0
            raise
        except Exception as error:
            self.failed(error)
            return None
        finally:
            self.nanoseconds += perf_counter_ns() - started
        self.failures_in_a_row = 0
        return value

    def failed(self, error: Exception) -> None:
        """Count a failure and act on it.

        Raises:
            PluginFailed: the plugin fails closed.
        """
        self.failures += 1
        self.failures_in_a_row += 1
        logger.error(
            "plugin failed plugin=%s hook=%s failures=%d in_a_row=%d",
            self.plugin.name, self.hook, self.failures, self.failures_in_a_row, exc_info=error,
        )  # fmt: skip
        declaration = self.plugin.declaration
        if self.failures_in_a_row >= declaration.patience:
            self.give_up(self.plugin, self.hook, error)
        if declaration.on_failure == "closed":
            raise PluginFailed(self.plugin.name, self.hook, error) from error

    def concerns(self, message: PendingMessage) -> bool:
        concern = self.concern
        return (
            concern.everything
            or not concern.properties.isdisjoint(message.properties)
            or (bool(concern.topic_prefixes) and message.topic.startswith(concern.topic_prefixes))
        )


def adapted(function: Callable[..., Any], wanted: Sequence[str], specification: Sequence[str]) -> Callable[..., Any]:
    """The implementation as a function of all arguments, though it takes only some, by name."""
    if list(wanted) == list(specification):
        return function
    positions = [specification.index(name) for name in wanted]

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        return function(*[arguments[position] for position in positions])

    return call
