"""Whether the clients of name servers on other machines could reach a broker."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from verniermq.kernel import parse_address

if TYPE_CHECKING:
    from verniermq.kernel.broker import Broker
    from verniermq.kernel.config import Configuration


def is_elsewhere(address: str) -> bool:
    """Whether ``host:port`` is another machine as far as its text tells."""
    try:
        host, _ = parse_address(address)
    except ValueError:
        return False
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host != "localhost"


def unreachable(configuration: Configuration, broker: Broker) -> str | None:
    """What is wrong with what other machines would be told, if anything is."""
    settings = configuration.broker
    elsewhere = [address for address in settings.namesrv if is_elsewhere(address)]
    if not elsewhere or not broker.advertised.is_loopback:
        return None
    told = broker.advertised.host
    return (
        f"name servers on other machines ({', '.join(elsewhere)}) would tell clients {told}, where each looks for it "
        'on its own machine; set [broker] host = "0.0.0.0", and advertise to an address that they reach'
    )
