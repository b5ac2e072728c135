"""The address that clients are told to use: found, checked, and explained.

What a broker listens on and what its clients can reach are two things; containers and machines with several
networks are where they differ. The name server hands out the second one, so it is worked out once, at start,
in the open.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import Final, NamedTuple

from verniermq.kernel.errors import ConfigError
from verniermq.kernel.message import pack_host
from verniermq.kernel.remoting.address import plain_host

ANYWHERE: Final = frozenset({"0.0.0.0", "::", ""})


class Advertised(NamedTuple):
    """``host`` is what clients get; ``ip`` is the same as a number, which records and message ids keep."""

    host: str
    ip: str
    port: int
    why: str
    """For people: how it was chosen."""

    @property
    def text(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def packed(self) -> bytes:
        return pack_host(self.ip, self.port)

    @property
    def is_loopback(self) -> bool:
        return ipaddress.ip_address(self.ip).is_loopback


def advertised_address(listen_host: str, port: int, setting: str) -> Advertised:
    """Work out what to tell clients from ``[broker] host`` and ``advertise``.

    Raises:
        ConfigError: the name does not resolve, or nobody could connect to it.
    """
    if setting:
        host, given_port = _split(setting)
        return Advertised(host, _resolve(host, "advertise"), given_port or port, "[broker] advertise says so")
    if listen_host not in ANYWHERE:
        return Advertised(listen_host, _resolve(listen_host, "host"), port, "the address it listens on")
    ip = _own_address(socket.AF_INET6 if ":" in listen_host else socket.AF_INET)
    return Advertised(ip, ip, port, "this machine's own address; set [broker] advertise if clients need another")


def _split(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if colon and not (text.startswith("[") and text.endswith("]")):
        return host.strip("[]"), int(port)
    return text.strip("[]"), 0


def _resolve(host: str, key: str) -> str:
    try:
        ip = str(socket.getaddrinfo(plain_host(host), None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise ConfigError(f"[broker] {key} = {host!r} does not resolve to an address: {error}") from error
    if ip in ANYWHERE:
        raise ConfigError(f"[broker] {key} = {host!r} is no address that a client could connect to; name one")
    return ip


def _own_address(family: socket.AddressFamily) -> str:
    loopback = "::1" if family == socket.AF_INET6 else "127.0.0.1"
    try:
        found = [str(info[4][0]) for info in socket.getaddrinfo(socket.gethostname(), None, family)]
    except OSError:
        return loopback
    outside = [ip for ip in found if not ipaddress.ip_address(ip.partition("%")[0]).is_loopback]
    return outside[0] if outside else loopback
