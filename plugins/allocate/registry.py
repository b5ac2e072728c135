"""Strategies by name: RocketMQ's names and the friendlier ones, from one set of settings.

    AVG                         averagely
    AVG_BY_CIRCLE               circle
    CONSISTENT_HASH             consistent_hash
    MACHINE_ROOM                machine_room
    MACHINE_ROOM_NEARBY-<base>  machine_room_nearby, machine_room_nearby-circle, …
    CONFIG                      by_config

RocketMQ's names are what its tools and its clients show, so a mixed group can be compared by eye.
"""

from __future__ import annotations

from typing import Final

from verniermq.plugins.allocate import VIRTUAL_NODES
from verniermq.plugins.allocate.averagely import averagely
from verniermq.plugins.allocate.by_config import ByConfig, parse_queue
from verniermq.plugins.allocate.circle import circle
from verniermq.plugins.allocate.consistent_hash import ConsistentHash
from verniermq.plugins.allocate.machine_room import MachineRoom
from verniermq.plugins.allocate.machine_room_nearby import (
    MachineRoomNearby,
    RoomResolver,
    RoomsByPattern,
)
from verniermq.plugins.allocate.strategy import Strategy

ROCKETMQ_NAMES: Final = {
    "averagely": "AVG",
    "circle": "AVG_BY_CIRCLE",
    "consistent_hash": "CONSISTENT_HASH",
    "machine_room": "MACHINE_ROOM",
    "machine_room_nearby": "MACHINE_ROOM_NEARBY",
    "by_config": "CONFIG",
}
"""Friendly name → RocketMQ's."""

NEARBY: Final = "MACHINE_ROOM_NEARBY"


def rocketmq_name(name: str) -> str:
    """The name as RocketMQ writes it; a name that is already so, or unknown, comes back as it is."""
    if name.partition("-")[0] in ("machine_room_nearby", NEARBY):
        base = name.partition("-")[2] or "AVG"
        return f"{NEARBY}-{rocketmq_name(base)}"
    return ROCKETMQ_NAMES.get(name, name)


class StrategyTable:
    """Finds a strategy by either name."""

    def __init__(
        self,
        *,
        virtual_nodes: int = VIRTUAL_NODES,
        machine_rooms: frozenset[str] = frozenset(),
        resolver: RoomResolver | None = None,
        fixed_queues: tuple[str, ...] = (),
    ) -> None:
        self._resolver = resolver or RoomsByPattern({})
        self._by_name: dict[str, Strategy] = {
            "AVG": averagely,
            "AVG_BY_CIRCLE": circle,
            "CONSISTENT_HASH": ConsistentHash(virtual_nodes),
            "MACHINE_ROOM": MachineRoom(machine_rooms),
            "CONFIG": ByConfig(tuple(parse_queue(text) for text in fixed_queues)),
        }

    def find(self, name: str) -> Strategy | None:
        """The strategy of that name, or ``None`` when it is somebody else's."""
        name = rocketmq_name(name)
        strategy = self._by_name.get(name)
        if strategy is None and name.startswith(f"{NEARBY}-"):
            inner = self.find(name.removeprefix(f"{NEARBY}-"))
            if inner is not None:
                strategy = self._by_name[name] = MachineRoomNearby(inner, self._resolver)
        return strategy
