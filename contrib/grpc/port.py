"""A gRPC port as a whole, for a broker and for a proxy.

TLS and plain connections come to the same port and are told apart by their first byte, as on the broker's own.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

import attrs

from verniermq.contrib.grpc.brokers import Brokers
from verniermq.contrib.grpc.certificate import grpc_tls, make_certificate
from verniermq.contrib.grpc.handles import Sealer
from verniermq.contrib.grpc.http2 import Http2Connection
from verniermq.contrib.grpc.server import GrpcServer
from verniermq.kernel import ConfigError, FileStamps, Listener, RemotingLimits, SharedPort, Tls, watch_files

logger = logging.getLogger(__name__)

OWN_CERTIFICATE: Final = "grpcCertificate.pem"
OWN_KEY: Final = "grpcKey.pem"


@attrs.define(eq=False, kw_only=True)
class GrpcPort:
    brokers: Brokers
    key: bytes
    """What receipts are sealed with."""
    folder: Path
    """Where a certificate is kept that is made here."""
    host: str
    advertised: str
    """What a client is told that does not say where it came to."""
    port: int
    certificate: str = ""
    private_key: str = ""
    plain_allowed: bool = True
    handshake_seconds: float = 10.0
    max_connections: int = 10_000
    max_clients: int = 10_000
    max_calls: int = 30_000
    server: GrpcServer = attrs.field(init=False)
    _tls: Tls = attrs.field(init=False)
    _shared_port: SharedPort = attrs.field(init=False)
    _listener: Listener | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        if not self.certificate:
            certificate, key = self.folder / OWN_CERTIFICATE, self.folder / OWN_KEY
            if not (certificate.exists() and key.exists()):
                make_certificate(certificate, key, self.advertised)
            self.certificate, self.private_key = str(certificate), str(key)
        self._tls = grpc_tls(self.certificate, self.private_key, self.plain_allowed, self.handshake_seconds)
        limits = RemotingLimits(max_connections=self.max_connections)
        self.server = GrpcServer(
            self.brokers, Sealer(self.key), self.max_connections, self.max_clients, self.max_calls
        )  # fmt: skip
        self._shared_port = SharedPort(self._tls, lambda: Http2Connection(self.server.connections), limits)

    async def start(self) -> None:
        """
        Raises:
            ConfigError: it cannot be listened there.
        """
        self._listener = Listener(self._shared_port.greet)
        try:
            await self._listener.listen(self.host, self.port, self._shared_port.limits.listen_backlog)
        except OSError as error:
            what = f"plugin 'grpc' cannot listen on {self.host}:{self.port}: {error.strerror or error}"
            raise ConfigError(f"{what}; choose another port in [plugins.grpc]") from error
        self.port = int(self._listener.sockets[0].getsockname()[1])
        self.server.routes.address = (self.advertised, self.port)
        logger.info("gRPC listening host=%s port=%d certificate=%s", self.host, self.port, self.certificate)

    async def stop(self) -> None:
        if self._listener is not None:
            self._listener.close()
        self._shared_port.close()
        await self.server.stop()

    async def watch_certificate(self) -> None:
        """Show a changed certificate to whoever connects from then on."""
        stamps = FileStamps((self.certificate, self.private_key))
        await watch_files("certificate of the gRPC port is", stamps, self._tls.reload)
