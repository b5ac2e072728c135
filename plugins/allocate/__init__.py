"""Which queues of a topic each member of a consumer group reads, by one of six strategies.

The strategies are the pure functions in this folder, one file each; the plugin only finds the one that a
consumer named. A name that is not among them is left to other plugins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import attrs

from verniermq.kernel import Declaration, MessageQueue, hookimpl, setting
from verniermq.plugins.allocate.consistent_hash import VIRTUAL_NODES
from verniermq.plugins.allocate.machine_room_nearby import Room
from verniermq.plugins.allocate.registry import Registry


@attrs.frozen
class Config:
    """``[plugins.allocate]``"""

    virtual_nodes: int = setting(
        VIRTUAL_NODES,
        "Points of each client on the ring of consistent_hash. All members of a group must use the same number.",
        at_least=1,
    )
    machine_rooms: tuple[str, ...] = setting(
        (),
        "The rooms whose queues machine_room hands out; the others are left to another group.",
    )
    rooms: Mapping[str, Room] = setting(
        {},
        "Who is in which room, for machine_room_nearby: [plugins.allocate.rooms.<name>].",
    )
    fixed_queues: tuple[str, ...] = setting(
        (),
        'What by_config hands out, whoever asks: ["orders@broker-a:0"].',
    )


@attrs.define(eq=False)
class Plugin:
    declaration: ClassVar = Declaration(
        api=1, config=Config, summary="Shares a topic's queues among the consumers of a group."
    )
    config: Config
    registry: Registry = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.registry = Registry(
            virtual_nodes=self.config.virtual_nodes,
            machine_rooms=frozenset(self.config.machine_rooms),
            rooms=self.config.rooms,
            fixed_queues=self.config.fixed_queues,
        )

    @hookimpl
    def allocate_queues(
        self, strategy: str, client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str]
    ) -> list[MessageQueue] | None:
        allocate = self.registry.find(strategy)
        return None if allocate is None else allocate(client_id, queues, clients)
