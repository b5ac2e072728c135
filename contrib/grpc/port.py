"""A gRPC port as a whole: the front, the server behind it, the certificate; for a broker and for a proxy."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

import attrs

from verniermq.contrib.grpc.brokers import Brokers
from verniermq.contrib.grpc.certificate import grpc_tls, make_certificate
from verniermq.contrib.grpc.front import PRIVATE_HOST, Front
from verniermq.contrib.grpc.handles import Sealer
from verniermq.contrib.grpc.server import GrpcServer
from verniermq.kernel import FileStamps, RemotingLimits, watch_files

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
    front: Front = attrs.field(init=False)
    server: GrpcServer = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        if not self.certificate:
            certificate, key = self.folder / OWN_CERTIFICATE, self.folder / OWN_KEY
            if not (certificate.exists() and key.exists()):
                make_certificate(certificate, key, self.advertised)
            self.certificate, self.private_key = str(certificate), str(key)
        tls = grpc_tls(self.certificate, self.private_key, self.plain_allowed, self.handshake_seconds)
        self.front = Front(tls, RemotingLimits(max_connections=self.max_connections))
        sealer = Sealer(self.key)
        self.server = GrpcServer(self.brokers, sealer, self.max_clients, self.max_calls, self.front.peer_of)

    async def start(self) -> None:
        """
        Raises:
            ConfigError: it cannot be listened there.
        """
        self.front.private_port = await self.server.start(f"{PRIVATE_HOST}:0")
        port = await self.front.listen(self.host, self.port)
        self.server.routes.address = (self.advertised, port)
        logger.info("gRPC listening host=%s port=%d certificate=%s", self.host, port, self.certificate)

    async def stop(self) -> None:
        await self.server.stop()
        self.front.close()

    async def watch_certificate(self) -> None:
        """Show a changed certificate to whoever connects from then on."""
        stamps = FileStamps((self.certificate, self.private_key))
        await watch_files("certificate of the gRPC port is", stamps, self.front.tls.reload)
