"""Who may register: a route is where all messages of a topic go, so not everybody may say where that is.

A broker is taken from an address that the settings name, or when it signs with the secret that both sides have. With
neither set, those of this machine are taken and nobody else.

The secret itself never travels. A request that is signed has two fields more, which Apache's name server passes over::

    verniermqTime        1700000000000      when it was signed, in ms: an old one is not taken
    verniermqSignature   HMAC-SHA256 in hex over the code, the other fields sorted by name, and the body
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable
from typing import Final

from verniermq.kernel import Command, NoPermission, request_name

TIME: Final = "verniermqTime"
SIGNATURE: Final = "verniermqSignature"

SHORTEST_SECRET: Final = 8
"""Characters."""

LONGEST_AGE_MS: Final = 5 * 60 * 1000
"""Also how far the clocks of two machines may be apart."""

HOW_IN_SETTINGS: Final = "put its address into brokers, or the same secret on both sides, in [plugins.namesrv]"

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class BrokerAdmission:
    """``how`` says, to whoever is not taken, what would have to be set for it."""

    def __init__(
        self, addresses: Iterable[str], secret: str, now_ms: Callable[[], int], how: str = HOW_IN_SETTINGS
    ) -> None:
        """
        Raises:
            ValueError: an address is none.
        """
        self._networks = networks(addresses)
        self._secret = secret.encode()
        self._now_ms = now_ms
        self._how = how

    def __str__(self) -> str:
        """Whom it takes, for the log."""
        if not self._networks and not self._secret:
            return f"brokers of this machine only; for another one {self._how}"
        taken = [f"brokers from {', '.join(map(str, self._networks))}"] if self._networks else []
        return " and ".join([*taken, *(["brokers that know the secret"] if self._secret else [])])

    def know(self, request: Command, address: str) -> bool:
        """Whether a broker is known, by its address or the secret; if not, it is of this machine and not forbidden.

        Raises:
            NoPermission: it is none of these.
        """
        if self._secret and SIGNATURE in request.ext:
            self._check_signature(request)
            return True
        peer = ipaddress.ip_address(address)
        peer = getattr(peer, "ipv4_mapped", None) or peer
        if any(peer in network for network in self._networks):
            return True
        if not self._networks and not self._secret and peer.is_loopback:
            return False
        raise NoPermission(
            f"{request_name(request.code)} from {address} is not taken: this name server takes {self}"
            + ("" if not self._networks and not self._secret else f"; {self._how}")
        )

    def _check_signature(self, request: Command) -> None:
        import hmac  # see digest

        if not hmac.compare_digest(digest(self._secret, request), request.ext[SIGNATURE].encode()):
            raise NoPermission(
                f"the signature of {request_name(request.code)} is wrong; give both sides the same secret in "
                "[plugins.namesrv], and look for something between them that changes requests"
            )
        age_ms = self._now_ms() - request.integer(TIME)
        if abs(age_ms) > LONGEST_AGE_MS:
            raise NoPermission(
                f"{request_name(request.code)} was signed {age_ms / 1000:.0f} s ago by this machine's clock, more than "
                f"{LONGEST_AGE_MS // 1000} s; set the clocks of both machines"
            )


def networks(addresses: Iterable[str]) -> list[Network]:
    """
    Raises:
        ValueError: one is no address and no network.
    """
    return [ipaddress.ip_network(address.strip(), strict=False) for address in addresses]


def sign(request: Command, secret: str, now_ms: int) -> None:
    """Let a name server that has the secret know who asks. The last thing to do to a request."""
    request.ext[TIME] = str(now_ms)
    request.ext[SIGNATURE] = digest(secret.encode(), request).decode()


def digest(secret: bytes, request: Command) -> bytes:
    # Here, since they set up OpenSSL: half a megabyte that a broker without a secret does without.
    import hashlib
    import hmac

    # Each length first, so that nothing can be moved from one field to the next.
    fields = [
        f"{len(name)} {name} {len(value)} {value}\n" for name, value in sorted(request.ext.items()) if name != SIGNATURE
    ]
    content = f"{request.code}\n{len(fields)}\n{''.join(fields)}".encode() + request.body
    return hmac.new(secret, content, hashlib.sha256).hexdigest().encode()
