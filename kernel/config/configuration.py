"""All settings of one broker, checked: the kernel's as classes, the plugins' as tables until their classes are known.

The plugin host asks in this order: ``place`` for each plugin that it may load, ``plugin`` with the class of each
that it did load, and at last ``check_plugins`` with all that it knows, which refuses what nobody asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import attrs

from verniermq.kernel.config.environment import FILE_SUFFIX, plugin_variables, refuse_variable, text_of, variable
from verniermq.kernel.config.fields import settings_of
from verniermq.kernel.config.filestamps import Stamp
from verniermq.kernel.config.schema import (
    BrokerSettings,
    ClientSettings,
    GroupSettings,
    LogSettings,
    OffsetSettings,
    PluginPlace,
    PluginSettings,
    PullSettings,
    RemotingSettings,
    StoreSettings,
    TlsSettings,
    TopicSettings,
)
from verniermq.kernel.config.structure import structure
from verniermq.kernel.config.text import PlainText
from verniermq.kernel.config.toml import toml_key
from verniermq.kernel.config.units import format_size
from verniermq.kernel.errors import ConfigError, nearest

T = TypeVar("T")

RESERVED_PLUGIN_KEYS = frozenset(settings_of(PluginPlace))
"""Keys of ``[plugins.<name>]`` that speak to the plugin host, not to the plugin."""


@attrs.frozen
class Origin:
    """Where the values came from, so that a mistake found later is still reported with its place."""

    file: str = "broker.toml"
    keys: Mapping[str, str] = attrs.field(factory=dict)
    """Dotted key → the environment variable or flag that gave it."""
    plugin_environment: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    """``VERNIERMQ_PLUGINS_…`` variables; which key they mean is known once the plugins' classes are."""
    files: Mapping[str, Stamp | None] = attrs.field(factory=dict, repr=False)
    """What was read, as it looked right before: ``broker.toml``, and what variables with ``_FILE`` name."""


@attrs.frozen
class Configuration:
    """Everything that ``broker.toml``, the environment and the flags say."""

    broker: BrokerSettings = attrs.field(factory=BrokerSettings)
    store: StoreSettings = attrs.field(factory=StoreSettings)
    topics: TopicSettings = attrs.field(factory=TopicSettings)
    groups: GroupSettings = attrs.field(factory=GroupSettings)
    pull: PullSettings = attrs.field(factory=PullSettings)
    remoting: RemotingSettings = attrs.field(factory=RemotingSettings)
    tls: TlsSettings = attrs.field(factory=TlsSettings)
    clients: ClientSettings = attrs.field(factory=ClientSettings)
    offsets: OffsetSettings = attrs.field(factory=OffsetSettings)
    log: LogSettings = attrs.field(factory=LogSettings)
    plugins: PluginSettings = attrs.field(factory=PluginSettings)
    plugin_tables: Mapping[str, Mapping[str, Any]] = attrs.field(factory=dict, repr=False)
    """``[plugins.<name>]`` as read. It may hold secrets, so it is never shown."""
    origin: Origin = attrs.field(factory=Origin, repr=False, eq=False)

    def __attrs_post_init__(self) -> None:
        largest = self.store.max_message_size + self.remoting.max_header_size
        if largest > self.remoting.max_frame_size:
            raise ConfigError(
                f"{self.origin.file}: [store] max_message_size = {format_size(self.store.max_message_size)} and "
                f"[remoting] max_header_size = {format_size(self.remoting.max_header_size)} do not fit into "
                f"[remoting] max_frame_size = {format_size(self.remoting.max_frame_size)}; raise the last one"
            )

    def plugin(self, name: str, cls: type[T]) -> T:
        """A plugin's settings, from its table, the environment and the flags.

        Raises:
            ConfigError: with one line about the first thing that is wrong
        """
        clash = RESERVED_PLUGIN_KEYS & settings_of(cls).keys()
        if clash:
            raise ConfigError(
                f"plugin {name!r} has a setting {min(clash)!r}, a name that [plugins.{name}] keeps for the order "
                "of plugins; its author has to rename it"
            )
        return self._structured(name, cls, keep=lambda key: key not in RESERVED_PLUGIN_KEYS)

    def place(self, name: str) -> PluginPlace:
        """What the plugin's table says about where it comes from and where in the order it stands."""
        return self._structured(name, PluginPlace, keep=RESERVED_PLUGIN_KEYS.__contains__)

    def check_plugins(self, known: Mapping[str, type | None]) -> None:
        """Refuse tables and variables of plugins that nobody knows.

        Args:
            known: every plugin that was found, with its class of settings; ``None`` for one that was
                found but not loaded, whose settings therefore cannot be checked
        """
        for name in self.plugin_tables:
            if name not in known:
                raise ConfigError(
                    f"{self._source(f'plugins.{name}')}: [plugins.{toml_key(name)}] is for a plugin that is not there; "
                    f"{nearest(name, known)}"
                )
        if not self.origin.plugin_environment:
            return
        variables: set[str] = set()
        for name, cls in known.items():
            variables.update(plugin_variables(name, cls))
        unread = tuple(variable(f"plugins.{name}") + "_" for name, cls in known.items() if cls is None)
        for name in self.origin.plugin_environment:
            if not {name, name.removesuffix(FILE_SUFFIX)} & variables and not name.startswith(unread):
                refuse_variable(name, variables)

    def source_of(self, dotted: str) -> str:
        """Where a value that is not the default came from: a flag, a variable, or else the file."""
        elsewhere = self.origin.keys.get(dotted)
        for name in (variable(dotted), variable(dotted) + FILE_SUFFIX):
            if elsewhere is None and name in self.origin.plugin_environment:
                elsewhere = name
        return elsewhere or self.origin.file

    def _structured(self, name: str, cls: type[T], keep: Any) -> T:
        where = f"plugins.{toml_key(name)}"
        table: dict[str, Any] = {key: value for key, value in self.plugin_tables.get(name, {}).items() if keep(key)}
        sources = dict(self.origin.keys)
        variables = plugin_variables(name, cls) if self.origin.plugin_environment else {}
        for name_of_variable, dotted in variables.items():
            text = text_of(self.origin.plugin_environment, name_of_variable)
            key = dotted.removeprefix(f"plugins.{name}.")
            # A flag goes before the environment, and is in the table already.
            if text is None or dotted in self.origin.keys or not keep(key.partition(".")[0]):
                continue
            put(table, key, PlainText(text))
            sources[dotted] = name_of_variable
        return structure(cls, table, where, self.origin.file, sources)

    def _source(self, dotted: str) -> str:
        """Where a table came from: the file, or the first flag that put something into it."""
        from_flags = [source for key, source in self.origin.keys.items() if key.startswith(dotted + ".")]
        return from_flags[0] if from_flags else self.origin.file


def put(table: dict[str, Any], dotted: str, value: object) -> None:
    """Set a value by its dotted key, in copies of the tables on the way."""
    first, _, rest = dotted.partition(".")
    if not rest:
        table[first] = value
        return
    inner = table.get(first)
    table[first] = dict(inner) if isinstance(inner, Mapping) else {}
    put(table[first], rest, value)
