"""Which queues of a topic each member of a consumer group reads, by one of six strategies.

The strategies are the pure functions in this folder, one file each; the plugin only finds the one that a
consumer named. A name that is not among them is left to other plugins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

import attrs

from verniermq.kernel import Context, Declaration, MessageQueue, hookimpl, setting

if TYPE_CHECKING:
    from verniermq.kernel import ClientContext
    from verniermq.plugins.allocate.registry import StrategyTable

VIRTUAL_NODES: Final = 10
"""As RocketMQ: members of one group must agree on it, or they share no ring."""


@attrs.frozen
class Room:
    """Who is in one room: patterns with ``*`` and ``?`` (``[plugins.allocate.rooms.<name>]``)."""

    brokers: tuple[str, ...] = setting((), "Names of brokers, as broker-a or shanghai-*.")
    clients: tuple[str, ...] = setting((), "Client ids, which start with the address: 10.1.*.")


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
    room_separator: str = setting(
        "",
        'For machine_room_nearby without rooms: what ends the room in names, as "-" in IDC1-broker-a and IDC1-client.',
    )
    fixed_queues: tuple[str, ...] = setting(
        (),
        'What by_config hands out, whoever asks: ["orders@broker-a:0"].',
    )

    def __attrs_post_init__(self) -> None:
        if self.rooms and self.room_separator:
            raise ValueError("rooms and room_separator are two ways to say who is where; use one of them")


@attrs.define(eq=False)
class Plugin:
    declaration: ClassVar = Declaration(
        api=1, config=Config, summary="Shares a topic's queues among the consumers of a group."
    )
    config: Config
    host: Context | ClientContext
    _registry: StrategyTable | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        if self.config.fixed_queues:
            self._strategies()  # a text that names no queue is an error now, not at the first question

    @hookimpl
    def allocate_queues(
        self, strategy: str, client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str]
    ) -> list[MessageQueue] | None:
        allocate = self._strategies().find(strategy)
        return None if allocate is None else allocate(client_id, queues, clients)

    def _strategies(self) -> StrategyTable:
        """Made when first asked for: a broker is asked only by clients that leave the sharing to it."""
        if self._registry is None:
            from verniermq.plugins.allocate.machine_room_nearby import RoomsByPattern, RoomsByPrefix
            from verniermq.plugins.allocate.registry import StrategyTable

            separator = self.config.room_separator
            self._registry = StrategyTable(
                virtual_nodes=self.config.virtual_nodes,
                machine_rooms=frozenset(self.config.machine_rooms),
                resolver=RoomsByPrefix(separator) if separator else RoomsByPattern(self.config.rooms),
                fixed_queues=self.config.fixed_queues,
            )
        return self._registry
