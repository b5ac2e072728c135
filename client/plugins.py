"""The plugins of a client, loaded by the same host as a broker's and configured by the same kind of table.

::

    Producer("orders", plugins=["my_audit:Plugin"])
    PushConsumer("billing", plugins={"allocate": {"virtual_nodes": 20}})
    PushConsumer("billing", plugins="client.toml")           # its table [plugins]

``"default"`` in ``enable`` stands for what the client itself needs: ``allocate`` for consumers, ``fault`` for a
producer with a fault strategy. A client has these also if ``enable`` does not say so; ``disable`` takes them away.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from verniermq.client import hookspecs
from verniermq.client.options import Plugins
from verniermq.kernel import Catalogue, ClientContext, ConfigError, PluginHost
from verniermq.kernel.config import Configuration, configuration_of, load, put

DEFAULT: Final = "default"
SOURCE: Final = "plugins="
"""What messages call a table that came as an argument."""
_OWN_SWITCHES: Final = {
    "allocate": "only consumers share queues",
    "fault": 'name a strategy as well, such as fault="latency"',
}
"""What makes a client enable these by itself."""

CLIENT_PLUGINS: Final = Catalogue(
    {
        "allocate": "verniermq.plugins.allocate:Plugin",
        "fault": "verniermq.plugins.fault:Plugin",
        "flow": "verniermq.plugins.flow.client:ClientPlugin",
        "enrich": "verniermq.plugins.sendhooks.enrich:ClientPlugin",
        "audit": "verniermq.plugins.sendhooks.audit:ClientPlugin",
        "trace": "verniermq.plugins.sendhooks.trace:ClientPlugin",
        "otel": "verniermq.contrib.otel:ClientPlugin",
    },
    group="verniermq.client",
    attribute="ClientPlugin",
)
"""The built-in plugins that live in clients. A client says itself what ``"default"`` stands for."""


def make_host(plugins: Plugins, defaults: Sequence[str], context: Callable[[], ClientContext]) -> PluginHost:
    """A host with the plugins loaded.

    Raises:
        PluginError: a plugin is not to be found or does not fit.
        ConfigError: a table is wrong.
    """
    host = PluginHost(hookspecs, CLIENT_PLUGINS, context)
    if not plugins and not defaults:
        return host
    configuration = _configuration(plugins)
    wanted = configuration.plugins.enable
    if DEFAULT not in wanted:
        # Whoever adds a plugin keeps what the client itself needs; disable takes that away.
        settings = attrs.evolve(configuration.plugins, enable=(DEFAULT, *wanted))
        configuration = attrs.evolve(configuration, plugins=settings)
    host.load(configuration, defaults=defaults)
    _refuse_idle_tables(host, configuration, wanted)
    return host


def _configuration(plugins: Plugins) -> Configuration:
    if isinstance(plugins, str | Path) and str(plugins).endswith(".toml"):
        return load(Path(plugins), environ={})
    if isinstance(plugins, Mapping):
        document: dict[str, Any] = {}
        for name, value in plugins.items():
            put(document, f"plugins.{name}", value)  # a name may have dots: {"allocate.virtual_nodes": 20}
        return configuration_of(document, SOURCE)
    names = [str(plugins)] if isinstance(plugins, str | Path) else list(plugins)
    return configuration_of({"plugins": {"enable": [DEFAULT, *names]}}, SOURCE)


def _refuse_idle_tables(host: PluginHost, configuration: Configuration, wanted: Sequence[str]) -> None:
    """
    Raises:
        ConfigError: settings of a plugin that is not enabled, which would do nothing.
    """
    source = configuration.origin.file
    for name in host.idle_tables(configuration):
        if name in _OWN_SWITCHES:
            if source != SOURCE:
                continue  # a file that producers and consumers share
            cure = _OWN_SWITCHES[name]
        else:
            cure = "write enable = [{}] as well".format(", ".join(f'"{one}"' for one in (*wanted, name)))
        raise ConfigError(
            f"{source}: [plugins.{name}] has settings of a plugin that is not enabled, so they would do nothing; {cure}"
        )
