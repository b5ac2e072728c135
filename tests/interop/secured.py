"""An etcd that speaks TLS only, asks for certificates, and knows users by their passwords."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import attrs
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from verniermq.plugins.ha.coordinator import CoordinatorTrouble
from verniermq.plugins.ha.etcd import Etcd
from verniermq.plugins.ha.failover import etcd_tls

from .processes import LOOPBACK, ServerProcess, free_ports


@attrs.frozen
class SecuredEtcd:
    url: str
    ca: Path
    certificate: Path
    """With its key: what clients show."""


def make_certificate(path: Path, with_key: Path) -> None:
    """One that signs itself, for servers and clients of this machine; and the same with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    # With a CommonName, etcd 3.4 refuses whoever comes through its gateway and has a password too.
    name = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "verniermq test")])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    certificate = (
        builder.not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=2))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(LOOPBACK))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    form, bare = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    pem = serialization.Encoding.PEM
    path.write_bytes(certificate.public_bytes(pem))
    with_key.write_bytes(certificate.public_bytes(pem) + key.private_bytes(pem, form, bare))


@contextmanager
def secured_etcd(folder: Path) -> Iterator[SecuredEtcd]:
    """Its user ``mq`` has the password ``secret`` and may use the keys below ``/verniermq/``, as the page says."""
    ca, certificate = folder / "ca.pem", folder / "certificate.pem"
    make_certificate(ca, certificate)
    url, peer = f"https://{LOOPBACK}:{free_ports()}", f"http://{LOOPBACK}:{free_ports()}"
    command = [
        "etcd", "--name", "e", "--data-dir", str(folder / "etcd"), "--listen-client-urls", url,
        "--advertise-client-urls", url, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
        "--initial-cluster", f"e={peer}", "--cert-file", str(ca), "--key-file", str(certificate),
        "--trusted-ca-file", str(ca), "--client-cert-auth",
    ]  # fmt: skip
    process = ServerProcess("etcd", command, folder / "etcd.log")
    secured = SecuredEtcd(url, ca, certificate)
    try:
        process.wait_until(lambda: anyio.run(_answers, secured), 60)
        anyio.run(_enable_users, secured)
        yield secured
    finally:
        process.kill()


def client(etcd: SecuredEtcd, user: str = "", password: str = "") -> Etcd:
    tls = etcd_tls(str(etcd.ca), str(etcd.certificate))
    return Etcd([etcd.url], "c", "b", user=user, password=password, tls=tls)


async def _answers(etcd: SecuredEtcd) -> bool:
    try:
        await client(etcd).read()
    except CoordinatorTrouble:
        return False
    return True


async def _enable_users(etcd: SecuredEtcd) -> None:
    operator = client(etcd)
    for user in ("root", "mq"):
        await operator._call("auth/user/add", {"name": user, "password": "secret"})
        await operator._call("auth/role/add", {"name": user})
        await operator._call("auth/user/grant", {"user": user, "role": user})
    permission = {"permType": "READWRITE", "key": "L3Zlcm5pZXJtcS8=", "range_end": "L3Zlcm5pZXJtcTA="}
    await operator._call("auth/role/grant", {"name": "mq", "perm": permission})
    await operator._call("auth/enable", {})
