"""Plugins that a test module defines, made active the way ``broker.toml`` would."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import attrs

from verniermq.kernel import Broker, ClientContext, Command, Context, Message, VernierMQError
from verniermq.kernel.config import Configuration, load
from verniermq.kernel.host.brokerhost import BrokerHost


def enabled(*before: str, **classes: type) -> dict[str, Any]:
    """Settings for ``running_broker``: these classes under these names, after the plugins named first."""
    settings: dict[str, Any] = {"plugins__enable": [*before, *classes]}
    for name, plugin_class in classes.items():
        settings[f"plugins__{name}__from"] = f"{plugin_class.__module__}:{plugin_class.__qualname__}"
    return settings


def configured(**settings: Any) -> Configuration:
    """A configuration from settings with ``__`` for the dot, and from nothing else."""
    return load(None, {key.replace("__", "."): value for key, value in settings.items()}, environ={})


def loaded(**settings: Any) -> BrokerHost:
    """The host of a broker that is not started, with the plugins that the settings name."""
    return loaded_from(configured(**settings))


def loaded_from(configuration: Configuration) -> BrokerHost:
    host = Broker(configuration).host
    host.load(configuration)
    return host


def context() -> Context:
    """What a broker's plugin gets beside its settings; of a broker that is not started."""
    return Context(Broker(configured()))


@attrs.frozen
class Offline:
    """A client that is not connected, as its plugins see it."""

    client_id: str = "10.0.0.5@7"
    group: str = "billing"

    async def post(self, message: Message) -> None:
        raise VernierMQError("not connected")

    def broker_address(self, broker_name: str) -> str | None:
        return None

    async def request(self, address: str, command: Command, timeout: float) -> Command:
        raise VernierMQError("not connected")

    def spawn(self, work: Callable[[], Awaitable[None]]) -> None: ...


def client_context() -> ClientContext:
    """What a client's plugin gets beside its settings."""
    return Offline()
