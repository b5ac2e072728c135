"""One broker's plugins: made, ordered, and called (RocketMQ has no such thing; hooks there are Java lists).

The host belongs to a broker or a client, never to the process, so two brokers can live in one test. pluggy
checks that implementations fit the specifications and keeps their order; the calls themselves go through
plain lists of :class:`~verniermq.kernel.hookcall.HookCall`, kept up to date in place.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import anyio
import attrs
import pluggy

from verniermq.kernel import discovery, hookspecs
from verniermq.kernel.builtin import BUILTIN, DEFAULT_BROKER_PLUGINS
from verniermq.kernel.config import Configuration
from verniermq.kernel.errors import ConfigError, PluginError, RequestRefused, nearest
from verniermq.kernel.hookcall import REFUSING, ActivePlugin, HookCall, adapted, guarded_test
from verniermq.kernel.message import MessageFilter
from verniermq.kernel.ordering import in_order
from verniermq.kernel.plugin import PROJECT, concern_of

if TYPE_CHECKING:
    from verniermq.kernel.message import PendingMessage, Subscription
    from verniermq.kernel.remoting import Command, Connection

logger = logging.getLogger(__name__)

PLAIN_ONLY = frozenset(
    {
        "broker_created", "system_topics", "tags_coders", "redispatch_from", "request_handlers", "services",
        "settings_changed", "connection_opened", "request_refused", "connection_closed", "members_changed",
        "topics_changed", "group_is_ordered", "confirm_append", "compile_filter", "log_trimmed", "messages_pulled",
        "runtime_info", "allocate_queues", "fault_strategy",
    }
)  # fmt: skip
"""Hooks whose answer is needed at once: an ``async def`` there would be a coroutine that nobody awaits."""


class PluginHost:
    """The plugins of one broker or client.

    ``stop`` is called with a sentence when a plugin that declared so keeps failing.
    """

    def __init__(self, stop: Callable[[str], None] | None = None) -> None:
        self.active: dict[str, ActivePlugin] = {}
        self._stop = stop or (lambda reason: logger.critical("%s", reason))
        self._manager = pluggy.PluginManager(PROJECT)
        self._manager.add_hookspecs(hookspecs)
        self._lists: dict[str, list[HookCall]] = {name: [] for name in self.hook_names()}
        # What the path of a message looks at; kept up to date in place by _resolve().
        self.before_append: list[HookCall] = self._lists["before_append"]
        self.before_request: list[HookCall] = self._lists["before_request"]
        self.confirm_append: list[HookCall] = self._lists["confirm_append"]
        self.messages_appended: list[HookCall] = self._lists["messages_appended"]
        self.messages_dispatched: list[HookCall] = self._lists["messages_dispatched"]
        self.concerned_properties: frozenset[str] = frozenset()
        self.missing: dict[str, str] = {}
        """Property name → the built-in plugin that is not active and would have served it."""

    @staticmethod
    def hook_names() -> list[str]:
        """All hooks, in the order of the page that specifies them."""
        return [name for name, value in vars(hookspecs).items() if hasattr(value, f"{PROJECT}_spec")]

    # --- loading ---------------------------------------------------------------------------

    def load(self, configuration: Configuration, *, defaults: Sequence[str] = DEFAULT_BROKER_PLUGINS) -> None:
        """Import, configure, order and register what ``[plugins]`` names.

        ``defaults`` is what ``"default"`` stands for there.

        Raises:
            PluginError: a plugin is not to be found, does not fit, or needs one that is not active.
            ConfigError: a plugin's table is wrong.
        """
        candidates = discovery.choose(configuration, defaults)
        known = discovery.known_names(configuration, candidates)
        for plugin in in_order([discovery.load(candidate) for candidate in candidates], configuration, known):
            try:
                config = configuration.plugin(plugin.name, plugin.declaration.config)
            except ConfigError as error:
                error.plugin = plugin.name
                raise
            self._register(plugin, config)
        classes: dict[str, type[Any] | None] = dict.fromkeys(known)
        classes.update({plugin.name: plugin.declaration.config for plugin in self.active.values()})
        configuration.check_plugins(classes)
        self._resolve()

    def _register(self, found: discovery.Found, config: Any) -> None:
        try:
            instance = found.plugin_class(config)
        except Exception as error:
            why = f"plugin {found.name!r} cannot be made: {type(error).__name__}: {error}"
            raise PluginError(why, found.name) from error
        plugin = ActivePlugin(found.name, instance, found.declaration, config, found.candidate)
        self._check_hooks(plugin)
        try:
            self._manager.register(instance, found.name)
        except pluggy.PluginValidationError as error:
            why = " ".join(str(error).split())
            raise PluginError(f"plugin {found.name!r} does not fit: {why}", found.name) from error
        self.active[found.name] = plugin

    def _check_hooks(self, plugin: ActivePlugin) -> None:
        known, whose = self.hook_names(), f"plugin {plugin.name!r}"
        for name in dir(type(plugin.instance)):
            function = getattr(type(plugin.instance), name)
            marks = getattr(function, f"{PROJECT}_impl", None)
            if marks is None:
                continue
            if name not in known:
                why = f"{whose} implements {name!r}, which is no hook; {nearest(name, known)}"
                raise PluginError(why, plugin.name)
            if marks.get("wrapper") or marks.get("hookwrapper"):
                why = f"{whose}: {name} is a wrapper; order plugins with before and after instead"
                raise PluginError(why, plugin.name)
            if name in PLAIN_ONLY and inspect.iscoroutinefunction(function):
                why = f"{whose}: {name} must be a plain def, since its answer is needed at once"
                raise PluginError(why, plugin.name)

    def _resolve(self) -> None:
        """Turn pluggy's registrations into the lists that are called, in the order they are called."""
        for hook, calls in self._lists.items():
            specification = list(inspect.signature(getattr(hookspecs, hook)).parameters)
            resolved = []
            # pluggy keeps implementations last-registered-first-called and so iterates from the end; ours
            # are called in the order in which the plugins were put, with tryfirst and trylast respected.
            caller = getattr(self._manager.hook, hook)
            for implementation in _first_registered_first(caller.get_hookimpls()):
                plugin = self.active[implementation.plugin_name]
                if plugin.state != "active" and not (hook in REFUSING and plugin.declaration.on_failure == "closed"):
                    continue
                call = plugin.calls.get(hook)
                if call is None:
                    function = adapted(implementation.function, implementation.argnames, specification)
                    call = HookCall(plugin, hook, function, concern_of(implementation.function), self.give_up)
                    plugin.calls[hook] = call
                resolved.append(call)
            calls[:] = resolved
        self.missing = {
            name: builtin.name
            for builtin in BUILTIN.values()
            if not self.is_active(builtin.name)
            for name in builtin.properties
        }
        concerned = frozenset[str]().union(*[call.concern.properties for call in self.before_append])
        self.concerned_properties = concerned | frozenset(self.missing)

    # --- asking about plugins --------------------------------------------------------------

    def is_active(self, name: str) -> bool:
        plugin = self.active.get(name)
        return plugin is not None and plugin.state == "active"

    def calls(self, hook: str) -> list[HookCall]:
        """Who implements a hook, in the order of the calls."""
        return self._lists[hook]

    def topic_is_concerned(self, topic: str) -> bool:
        """Whether some plugin wants to see every message that is sent to this topic."""
        return any(
            call.concern.everything or (call.concern.topic_prefixes and topic.startswith(call.concern.topic_prefixes))
            for call in self.before_append
        )

    def give_up(self, plugin: ActivePlugin, hook: str, error: Exception) -> None:
        """What the plugin declared for the case that it keeps failing."""
        reason = f"plugin {plugin.name!r} failed {plugin.declaration.patience} times in a row in {hook}: {error}"
        if plugin.declaration.when_it_keeps_failing == "stop":
            self._stop(f"{reason}; it declares that the broker must not go on without it")
            return
        plugin.state = "switched off"
        plugin.reason = reason
        logger.error("%s; it is switched off until the broker restarts", reason)
        if plugin.declaration.on_failure == "closed":
            # Switched off must not mean let through, or whoever can make it stumble gets past it.
            for call in plugin.calls.values():
                call.function = partial(_refuse, f"{reason}; it is switched off, and nothing passes without it")
        for scope in plugin.service_scopes:
            scope.cancel()
        self._resolve()

    # --- calling: a typed method per kind of call ------------------------------------------

    def announce(self, hook: str, *arguments: Any) -> None:
        """Tell everybody, now. For hooks that are plain functions."""
        for call in tuple(self._lists[hook]):
            call(*arguments)

    async def announce_and_wait(
        self, hook: str, *arguments: Any, reverse: bool = False, limit: float | None = None
    ) -> None:
        """Tell everybody, one after the other, waiting for those that are ``async``, ``limit`` seconds for each."""
        calls = tuple(self._lists[hook])
        for call in reversed(calls) if reverse else calls:
            result = call(*arguments)
            if inspect.isawaitable(result):
                with anyio.move_on_after(limit, shield=limit is not None) as scope:
                    await result
                if scope.cancelled_caught:
                    call.failed(TimeoutError(f"it took longer than {limit:g} s"))

    def ask_all(self, hook: str, *arguments: Any) -> Iterator[tuple[ActivePlugin, Any]]:
        """Everybody's answer that is not ``None``, with whose it is."""
        for call in tuple(self._lists[hook]):
            answer = call(*arguments)
            if answer is not None:
                yield call.plugin, answer

    def ask(self, hook: str, *arguments: Any) -> Any:
        """The first answer that is not ``None``."""
        for call in tuple(self._lists[hook]):
            answer = call(*arguments)
            if answer is not None:
                return answer
        return None

    def compile_filter(self, subscription: Subscription) -> MessageFilter | None:
        for call in tuple(self._lists["compile_filter"]):
            answer = call(subscription)
            if isinstance(answer, MessageFilter):
                return answer if answer.test is None else attrs.evolve(answer, test=guarded_test(call, answer.test))
            if answer is not None:
                call.failed(TypeError(f"its answer is {answer!r}, expected a MessageFilter or None"))
        return None

    def rewrite(self, message: PendingMessage, connection: Connection | None) -> Awaitable[None] | None:
        """Give every concerned plugin its chance to change or refuse a message.

        Returns something to await if one of them is ``async``.

        Raises:
            RequestRefused: a plugin refuses the message, or failed and fails closed.
        """
        # A copy of the list: a plugin that gives up changes it, and then the next one must not be passed over.
        calls = tuple(self.before_append)
        for position, call in enumerate(calls):
            if call.concerns(message):
                waiting = call(message, connection, undo=message.way_back())
                if waiting is not None:
                    return self._rewrite_after(waiting, calls[position + 1 :], message, connection)
        return None

    async def _rewrite_after(
        self, waiting: Awaitable[None], others: Sequence[HookCall], message: PendingMessage,
        connection: Connection | None,
    ) -> None:  # fmt: skip
        await waiting
        for call in others:
            if call.concerns(message):
                again = call(message, connection, undo=message.way_back())
                if again is not None:
                    await again

    def guard(self, request: Command, connection: Connection) -> Awaitable[None] | None:
        """Let every plugin refuse or delay a request; an awaitable if one of them is ``async``."""
        calls = tuple(self.before_request)
        for position, call in enumerate(calls):
            waiting = call(request, connection)
            if waiting is not None:
                return self._guard_after(waiting, calls[position + 1 :], request, connection)
        return None

    async def _guard_after(
        self, waiting: Awaitable[None], others: Sequence[HookCall], request: Command, connection: Connection
    ) -> None:
        await waiting
        for call in others:
            again = call(request, connection)
            if again is not None:
                await again


def _refuse(why: str, *arguments: Any) -> NoReturn:
    raise RequestRefused(why)


def _first_registered_first(implementations: Sequence[Any]) -> list[Any]:
    """pluggy's list is [trylast …, normal …, tryfirst …], each in order of registration, called from the end."""
    first = [i for i in implementations if i.tryfirst]
    last = [i for i in implementations if i.trylast]
    normal = [i for i in implementations if not i.tryfirst and not i.trylast]
    return [*first, *normal, *last]
