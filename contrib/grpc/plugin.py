"""In the broker: starts and stops the gRPC port, and keeps the key that receipts are sealed with."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import attrs

from verniermq.kernel import ConfigError, Context, Declaration, Document, Registry, hookimpl, setting

if TYPE_CHECKING:
    from verniermq.contrib.grpc.server import GrpcServer


@attrs.frozen
class Config:
    """``[plugins.grpc]``"""

    port: int = setting(8081, "The port; 0 takes a free one.", at_least=0, at_most=65535)
    max_clients: int = setting(10_000, "How many clients may be connected at the same time.", at_least=1)
    max_calls: int = setting(
        30_000, "How many calls may be under way at the same time; receives that wait are among them.", at_least=1
    )


def make_server(broker: Context, config: Config, key: bytes) -> GrpcServer:
    """
    Raises:
        ConfigError: what the plugin needs is not installed.
    """
    # Here, so that its settings can be listed where gRPC is not installed.
    try:
        from verniermq.contrib.grpc.brokers import OwnBroker
        from verniermq.contrib.grpc.handles import Sealer
        from verniermq.contrib.grpc.server import GrpcServer
    except ImportError as error:
        if error.name is None or error.name.startswith("verniermq"):
            raise
        raise ConfigError(f"plugin 'grpc' needs {error.name}; install it with: pip install 'verniermq[grpc]'") from None
    return GrpcServer(OwnBroker(broker), Sealer(key), config.max_clients, config.max_calls)


@attrs.define(eq=False)
class Plugin:
    declaration: ClassVar = Declaration(
        api=1,
        config=Config,
        summary="Serves RocketMQ 5's clients, which speak gRPC.",
        needs=("pop",),
        on_failure="closed",
    )
    config: Config
    broker: Context
    port: int = attrs.field(default=0, init=False)
    """Where it listens."""
    _server: GrpcServer = attrs.field(init=False)
    _key: bytes = attrs.field(default=b"", init=False)
    _document: Document = attrs.field(init=False)

    def setup(self, registry: Registry) -> None:
        self._document = registry.table("grpcReceipts", load=self._load, save=self._save, private=True)
        registry.service("renewals", self._renew)

    def _load(self, data: Mapping[str, Any]) -> None:
        try:
            self._key = bytes.fromhex(data.get("key", ""))
        except (TypeError, ValueError):
            self._key = b""

    def _save(self) -> Mapping[str, Any]:
        return {"key": self._key.hex()}

    @hookimpl
    def store_opened(self) -> None:
        if not self._key:
            self._key = secrets.token_bytes(32)
            self._document.touch()
        self._server = make_server(self.broker, self.config, self._key)

    @hookimpl
    async def broker_started(self) -> None:
        host = self.broker.configuration.broker.host
        self.port = await self._server.start(f"{host}:{self.config.port}")
        self._server.routes.address = (self.broker.host, self.port)

    @hookimpl
    async def broker_stopping(self) -> None:
        await self._server.stop()

    async def _renew(self) -> None:
        await self._server.renewals.run()

    @hookimpl(optionalhook=True)
    def runtime_info(self) -> Mapping[str, str]:
        return {
            "grpcClients": str(len(self._server.clients)),
            "grpcMessagesRenewed": str(len(self._server.renewals)),
        }
