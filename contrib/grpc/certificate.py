"""What the port needs to speak TLS: the broker's certificate, or one that is made at the first start.

The official clients of Java, Go, C++ and C# speak TLS unless they are told otherwise, and take any certificate. One
that is made here proves nothing to anybody: it keeps who reads along from reading, and no more.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import ssl
from functools import partial
from pathlib import Path
from typing import Final

from verniermq.kernel import ConfigError, Tls, load_tls, write_all

YEARS: Final = 10


def make_certificate(certificate: Path, key: Path, host: str) -> None:
    """Write a new self-signed certificate and its key, which only the owner of the process can read."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "VernierMQ")])
    hosts: list[x509.GeneralName] = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    try:
        hosts.append(x509.IPAddress(ipaddress.ip_address(host)))
    except ValueError:
        hosts.append(x509.DNSName(host))
    now = datetime.datetime.now(datetime.UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=365 * YEARS))
        .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(private, hashes.SHA256())
    )
    pem, format_, plain = (
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )  # fmt: skip
    _write(key, private.private_bytes(pem, format_, plain))
    _write(certificate, signed.public_bytes(pem))


def _write(path: Path, content: bytes) -> None:
    """In one step, so that a crash leaves no half of a file."""
    unfinished = path.with_suffix(".new")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        write_all(descriptor, content, 0)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    unfinished.replace(path)


def grpc_tls(certificate: str, key: str, plain_allowed: bool, handshake_seconds: float) -> Tls:
    """
    Raises:
        ConfigError: a file is missing or is not what it should be.
    """
    read = partial(_context, certificate, key)
    return Tls(read(), plain_allowed, handshake_seconds, read)


def _context(certificate: str, key: str) -> ssl.SSLContext:
    tls = load_tls("permissive", certificate, key)
    if tls is None:
        raise ConfigError("TLS of the gRPC port needs a certificate and its key")
    tls.context.set_alpn_protocols(["h2"])  # without it, clients hang up
    return tls.context
