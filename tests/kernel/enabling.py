"""Plugins that a test module defines, made active the way ``broker.toml`` would."""

from __future__ import annotations

from typing import Any

from verniermq.kernel import PluginHost
from verniermq.kernel.config import Configuration, load


def enabled(*before: str, **classes: type) -> dict[str, Any]:
    """Settings for ``running_broker``: these classes under these names, after the plugins named first."""
    settings: dict[str, Any] = {"plugins__enable": [*before, *classes]}
    for name, plugin_class in classes.items():
        settings[f"plugins__{name}__from"] = f"{plugin_class.__module__}:{plugin_class.__qualname__}"
    return settings


def configured(**settings: Any) -> Configuration:
    """A configuration from settings with ``__`` for the dot, and from nothing else."""
    return load(None, {key.replace("__", "."): value for key, value in settings.items()}, environ={})


def loaded(**settings: Any) -> PluginHost:
    """A host with the plugins that the settings name."""
    host = PluginHost()
    host.load(configured(**settings))
    return host
