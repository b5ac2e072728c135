"""Who may have the log: whoever comes from an address of ``slaves``, or with none from this machine."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Any

from verniermq.plugins.ha.settings import Network


def may_have_the_log(networks: Sequence[Network], host: str) -> bool:
    address: Any = ipaddress.ip_address(host.partition("%")[0])
    address = getattr(address, "ipv4_mapped", None) or address
    if not networks:
        return bool(address.is_loopback)
    return any(address in network for network in networks)
