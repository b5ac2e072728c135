"""``[plugins.ha]``"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Final, Literal
from urllib.parse import urlsplit

import attrs

from verniermq.kernel import Duration, Size, parse_address, setting
from verniermq.plugins.ha.frames import LARGEST_BLOCK

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


REGISTERED: Final = "registered"
"""Among addresses: whoever the name servers know as a broker of our name."""


def networks(texts: Iterable[str]) -> list[Network]:
    """
    Raises:
        ValueError: one is no address and no network.
    """
    return [ipaddress.ip_network(text.strip(), strict=False) for text in texts if text != REGISTERED]


def _are_addresses(texts: Iterable[str]) -> str | None:
    try:
        networks(texts)
    except ValueError:
        return 'addresses and networks, such as "10.0.0.5", "10.0.0.0/8" or "fd00::/8", or "registered"'
    return None


def _are_endpoints(texts: Iterable[str]) -> str | None:
    for text in texts:
        parts = urlsplit(text)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/"):
            return 'addresses such as "http://10.0.0.1:2379" or "https://etcd.example:2379"'
    return None


def _are_hosts(texts: Iterable[str]) -> str | None:
    try:
        for text in texts:
            parse_address(text)
    except ValueError:
        return 'addresses such as "10.0.0.1:9878"'
    return None


@attrs.frozen
class Config:
    """``[plugins.ha]``"""

    mode: Literal["static", "failover"] = setting(
        "static", "Whether the roles stand here, or brokers of one name choose their master, by a coordinator."
    )
    role: Literal["async_master", "sync_master", "slave"] = setting(
        "async_master",
        "RocketMQ's brokerRole: whether a master waits for its slaves; a slave has [broker] id = 1 or more.",
    )
    port: int = setting(
        0, "Where slaves get the log from a master; 0 takes the broker's port + 1.", at_least=0, at_most=65535
    )
    slaves: tuple[str, ...] = setting(
        (),
        'Where slaves may come from: addresses, "registered" for those that name servers know; none: this machine.',
        check=_are_addresses,
    )
    tls: bool = setting(False, "Whether the log travels inside TLS, by [tls]; Apache's brokers have none for it.")
    in_sync: int = setting(
        2, "How many brokers, the master included, have a message before a sync_master says so.", at_least=1, at_most=9
    )
    timeout: Duration = setting(Duration(3), "How long a sync_master waits for them.", at_least=0.001)
    slave_reads: bool = setting(True, "Whether a slave serves consumers; RocketMQ's slaveReadEnable, false there.")
    slow_after: Size = setting(
        Size(0), "How far behind the log's end consumers are sent to a slave; 0 takes 40 % of the memory.", at_least=0
    )
    metadata_interval: Duration = setting(
        Duration(5), "How often a slave asks for topics, groups and offsets; RocketMQ: 60s.", at_least=0.1
    )
    block_size: Size = setting(
        Size(256 * 1024), "How much of the log goes to a slave at once.", at_least=1024, at_most=LARGEST_BLOCK
    )

    replica: int = setting(
        0, "Failover: the number of this replica among those of its name, from 1 on, for ever.", at_least=0, at_most=99
    )
    replicas: int = setting(3, "Failover: how many replicas there are.", at_least=2, at_most=9)
    min_in_sync: int = setting(
        0, "Failover: with fewer replicas in sync sends are refused; 0: 1 of two replicas, else 2.", at_least=0
    )
    etcd: tuple[str, ...] = setting(
        (), 'Failover: the servers of etcd, such as "http://10.0.0.1:2379".', check=_are_endpoints
    )
    etcd_user: str = setting("", "Failover: who to be at etcd; with none, nobody.")
    etcd_password: str = setting("", "Failover: the password of etcd_user.", secret=True)
    etcd_ca: str = setting("", "Failover: a PEM file with who signs etcd's certificates; else the system's.")
    etcd_certificate: str = setting("", "Failover: a PEM file with the certificate and the key to show to etcd.")
    controller: tuple[str, ...] = setting(
        (), 'Failover: the controllers of Apache RocketMQ, instead of etcd, such as "10.0.0.1:9878".', check=_are_hosts
    )
    ttl: Duration = setting(
        Duration(3),
        "Failover: a replica that is not heard of for so long is gone.",
        at_least=2,
        at_most=60,
    )
    drop_after: Duration = setting(
        Duration(15), "Failover: a replica that has not caught up for so long does not count.", at_least=1
    )
    drop_closed: Duration = setting(
        Duration(0.5), "Failover: nor does one whose connection is gone for so long.", at_least=0
    )
    switch_grace: Duration = setting(
        Duration(35), "Failover: for how long a master that was replaced as planned forwards sends.", at_least=0
    )

    @property
    def least_in_sync(self) -> int:
        """With fewer in the set, nothing is taken."""
        return self.min_in_sync or (1 if self.replicas == 2 else 2)

    @property
    def silence(self) -> float:
        """After so long without a word a connection between replicas is closed."""
        return self.ttl * 2 / 3

    @property
    def is_slave(self) -> bool:
        return self.role == "slave"
