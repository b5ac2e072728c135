"""Addresses as people write them, as the socket reports them, and as a record keeps them."""

from __future__ import annotations

import ipaddress

from verniermq.kernel.message import pack_host

UNKNOWN_HOST = bytes(8)


def parse_address(address: str) -> tuple[str, int]:
    """``broker.example:10911`` or ``[2001:db8::5]:10911`` as host and port.

    Raises:
        ValueError: it is neither.
    """
    host, colon, port = address.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{address!r} is no address; write an IPv6 address in brackets, as in [::1]:10911")
    if not colon or not host or not (port.isascii() and port.isdecimal()) or not 0 < int(port) < 65536:
        raise ValueError(f"{address!r} is no address; expected host:port with a port from 1 to 65535")
    return host, int(port)


def plain_host(host: str) -> bytes | str:
    """A host for ``getaddrinfo``: in bytes, as a text has Python load its tables for names in other scripts."""
    return host.encode() if host.isascii() else host


def pack_peer(peername: object) -> bytes:
    """A socket's ``getpeername()`` as a record keeps it; zeros for a peer that has no IP address."""
    if not isinstance(peername, tuple) or len(peername) < 2:
        return UNKNOWN_HOST
    try:
        address = ipaddress.ip_address(str(peername[0]).partition("%")[0])
    except ValueError:
        return UNKNOWN_HOST
    # A listener for both families reports its IPv4 peers in IPv6 clothes; records should say what they are.
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return pack_host(str(mapped or address), int(peername[1]))
