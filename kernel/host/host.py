"""The plugins of one broker or client: made, ordered, set up and called.

The host belongs to a broker or a client, never to the process, so two brokers can live in one test. pluggy
checks that implementations fit the specifications and keeps their order; the calls themselves go through
plain lists of :class:`~verniermq.kernel.host.hookcall.HookCall`, kept up to date in place, since every call is
counted, timed and contained.

Hooks are called by their specification, which makes the arguments type-checked::

    host.announce(hookspecs.topics_changed, changed, deleted)
    host.ask(hookspecs.compile_filter, subscription)
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NoReturn, ParamSpec, TypeVar

import anyio
import attrs
import pluggy

from verniermq.kernel.config import Configuration
from verniermq.kernel.errors import ConfigError, PluginError, RequestRefused, nearest
from verniermq.kernel.hookspec import PROJECT, HookKind, kind_of, specifications_in
from verniermq.kernel.host import discovery
from verniermq.kernel.host.builtin import Catalogue
from verniermq.kernel.host.hookcall import ActivePlugin, HookCall, adapted
from verniermq.kernel.host.order import in_order
from verniermq.kernel.host.plugin import Declaration, concern_of

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

GOODBYE_SECONDS: Final = 5.0
"""How long a plugin may take for what it does at the end."""


class _Manager(pluggy.PluginManager):
    """pluggy's, which looks at the marked methods of a plugin only: to look at all takes it a tenth of a start."""

    def parse_hookimpl_opts(self, plugin: Any, name: str) -> Any:
        marked = hasattr(getattr(type(plugin), name, None), f"{PROJECT}_impl")
        return super().parse_hookimpl_opts(plugin, name) if marked else None


