"""What ``verniermq plugins`` shows: every plugin there is, whether it would run, and if not, why."""

from __future__ import annotations

from typing import Any, Literal

import attrs

from verniermq.cli.rocketmqconf import told
from verniermq.kernel.broker import Broker
from verniermq.kernel.config import Configuration, settings_of, without_secrets
from verniermq.kernel.errors import ConfigError, PluginError
from verniermq.kernel.host import discovery
from verniermq.kernel.host.builtin import BROKER_PLUGINS
from verniermq.kernel.host.host import PluginHost


@attrs.frozen
class PluginEntry:
    """One plugin."""

    name: str
    state: Literal["active", "inactive", "failed"]
    origin: str
    version: str = ""
    summary: str = ""
    hooks: tuple[str, ...] = ()
    settings: dict[str, Any] = attrs.Factory(dict)
    reason: str = ""
    """Why it is not active."""


@attrs.frozen
class Inventory:
    entries: tuple[PluginEntry, ...]
    order: dict[str, tuple[str, ...]]
    """Hook → the plugins that implement it, in the order of the calls."""


def take_inventory(configuration: Configuration) -> Inventory:
    """Load the plugins as a broker would, and note what does not work instead of stopping at it.

    Raises:
        PluginError: ``[plugins]`` names something that does not exist.
    """
    failed: dict[str, str] = {}
    while True:
        host = Broker(configuration).host
        without = attrs.evolve(configuration.plugins, disable=(*configuration.plugins.disable, *failed))
        try:
            host.load(attrs.evolve(configuration, plugins=without))
            break
        except (PluginError, ConfigError) as error:
            if error.plugin is None or error.plugin in failed:
                raise
            failed[error.plugin] = told(error)
    candidates = {name: discovery.built_in(name, BROKER_PLUGINS) for name in BROKER_PLUGINS.builtin}
    candidates |= discovery.installed(BROKER_PLUGINS.group)
    entries = [_active(host, name) for name in host.active]
    for name, reason in failed.items():
        origin = candidates[name].origin if name in candidates else "broker.toml"
        entries.append(PluginEntry(name, "failed", origin, reason=reason))
    for name, candidate in candidates.items():
        if name not in host.active and name not in failed:
            reason = "in [plugins] disable" if name in configuration.plugins.disable else "not in [plugins] enable"
            entries.append(PluginEntry(name, "inactive", candidate.origin, candidate.version, reason=reason))
    order = {hook: tuple(call.plugin.name for call in host.implementations(hook)) for hook in host.hook_names}
    return Inventory(tuple(entries), {hook: names for hook, names in order.items() if names})


def _active(host: PluginHost, name: str) -> PluginEntry:
    plugin = host.active[name]
    return PluginEntry(
        name,
        "active",
        plugin.candidate.origin,
        plugin.candidate.version,
        plugin.declaration.summary,
        tuple(hook for hook in host.hook_names if hook in plugin.calls),
        {
            key: without_secrets(getattr(plugin.config, setting.attribute.name), setting)
            for key, setting in settings_of(type(plugin.config)).items()
        },
    )
