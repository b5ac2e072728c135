"""Who may have the log, and whether it travels inside TLS.

Whoever comes from an address of ``slaves`` may, or with none from this machine. With ``"registered"`` among them, so
may whoever the name servers know as a broker of the same name: they take registrations by address or secret.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import ssl
from collections.abc import Sequence
from typing import Any, Final

from verniermq.kernel import Context, PluginError, RemotingError, parse_address, parse_answer
from verniermq.plugins.ha.settings import REGISTERED, Config, Network, networks
from verniermq.protocol.nameserver import GetBrokerMemberGroup
from verniermq.protocol.peers import Peers

logger = logging.getLogger(__name__)

KNOWN_SECONDS: Final = 1.0
"""Name servers are asked once in this time, however many strangers knock."""


def come_from(writer: asyncio.StreamWriter) -> tuple[str, int] | None:
    """Who has connected; ``None`` if it is gone already."""
    name = writer.get_extra_info("peername")
    return None if name is None else (str(name[0]), int(name[1]))


def may_have_the_log(networks: Sequence[Network], host: str) -> bool:
    address = _address(host)
    if not networks:
        return bool(address.is_loopback)
    return any(address in network for network in networks)


def _address(host: str) -> Any:
    address: Any = ipaddress.ip_address(host.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address


class Door:
    """Lets slaves in, and nobody else."""

    def __init__(self, broker: Context, config: Config) -> None:
        self._broker = broker
        self._networks = networks(config.slaves)
        self._asks = REGISTERED in config.slaves
        self._asking = asyncio.Lock()
        self._known: set[Any] = set()
        self._known_until = 0.0

    async def admits(self, host: str) -> bool:
        """Whether who comes from there may have the log."""
        if may_have_the_log(self._networks, host):
            return True
        if not self._asks:
            return False
        async with self._asking:
            if self._broker.clock.monotonic() >= self._known_until:
                self._known = await self._registered()
                self._known_until = self._broker.clock.monotonic() + KNOWN_SECONDS
        return _address(host) in self._known

    async def _registered(self) -> set[Any]:
        """Where the other brokers of our name are, by any name server that answers."""
        found: set[Any] = set()
        question = GetBrokerMemberGroup(cluster=self._broker.cluster, name=self._broker.name)
        async with Peers(tls=lambda: self._broker.outgoing_tls) as peers:
            for name_server in list(self._broker.name_servers):
                try:
                    answer = await peers.ask(name_server, question.command())
                    body = parse_answer(answer.body, name_server, "GET_BROKER_MEMBER_GROUP")
                except RemotingError as error:
                    logger.warning("name server does not say who belongs to this broker: %s", error)
                    continue
                members = (body.get("brokerMemberGroup") or {}).get("brokerAddrs") or {}
                for broker_id, text in members.items():
                    try:
                        if int(broker_id):
                            found.add(_address(parse_address(str(text))[0]))
                    except ValueError:
                        continue  # a name: whoever comes is known by its address
        return found


def serving_tls(broker: Context, config: Config) -> ssl.SSLContext | None:
    """
    Raises:
        PluginError: there is no certificate to show.
    """
    if not config.tls:
        return None
    if broker.tls is None:
        raise PluginError('[plugins.ha] tls = true needs a certificate: set mode = "permissive" in [tls], and it', "ha")
    return broker.tls.context


def asking_tls(broker: Context, config: Config) -> ssl.SSLContext | None:
    """
    Raises:
        PluginError: nobody says whom to trust.
    """
    if not config.tls:
        return None
    if broker.outgoing_tls is None:
        raise PluginError(
            "[plugins.ha] tls = true needs to know whom to trust: set outgoing and server_ca in [tls]", "ha"
        )
    return broker.outgoing_tls
