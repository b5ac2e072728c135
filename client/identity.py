"""Names that a client gives itself and its messages: the client id and RocketMQ's unique message id.

A unique id is upper-case hex of ``IP 4 or 16 | pid 2 | random 4 | ms since the start of the month 4 | counter 2``::

    0A000009 1267 18B4AAC2 47B76000 0003

RocketMQ puts the hash of a class loader where we put four random bytes: both tell two programs of one machine
apart that happen to have the same process id.
"""

from __future__ import annotations

import os
import socket
import time
from datetime import datetime
from itertools import count

from verniermq.client.forks import after_fork

LOOPBACK = "127.0.0.1"


def own_ip() -> str:
    """This machine's address as others would see it, loopback if there is no network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # A datagram socket sends nothing on connect; it only works out which address it would send from.
            probe.connect(("10.255.255.255", 1))
            return str(probe.getsockname()[0])
        except OSError:
            return LOOPBACK


_instances = count(1)


def client_id(instance: str = "", ip: str = "") -> str:
    """``ip@instance``; without a name for the instance, one that no other client has."""
    name = instance or f"{os.getpid()}#{time.time_ns()}{next(_instances) % 1000:03d}"
    return f"{ip or own_ip()}@{name}"


class UniqueIds:
    """Makes message ids. One per process is enough; after a fork the child starts with other random bytes."""

    def __init__(self) -> None:
        self._ip = socket.inet_aton(own_ip()).hex().upper()
        self._reset()

    def _reset(self) -> None:
        self._prefix = f"{self._ip}{os.getpid() & 0xFFFF:04X}{os.urandom(4).hex().upper()}"
        self._counter = count(int.from_bytes(os.urandom(2), "big"))
        self._month_start_ms = 0
        self._next_month_ms = 0

    def _enter_month(self, now_ms: int) -> None:
        now = datetime.fromtimestamp(now_ms / 1000)
        start = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        following = start.replace(year=start.year + start.month // 12, month=start.month % 12 + 1)
        self._month_start_ms = int(start.timestamp() * 1000)
        self._next_month_ms = int(following.timestamp() * 1000)

    def next(self, now_ms: int) -> str:
        if not self._month_start_ms <= now_ms < self._next_month_ms:
            self._enter_month(now_ms)
        return f"{self._prefix}{now_ms - self._month_start_ms:08X}{next(self._counter) & 0xFFFF:04X}"


unique_ids = UniqueIds()
after_fork(unique_ids._reset)
