"""What a plugin says of itself, and the marks it puts on its hooks.

A plugin is a class with a ``declaration``; the host makes one instance per broker (or client) from its
table in ``broker.toml`` and what it may use of its broker (or client)::

    @attrs.define(eq=False)            # pluggy compares plugins; two with equal settings are still two
    class Plugin:
        declaration: ClassVar = Declaration(api=1, config=Config, summary="Refuses messages without a key.")
        config: Config
        broker: Context

        def setup(self, registry: Registry) -> None:      # only if it brings something
            registry.handler(RequestCode.QUERY_MESSAGE, self.query)

        @hookimpl
        def before_append(self, message: PendingMessage) -> None:
            ...
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple, TypeVar

import attrs
import pluggy

from verniermq.kernel.errors import PluginError
from verniermq.kernel.hookspec import PROJECT
from verniermq.kernel.message import PendingMessage

API_VERSION: Final = 1
"""Raised when a hook changes in a way that an existing plugin would notice."""

hookimpl = pluggy.HookimplMarker(PROJECT)
"""Marks a method of a plugin as the implementation of the hook of its name."""

_Function = TypeVar("_Function", bound=Callable[..., Any])


@attrs.frozen
class NoConfig:
    """The settings of a plugin that has none."""


class Attribute(NamedTuple):
    """An attribute of topics or groups that has an effect, and its values: texts, or whole numbers of a range."""

    name: str
    values: tuple[str, ...] | range

    def allows(self, name: str, value: str) -> bool:
        if name != self.name:
            return False
        if isinstance(self.values, range):
            return value.isdecimal() and len(value) < 20 and int(value) in self.values
        return value in self.values

    @property
    def expected(self) -> str:
        if isinstance(self.values, range):
            return f"{self.values[0]} to {self.values[-1]}"
        return ", ".join(self.values)


@attrs.frozen(kw_only=True)
class Declaration:
    """What the host has to know before it makes an instance.

    ``on_failure`` says what one exception means: ``"open"`` goes on as if the plugin were not there (a
    trace is lost, the message is not), ``"closed"`` refuses the request (access control must not be passed
    by making it stumble). ``when_it_keeps_failing`` says what happens after ``patience`` failures of one
    hook in a row: the plugin is switched off, or the broker stops. Refused requests do not count: peers could cause
    them.
    """

    api: int
    summary: str
    version: str = ""
    config: type[Any] = NoConfig
    needs: tuple[str, ...] = ()
    """Plugins that must be active too."""
    packages: tuple[str, ...] = ()
    """Python packages that must be installed, by the names that they are imported by."""
    install: str = ""
    """What pip installs them with, such as ``verniermq[grpc]``; without it, their own names."""
    before: tuple[str, ...] = ()
    """Plugins that hear of everything after this one, if they are active."""
    after: tuple[str, ...] = ()
    requests: tuple[int, ...] = ()
    """The request codes that it serves; without it, such a request is refused with the name of the plugin."""
    properties: tuple[str, ...] = ()
    """A message that carries one of these needs this plugin; without it, the message is refused with its name."""
    expressions: tuple[str, ...] = ()
    """The types of subscription that it understands."""
    topic_attributes: tuple[Attribute, ...] = ()
    """What topics may carry because of it; without it, such an attribute is refused with the name of the plugin."""
    group_attributes: tuple[Attribute, ...] = ()
    hookspecs: tuple[Callable[..., Any], ...] = ()
    """Hooks of its own, for other plugins to implement with ``@hookimpl(optionalhook=True)``."""
    gives_roles: bool = False
    """It makes brokers masters and slaves; without such a plugin every broker is a master."""
    on_failure: Literal["open", "closed"] = "open"
    when_it_keeps_failing: Literal["switch off", "stop"] = "switch off"
    patience: int = 10


class Concern(NamedTuple):
    """Which messages a ``before_append`` implementation wants to see at all."""

    properties: frozenset[str] = frozenset()
    topic_prefixes: tuple[str, ...] = ()

    def covers_topic(self, topic: str) -> bool:
        """Whether it is about each message to this topic."""
        return topic.startswith(self.topic_prefixes) if self.topic_prefixes else not self.properties

    def covers(self, message: PendingMessage) -> bool:
        return not self.properties.isdisjoint(message.properties) or self.covers_topic(message.topic)


EVERYTHING: Final = Concern()
_CONCERN = "verniermq_concern"


def concerns(
    *, properties: tuple[str, ...] = (), topic_prefixes: tuple[str, ...] = ()
) -> Callable[[_Function], _Function]:
    """Mark a ``before_append`` implementation that only some messages concern.

    The kernel asks one question for all such plugins together, so that a message that carries none of the
    properties and goes to none of the topics costs nothing, however many plugins there are::

        @hookimpl
        @concerns(properties=("DELAY",))
        def before_append(self, message): ...
    """
    concern = Concern(frozenset(properties), topic_prefixes)

    def mark(function: _Function) -> _Function:
        setattr(function, _CONCERN, concern)
        return function

    return mark


def concern_of(function: Callable[..., Any]) -> Concern:
    found: Concern = getattr(function, _CONCERN, EVERYTHING)
    return found


_GATHERED = "verniermq_gathered"


def gathered(function: _Function) -> _Function:
    """Mark an implementation of ``messages_dispatched`` or ``messages_appended`` that is in no hurry.

    It is then not called in every turn of the loop but every 50 ms, with all that came meanwhile, which costs a
    broker under light load next to nothing. ``broker.catch_up()`` lets it hear everything now::

        @hookimpl
        @gathered
        def messages_dispatched(self, events): ...
    """
    setattr(function, _GATHERED, True)
    return function


def is_gathered(function: Callable[..., Any]) -> bool:
    return bool(getattr(function, _GATHERED, False))


def declaration_of(plugin_class: Any, where: str) -> Declaration:
    """The declaration of what a name led to.

    Raises:
        PluginError: it is no plugin class, or was written for another API version.
    """
    declaration = getattr(plugin_class, "declaration", None)
    if not isinstance(declaration, Declaration):
        raise PluginError(f"{where} is no plugin: it lacks 'declaration: ClassVar = Declaration(api={API_VERSION}, …)'")
    if declaration.api != API_VERSION:
        raise PluginError(
            f"{where} was written for plugin API {declaration.api}, this VernierMQ has {API_VERSION}; "
            f"install a version of the plugin for API {API_VERSION}"
        )
    return declaration
