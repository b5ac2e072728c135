"""One plugin's implementation of one hook: called, counted, timed, and stopped from doing harm.

An exception never travels from a plugin into the kernel: it becomes what the plugin declared, "go on without
me" or "refuse the request". ``RequestRefused`` is no failure but an answer, and passes, where somebody waits for
an answer; from an announcement there is nobody to refuse, so it is a failure like any other.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from time import perf_counter_ns
from typing import Any, Literal

import anyio
import attrs

from verniermq.kernel.errors import PluginFailed, RequestRefused
from verniermq.kernel.hookspec import HookKind
from verniermq.kernel.host.discovery import PluginCandidate
from verniermq.kernel.host.plugin import Concern, Declaration, is_gathered
from verniermq.kernel.remoting.command import Command, request_name
from verniermq.kernel.remoting.connection import Answer, Connection, Handler, Work

logger = logging.getLogger(__name__)


@attrs.define(eq=False)
class ServedRequests:
    """How a plugin's handlers have been doing."""

    failures: int = 0
    nanoseconds: int = 0

    def blamed(self, plugin: ActivePlugin, request: Command, error: Exception) -> PluginFailed:
        """Count and log a failure; the refusal that names the plugin."""
        self.failures += 1
        name = request_name(request.code)
        logger.error("plugin failed plugin=%s request=%s failures=%d", plugin.name, name, self.failures, exc_info=error)
        return PluginFailed(plugin.name, name, error)


@attrs.define(eq=False)
class ActivePlugin:
    """A plugin that was made, and how it has been doing."""

    name: str
    instance: Any
    declaration: Declaration
    config: Any
    candidate: PluginCandidate
    state: Literal["active", "switched off"] = "active"
    reason: str = ""
    calls: dict[str, HookCall] = attrs.Factory(dict)
    served: ServedRequests = attrs.Factory(ServedRequests)
    service_failures: int = 0
    service_scopes: list[anyio.CancelScope] = attrs.Factory(list)
    """Cancelled when the plugin is switched off."""
    sends_pass: Callable[[str, str, Connection], bool] | None = None
    """See ``Registry.sends_pass``."""

    @property
    def failures(self) -> int:
        return self.service_failures + self.served.failures + sum(call.failures for call in self.calls.values())


@attrs.define(eq=False)
class HookCall:
    """One plugin's implementation of one hook, with its figures."""

    plugin: ActivePlugin
    hook: str
    kind: HookKind
    function: Callable[..., Any]
    """Takes all arguments of the specification, in its order."""
    concern: Concern
    give_up: Callable[[ActivePlugin, str, Exception], None]
    """Called when the plugin failed as often in a row as it has patience for."""
    calls: int = 0
    failures: int = 0
    failures_in_a_row: int = 0
    nanoseconds: int = 0
    paused: bool = False
    """See :meth:`PluginHost.pause`."""
    is_async: bool = attrs.field(init=False)
    is_gathered: bool = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        original = inspect.unwrap(self.function)
        self.is_async = inspect.iscoroutinefunction(original)
        self.is_gathered = is_gathered(original)

    def __call__(self, *arguments: Any, undo: Callable[[], None] | None = None) -> Any:
        """Call the implementation; its exception is counted and becomes ``None``, or ``PluginFailed``.

        ``undo`` is called first of all when it failed, to take back what it had changed by then.
        """
        started = perf_counter_ns()
        self.calls += 1
        try:
            result = self.function(*arguments)
            if result is not None and inspect.isgenerator(result):
                result = list(result)
        except Exception as error:
            self._raised(error, undo)
            return None
        finally:
            self.nanoseconds += perf_counter_ns() - started
        if result is not None and inspect.isawaitable(result):
            return self._awaited(result, undo)
        self.failures_in_a_row = 0
        return result

    async def _awaited(self, result: Awaitable[Any], undo: Callable[[], None] | None) -> Any:
        started = perf_counter_ns()
        try:
            value = await result
        except Exception as error:
            self._raised(error, undo)
            return None
        finally:
            self.nanoseconds += perf_counter_ns() - started
        self.failures_in_a_row = 0
        return value

    def _raised(self, error: Exception, undo: Callable[[], None] | None) -> None:
        if isinstance(error, RequestRefused) and self.kind.answered:
            self.failures_in_a_row = 0
            raise error
        if undo is not None:
            undo()
        self.failed(error)

    def failed(self, error: Exception) -> None:
        """Count a failure and act on it.

        Raises:
            PluginFailed: the plugin fails closed, and somebody waits for its answer or the broker is starting.
        """
        self.failures_in_a_row += 1
        closed = self.plugin.declaration.on_failure == "closed"
        if closed and self.kind.at_start:
            self.failures += 1
            raise PluginFailed(self.plugin.name, self.hook, error) from error  # who starts the broker is told
        failure = self.blamed(error)
        if closed and self.kind.answered:
            # The request is refused, and that is enough: what peers send must not end the broker for all the others.
            raise failure from error
        if self.failures_in_a_row == self.plugin.declaration.patience:
            self.give_up(self.plugin, self.hook, error)

    def blamed(self, error: Exception) -> PluginFailed:
        """Count and log a failure; the refusal that names the plugin, for those who want to raise it."""
        self.failures += 1
        # A peer may cause them by the thousand; the first ones tell where.
        traceback = error if self.failures_in_a_row <= self.plugin.declaration.patience else None
        logger.error(
            "plugin failed plugin=%s hook=%s failures=%d in_a_row=%d why=%r",
            self.plugin.name, self.hook, self.failures, self.failures_in_a_row, error, exc_info=traceback,
        )  # fmt: skip
        return PluginFailed(self.plugin.name, self.hook, error)


def plugin_handler(plugin: ActivePlugin, handler: Handler) -> Handler:
    """A plugin's handler of requests. Its failure is the plugin's by name; switched off, it is no longer asked.

    A failure here never switches the plugin off: what a peer sent must not decide that for all the others.
    """
    served = plugin.served

    def serve(request: Command, connection: Connection) -> Answer | Work:
        if plugin.state != "active":
            raise RequestRefused(f"request {request_name(request.code)} cannot be served: {plugin.reason}")
        started = perf_counter_ns()
        try:
            result = handler(request, connection)
        except RequestRefused:
            raise
        except Exception as error:
            raise served.blamed(plugin, request, error) from error
        finally:
            served.nanoseconds += perf_counter_ns() - started
        return result if result is None or isinstance(result, Command) else finish(request, result)

    async def finish(request: Command, work: Work) -> Answer:
        try:
            return await work
        except RequestRefused:
            raise
        except Exception as error:
            raise served.blamed(plugin, request, error) from error

    return serve


def adapted(function: Callable[..., Any], wanted: Sequence[str], specification: Sequence[str]) -> Callable[..., Any]:
    """The implementation as a function of all arguments, though it takes only some, by name."""
    if list(wanted) == list(specification):
        return function
    positions = [specification.index(name) for name in wanted]

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        return function(*[arguments[position] for position in positions])

    return call


def guarded_test(call: HookCall, test: Callable[[Mapping[str, str]], bool]) -> Callable[[Mapping[str, str]], bool]:
    """A filter's test of properties that does as its plugin declared when it raises.

    Open lets the message pass: the consumer may get one too many, but none is lost. Closed refuses the pull.
    """

    def passes(properties: Mapping[str, str]) -> bool:
        try:
            return test(properties)
        except Exception as error:
            failure = call.blamed(error)
            if call.plugin.declaration.on_failure == "closed":
                raise failure from error
            return True

    return passes
