"""``[plugins.ha]``"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Literal

import attrs

from verniermq.kernel import Duration, Size, setting
from verniermq.plugins.ha.frames import LARGEST_BLOCK

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def networks(texts: Iterable[str]) -> list[Network]:
    """
    Raises:
        ValueError: one is no address and no network.
    """
    return [ipaddress.ip_network(text.strip(), strict=False) for text in texts]


def _are_addresses(texts: Iterable[str]) -> str | None:
    try:
        networks(texts)
    except ValueError:
        return 'addresses and networks, such as "10.0.0.5", "10.0.0.0/8" or "fd00::/8"'
    return None


@attrs.frozen
class Config:
    """``[plugins.ha]``"""

    role: Literal["async_master", "sync_master", "slave"] = setting(
        "async_master",
        "RocketMQ's brokerRole: whether a master waits for its slaves; a slave has [broker] id = 1 or more.",
    )
    port: int = setting(
        0, "Where slaves get the log from a master; 0 takes the broker's port + 1.", at_least=0, at_most=65535
    )
    slaves: tuple[str, ...] = setting(
        (), "Addresses that slaves may come from; with none, those of this machine.", check=_are_addresses
    )
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

    @property
    def is_slave(self) -> bool:
        return self.role == "slave"
