"""A broker's plugins on the path of a message: which messages concern them, which filters they compile."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import attrs

from verniermq.kernel import hookspecs
from verniermq.kernel.config import Configuration
from verniermq.kernel.errors import ConfigError, MessageIllegal, PluginError, PluginMissing
from verniermq.kernel.host import discovery
from verniermq.kernel.host.builtin import BROKER_PLUGINS
from verniermq.kernel.host.hookcall import ActivePlugin, guarded_test
from verniermq.kernel.host.host import PluginHost
from verniermq.kernel.maybe import in_turn, watched
from verniermq.kernel.message import MessageFilter, PendingMessage, Subscription
from verniermq.kernel.names import WISHES
from verniermq.kernel.refusals import REFUSED_PROPERTIES
from verniermq.kernel.remoting.command import Command
from verniermq.kernel.remoting.connection import Connection, Guard

logger = logging.getLogger(__name__)


class BrokerHost(PluginHost):
    """The plugins of one broker."""

    def __init__(self, context: Callable[[], Any], stop: Callable[[str], None] | None = None) -> None:
        super().__init__(hookspecs, BROKER_PLUGINS, context, stop)
        self.concerned_properties: frozenset[str] = frozenset()
        """A message that carries none of these concerns no plugin, unless its topic does."""
        self._unserved: frozenset[str] = frozenset()
        """The wishes of messages that no active plugin serves."""
        self._before_append = self.calls(hookspecs.before_append)
        self._before_request = self.calls(hookspecs.before_request)
        self._compile_filter = self.calls(hookspecs.compile_filter)
        self.guards: list[Guard] = []
        """What a request passes before it is served: the question of access, if a plugin answers it, and the others."""
        self.access_guard: Guard | None = None
        self.generation = 0
        """Another number each time that answers of :meth:`sends_pass` may have changed."""

    def load(self, configuration: Configuration, *, defaults: tuple[str, ...] = ()) -> None:  # type: ignore[override]
        super().load(configuration, defaults=defaults)
        served = [plugin.declaration.properties for plugin in self.active.values()]
        self._unserved = WISHES.difference(*served)
        self._resolve()
        self._warn_of_idle_tables(configuration)

    def _warn_of_idle_tables(self, configuration: Configuration) -> None:
        """Say once that settings do nothing, since their plugins are not active."""
        if not configuration.plugins.enable:
            return  # nothing is wanted at all
        idle = [name for name in self.idle_tables(configuration) if self._says_something(configuration, name)]
        if idle:
            line = ", ".join(f'"{name}"' for name in (*configuration.plugins.enable, *idle))
            tables = ", ".join(f"[plugins.{name}]" for name in idle)
            logger.warning(
                "%s: %s: not enabled, so these settings do nothing; enable with [plugins] enable = [%s]",
                configuration.origin.file, tables, line,
            )  # fmt: skip

    def _says_something(self, configuration: Configuration, name: str) -> bool:
        """Whether a table says more than the defaults do. Only a built-in plugin is imported to find out."""
        if name not in self.catalogue.builtin:
            return bool(configuration.plugin_tables[name])
        try:
            settings = discovery.load(discovery.built_in(name, self.catalogue)).declaration.config
            return bool(configuration.plugin(name, settings) != settings())
        except (ConfigError, PluginError, TypeError):
            return True  # a wrong value, or a setting that has no default

    def _resolve(self) -> None:
        super()._resolve()
        guards: list[Guard] = [*self._before_request]
        if self.access_guard is not None and self.calls(hookspecs.before_access):
            guards.insert(0, self.access_guard)
        self.guards[:] = guards
        self.ask_again()
        concerned = frozenset[str]().union(*[call.concern.properties for call in self._before_append])
        self.concerned_properties = concerned | self._unserved | frozenset(REFUSED_PROPERTIES)

    def topic_is_concerned(self, topic: str) -> bool:
        """Whether some plugin wants to see every message that is sent to this topic."""
        return any(call.concern.covers_topic(topic) for call in self._before_append)

    def before_append(self, message: PendingMessage, connection: Connection | None) -> Iterator[Awaitable[None] | None]:
        """Give every concerned plugin its chance to change or refuse a message: steps for :func:`in_turn`.

        Raises:
            RequestRefused: a plugin refuses the message, or failed and fails closed, or is needed and not active, or
                nothing here serves a property of it.
        """
        for name in REFUSED_PROPERTIES.keys() & message.properties.keys():
            raise MessageIllegal(f"a message with the property {name} is refused: {REFUSED_PROPERTIES[name]}")
        for name in self._unserved & message.properties.keys():
            if message.properties[name] not in ("0", "false"):
                raise PluginMissing(self._server_of_wish(name), f"a message with the property {name}")
        # A copy of the list: a plugin that gives up changes it, and then the next one must not be passed over.
        for call in tuple(self._before_append):
            if call.concern.covers(message):
                yield call(message, connection, undo=message.way_back())

    def guard(self, request: Command, connection: Connection) -> Awaitable[None] | None:
        """Ask about a request that is served elsewhere, as about any other; ``request_served`` follows at once.

        Raises:
            RequestRefused: a plugin refuses it.
        """
        calls = tuple(self.guards)
        return watched(
            lambda: in_turn(call(request, connection) for call in calls),
            lambda _, error: self.announce(
                hookspecs.request_served, request, connection, None, connection.reason(error), 0
            ),
        )

    def sends_pass(self, group: str, topic: str, connection: Connection) -> bool:
        """Whether plain sends of a peer need not be asked about one by one: all that would be asked or told say so."""
        hooks = (hookspecs.before_access, hookspecs.before_request, hookspecs.request_served)
        plugins = {call.plugin.name: call.plugin for hook in hooks for call in self.calls(hook)}
        return all(_lets_pass(plugin, group, topic, connection) for plugin in plugins.values())

    def ask_again(self) -> None:
        """What plugins said in ``Registry.sends_pass`` may be true no longer."""
        self.generation += 1

    def give_settings(self, plugin: ActivePlugin, config: Any) -> None:
        try:
            super().give_settings(plugin, config)
        finally:
            self.ask_again()

    def compile_filter(self, subscription: Subscription) -> MessageFilter | None:
        """The filter of the first plugin that understands the subscription."""
        for call in tuple(self._compile_filter):
            answer = call(subscription)
            if isinstance(answer, MessageFilter):
                return answer if answer.test is None else attrs.evolve(answer, test=guarded_test(call, answer.test))
            if answer is not None:
                call.failed(TypeError(f"its answer is {answer!r}, expected a MessageFilter or None"))
        return None

    def _server_of_wish(self, property_: str) -> str:
        return next(name for name, declared in self.others().items() if property_ in declared.properties)

    def check_role(self, broker_id: int) -> None:
        """
        Raises:
            ConfigError: ``[broker] id`` makes the broker a slave, and no active plugin copies a master.
        """
        if broker_id == 0 or any(plugin.declaration.gives_roles for plugin in self.active.values()):
            return
        names = [name for name, declared in self.others().items() if declared.gives_roles]
        enable = ", ".join(f'"{name}"' for name in ("default", *names[:1]))
        raise ConfigError(
            f"[broker] id = {broker_id} makes a slave, which needs a plugin that copies its master: "
            f"set [plugins] enable = [{enable}], or id = 0 for a master"
        )

    def server_of(self, code: int) -> str | None:
        """The built-in plugin that would serve a request, if it were active."""
        return next((name for name, declared in self.others().items() if code in declared.requests), None)

    def reader_of(self, expression_type: str) -> str | None:
        """The built-in plugin that would understand a subscription, if it were active."""
        return next((name for name, one in self.others().items() if expression_type in one.expressions), None)


def _lets_pass(plugin: ActivePlugin, group: str, topic: str, connection: Connection) -> bool:
    if plugin.sends_pass is None or plugin.state != "active":
        return False
    try:
        return plugin.sends_pass(group, topic, connection)
    except Exception:
        logger.exception("plugin failed plugin=%s sends_pass group=%s topic=%s", plugin.name, group, topic)
        return False