class PluginHost:
    """The plugins of one broker or client.

    Args:
        specifications: the module of its hooks
        catalogue: where its plugins come from
        context: what a plugin's constructor gets beside its settings; called once the plugins are chosen
        stop: called with a sentence when a plugin that declared so keeps failing
    """

    def __init__(
        self,
        specifications: Any,
        catalogue: Catalogue,
        context: Callable[[], Any],
        stop: Callable[[str], None] | None = None,
    ) -> None:
        self.active: dict[str, ActivePlugin] = {}
        self.catalogue = catalogue
        self._context = context
        self._stop = stop or (lambda reason: logger.critical("%s", reason))
        self._manager = _Manager(PROJECT)
        self._specifications: dict[str, Callable[..., Any]] = {}
        self._kinds: dict[str, HookKind] = {}
        self._lists: dict[str, list[HookCall]] = {}
        self._others: dict[str, Declaration] | None = None
        self._specify(specifications_in(specifications))

    def _specify(self, specifications: dict[str, Callable[..., Any]]) -> None:
        self._manager.add_hookspecs(type("Specifications", (), {n: staticmethod(f) for n, f in specifications.items()}))
        for name, specification in specifications.items():
            kind = kind_of(specification)
            assert kind is not None
            self._specifications[name] = specification
            self._kinds[name] = kind
            self._lists.setdefault(name, [])

    @property
    def hook_names(self) -> list[str]:
        """All hooks, in the order of the pages that specify them."""
        return list(self._specifications)

    # --- loading ---------------------------------------------------------------------------

    def load(self, configuration: Configuration, *, defaults: Sequence[str] = ()) -> None:
        """Import, configure, order and register what ``[plugins]`` names.

        Args:
            defaults: what ``"default"`` stands for there, if not what the catalogue says

        Raises:
            PluginError: a plugin is not to be found, does not fit, or needs another, or a package, that is not there.
            ConfigError: a plugin's table is wrong.
        """
        catalogue = self.catalogue
        candidates = discovery.choose(configuration, catalogue, defaults or catalogue.defaults)
        known = discovery.known_names(configuration, catalogue, candidates)
        found = [discovery.load(candidate, catalogue.attribute) for candidate in candidates]
        plugins = in_order(found, configuration, known)
        for plugin in plugins:
            discovery.check_packages(plugin)
            self._specify_own(plugin)
        for plugin in plugins:
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

    def _specify_own(self, found: discovery.Found) -> None:
        for specification in found.declaration.hookspecs:
            name = specification.__name__
            if kind_of(specification) is None or name in self._specifications:
                why = "is not marked with hookspec" if kind_of(specification) is None else "is specified already"
                raise PluginError(f"plugin {found.name!r} declares the hook {name!r}, which {why}", found.name)
            self._specify({name: specification})

    def _register(self, found: discovery.Found, config: Any) -> None:
        try:
            instance = found.plugin_class(config, self._context())
        except (PluginError, ConfigError) as error:
            error.plugin = found.name
            raise
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
        known, whose = self.hook_names, f"plugin {plugin.name!r}"
        for name in dir(type(plugin.instance)):
            function = getattr(type(plugin.instance), name)
            marks = getattr(function, f"{PROJECT}_impl", None)
            if marks is None:
                continue
            if name not in known:
                if marks.get("optionalhook"):
                    continue  # the plugin that brings the hook is not active
                why = f"{whose} implements {name!r}, which is no hook; {nearest(name, known)}"
                raise PluginError(why, plugin.name)
            if marks.get("wrapper") or marks.get("hookwrapper"):
                why = f"{whose}: {name} is a wrapper; order plugins with before and after instead"
                raise PluginError(why, plugin.name)
            if not self._kinds[name].may_wait and inspect.iscoroutinefunction(function):
                why = f"{whose}: {name} must be a plain def, since its answer is needed at once"
                raise PluginError(why, plugin.name)

    def _resolve(self) -> None:
        """Turn pluggy's registrations into the lists that are called, in the order they are called."""
        for hook, calls in self._lists.items():
            kind = self._kinds[hook]
            resolved = []
            # pluggy keeps implementations last-registered-first-called and so iterates from the end; ours
            # are called in the order in which the plugins were put, with tryfirst and trylast respected.
            caller = getattr(self._manager.hook, hook)
            for implementation in _first_registered_first(caller.get_hookimpls()):
                plugin = self.active[implementation.plugin_name]
                if plugin.state != "active" and not (kind.guards and plugin.declaration.on_failure == "closed"):
                    continue
                call = plugin.calls.get(hook)
                if call is None:
                    wanted = list(inspect.signature(self._specifications[hook]).parameters)
                    function = adapted(implementation.function, implementation.argnames, wanted)
                    concern = concern_of(implementation.function)
                    call = plugin.calls[hook] = HookCall(plugin, hook, kind, function, concern, self.give_up)
                if not call.paused:
                    resolved.append(call)
            calls[:] = resolved

    # --- asking about plugins --------------------------------------------------------------

    def idle_tables(self, configuration: Configuration) -> list[str]:
        """The plugins that have a table and are not active, although ``disable`` does not name them."""
        disabled = configuration.plugins.disable
        return [name for name in configuration.plugin_tables if name not in self.active and name not in disabled]

    def is_active(self, name: str) -> bool:
        plugin = self.active.get(name)
        return plugin is not None and plugin.state == "active"

    def is_changeable(self, name: str) -> bool:
        """Whether a plugin takes other settings while the broker runs."""
        return self.is_active(name) and "settings_changed" in self.active[name].calls

    def change_settings(self, changes: Mapping[str, Mapping[str, object]]) -> None:
        """Give plugins, by name, other values of some settings, until the next start; all of them or none.

        Raises:
            ValueError: a value is not allowed.
        """
        changed = {name: attrs.evolve(self.active[name].config, **values) for name, values in changes.items()}
        for name, config in changed.items():
            self.give_settings(self.active[name], config)

    def give_settings(self, plugin: ActivePlugin, config: Any) -> None:
        """Let a plugin that takes other settings have them."""
        plugin.config = config
        plugin.calls["settings_changed"](config)

    def implementations(self, hook: str) -> list[HookCall]:
        """The same by the hook's name."""
        return self._lists[hook]

    def calls(self, specification: Callable[..., Any]) -> list[HookCall]:
        """The implementations of a hook in the order of the calls: a list that is kept up to date in place."""
        return self._lists[specification.__name__]

    def others(self) -> dict[str, Declaration]:
        """What the built-in plugins that are not active declare. The first call imports them."""
        if self._others is None:
            self._others = {}
            for name in self.catalogue.builtin:
                if name not in self.active:
                    try:
                        self._others[name] = discovery.load(discovery.built_in(name, self.catalogue)).declaration
                    except PluginError as error:
                        logger.debug("what the plugin %s would serve is not known: %s", name, error)
        return self._others

    def pause(self, plugin: object, specification: Callable[..., Any], *, paused: bool = True) -> None:
        """Take a plugin's implementation of a hook off the path, or put it back: for one with nothing to do.

        From ``store_opened`` on.

        Raises:
            PluginError: the plugin does not implement the hook, or is not made yet.
        """
        name = specification.__name__
        calls = [one.calls[name] for one in self.active.values() if one.instance is plugin and name in one.calls]
        if not calls:
            raise PluginError(f"{plugin!r} cannot pause {name}: it is no plugin of this host that implements it")
        calls[0].paused = paused
        self._resolve()

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

    # --- calling ---------------------------------------------------------------------------

    def announce(self, specification: Callable[P, Any], *arguments: P.args, **named: P.kwargs) -> None:
        """Call every plugin, now. For hooks that are plain functions; ``named`` is not used."""
        for call in tuple(self._lists[specification.__name__]):
            call(*arguments)

    async def announce_and_wait(self, specification: Callable[P, Any], *arguments: P.args, **named: P.kwargs) -> None:
        """Call every plugin, one after the other, and wait for those that are ``async``."""
        for call in tuple(self._lists[specification.__name__]):
            result = call(*arguments)
            if inspect.isawaitable(result):
                await result

    async def say_goodbye(self, specification: Callable[[], Any]) -> None:
        """The same at the end: the last plugin first, and each for a limited time."""
        for call in reversed(tuple(self._lists[specification.__name__])):
            result = call()
            if inspect.isawaitable(result):
                with anyio.move_on_after(GOODBYE_SECONDS, shield=True) as scope:
                    await result
                if scope.cancelled_caught:
                    call.failed(TimeoutError(f"it took longer than {GOODBYE_SECONDS:g} s"))

    def ask(self, specification: Callable[P, R | None], *arguments: P.args, **named: P.kwargs) -> R | None:
        """The first answer that is not ``None``."""
        return next(self.ask_all(specification, *arguments, **named), None)

    def ask_all(self, specification: Callable[P, R | None], *arguments: P.args, **named: P.kwargs) -> Iterator[R]:
        """Every plugin's answer that is not ``None``, in order."""
        for call in tuple(self._lists[specification.__name__]):
            answer = call(*arguments)
            if answer is not None:
                yield answer


def _refuse(why: str, *arguments: Any) -> NoReturn:
    raise RequestRefused(why)


def _first_registered_first(implementations: Sequence[Any]) -> list[Any]:
    """pluggy's list is [trylast …, normal …, tryfirst …], each in order of registration, called from the end."""
    first = [i for i in implementations if i.tryfirst]
    last = [i for i in implementations if i.trylast]
    normal = [i for i in implementations if not i.tryfirst and not i.trylast]
    return [*first, *normal, *last]
