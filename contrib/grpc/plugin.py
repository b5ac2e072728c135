"""In the broker: starts and stops the gRPC port, and keeps the key that receipts are sealed with."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

import attrs

from verniermq.kernel import Context, Declaration, Document, Registry, hookimpl, setting

if TYPE_CHECKING:
    from verniermq.contrib.grpc.port import GrpcPort
    from verniermq.contrib.grpc.remote import RemoteBrokers

PORT_FIGURE: Final = "grpcPort"
"""Among the figures of a broker: by it the others of a cluster find its port."""


@attrs.frozen
class Config:
    """``[plugins.grpc]``"""

    port: int = setting(8081, "The port; 0 takes a free one.", at_least=0, at_most=65535)
    max_clients: int = setting(10_000, "How many clients may be connected at the same time.", at_least=1)
    max_calls: int = setting(
        30_000, "How many calls may be under way at the same time; receives that wait are among them.", at_least=1
    )


@attrs.define(eq=False)
class Plugin:
    declaration: ClassVar = Declaration(
        api=1,
        config=Config,
        summary="Serves RocketMQ 5's clients, which speak gRPC.",
        needs=("pop",),
        packages=("hpack", "google.protobuf", "cryptography"),
        install="verniermq[grpc]",
        on_failure="closed",
    )
    config: Config
    broker: Context
    _port: GrpcPort = attrs.field(init=False)
    _others: RemoteBrokers = attrs.field(init=False)
    _key: bytes = attrs.field(default=b"", init=False)
    _document: Document = attrs.field(init=False)

    def setup(self, registry: Registry) -> None:
        self._document = registry.table("grpcReceipts", load=self._load, save=self._save, private=True)
        registry.service("clients", self._look_after_clients)
        registry.service("certificate", self._watch_certificate)

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
        self._port = self._make_port()

    def _make_port(self) -> GrpcPort:
        """
        Raises:
            ConfigError: the certificate cannot be read.
        """
        # Here, so that its settings can be listed where gRPC is not installed.
        from verniermq.contrib.grpc.brokers import OwnBroker
        from verniermq.contrib.grpc.neighbours import Neighbours
        from verniermq.contrib.grpc.port import GrpcPort
        from verniermq.contrib.grpc.remote import RemoteBrokers

        self._others = RemoteBrokers(
            self.broker.name_servers, clock=self.broker.clock, tls=lambda: self.broker.outgoing_tls
        )
        tls, remoting = self.broker.configuration.tls, self.broker.configuration.remoting
        return GrpcPort(
            brokers=OwnBroker(self.broker, Neighbours(self.broker.name, self._others)),
            key=self._key,
            folder=self.broker.store.path / "config",
            host=self.broker.configuration.broker.host,
            advertised=self.broker.host,
            port=self.config.port,
            certificate=tls.certificate,
            private_key=tls.key,
            plain_allowed=tls.mode != "enforcing",
            handshake_seconds=tls.handshake_timeout,
            max_connections=remoting.max_connections,
            max_clients=self.config.max_clients,
            max_calls=self.config.max_calls,
        )

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._port.port

    @hookimpl
    async def broker_started(self) -> None:
        await self._port.start()

    @hookimpl
    async def broker_stopping(self) -> None:
        await self._port.stop()
        self._others.close()

    async def _look_after_clients(self) -> None:
        await self._port.server.run()

    async def _watch_certificate(self) -> None:
        await self._port.watch_certificate()

    @hookimpl(optionalhook=True)
    def runtime_info(self) -> Mapping[str, str]:
        return {
            PORT_FIGURE: str(self.port),
            "grpcClients": str(len(self._port.server.clients)),
            "grpcMessagesRenewed": str(len(self._port.server.renewals)),
        }
