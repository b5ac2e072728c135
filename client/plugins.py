"""The plugins of a client, loaded by the same host as a broker's and configured by the same kind of table.

::

    Producer("orders", plugins=["my_audit:Plugin"])
    PushConsumer("billing", plugins={"allocate": {"virtual_nodes": 20}})
    PushConsumer("billing", plugins="client.toml")           # its table [plugins]

``"default"`` in ``enable`` stands for what the client itself needs: ``allocate`` for consumers, ``fault`` for a
producer with a fault strategy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from verniermq.client.options import Plugins
from verniermq.kernel import PluginHost
from verniermq.kernel.config import load


def make_host(plugins: Plugins, defaults: Sequence[str]) -> PluginHost:
    """A host with the plugins loaded.

    Raises:
        PluginError: a plugin is not to be found or does not fit.
        ConfigError: a table is wrong.
    """
    host = PluginHost()
    path: Path | None = None
    overrides: dict[str, Any] = {}
    if isinstance(plugins, str | Path) and str(plugins).endswith(".toml"):
        path = Path(plugins)
    elif isinstance(plugins, str | Path):
        overrides["plugins.enable"] = ["default", str(plugins)]
    elif isinstance(plugins, Mapping):
        overrides = {f"plugins.{name}": value for name, value in plugins.items()}
    elif plugins:
        overrides["plugins.enable"] = ["default", *plugins]
    if path is None and not overrides and not defaults:
        return host
    host.load(load(path, overrides, environ={}), defaults=defaults)
    return host
