"""Each queue is read in its own machine room as long as a consumer lives there.

    room 1: 4 queues, 2 clients     shared by the two
    room 2: 4 queues, 1 client      all to that one
    room 3: 4 queues, no client     shared by all three, so that nothing is left unread

An inner strategy does the sharing, and a resolver says which room a queue and a client are in (RocketMQ:
``AllocateMachineRoomNearby``, name ``MACHINE_ROOM_NEARBY-`` and the inner strategy's name).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Protocol

import attrs

from verniermq.kernel import MessageQueue
from verniermq.plugins.allocate import Room
from verniermq.plugins.allocate.strategy import AllocationError, Strategy, index_of


class RoomResolver(Protocol):
    """Says where things stand. An empty answer means unknown, and the allocation fails with a clear error."""

    def room_of_queue(self, queue: MessageQueue) -> str: ...

    def room_of_client(self, client_id: str) -> str: ...


@attrs.frozen
class RoomsByPrefix:
    """The room is what stands before a separator in the broker's name and in the client's id."""

    separator: str = "-"

    def room_of_queue(self, queue: MessageQueue) -> str:
        return self._room(queue.broker_name)

    def room_of_client(self, client_id: str) -> str:
        return self._room(client_id)

    def _room(self, name: str) -> str:
        room, separator, _ = name.partition(self.separator)
        return room if separator else ""


@attrs.frozen
class RoomsByPattern:
    """The room is the first one, in the order written, with a pattern that fits."""

    rooms: Mapping[str, Room]

    def room_of_queue(self, queue: MessageQueue) -> str:
        return self._first([(name, room.brokers) for name, room in self.rooms.items()], queue.broker_name)

    def room_of_client(self, client_id: str) -> str:
        return self._first([(name, room.clients) for name, room in self.rooms.items()], client_id)

    @staticmethod
    def _first(patterns_of: list[tuple[str, tuple[str, ...]]], text: str) -> str:
        for name, patterns in patterns_of:
            if any(fnmatchcase(text, pattern) for pattern in patterns):
                return name
        return ""


@attrs.frozen
class MachineRoomNearby:
    """The strategy with its inner strategy and its resolver bound.

    Raises (when called):
        AllocationError: the resolver knows no room for a queue or a client.
    """

    inner: Strategy
    resolver: RoomResolver

    def __call__(self, client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str]) -> list[MessageQueue]:
        if index_of(client_id, queues, clients) is None:
            return []
        queues_in: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            room = _known(self.resolver.room_of_queue(queue), "broker", queue.broker_name)
            queues_in.setdefault(room, []).append(queue)
        clients_in: dict[str, list[str]] = {}
        for client in clients:
            room = _known(self.resolver.room_of_client(client), "client", client)
            clients_in.setdefault(room, []).append(client)

        own_room = self.resolver.room_of_client(client_id)
        mine: list[MessageQueue] = []
        if own_room in queues_in:
            mine += self.inner(client_id, queues_in[own_room], clients_in[own_room])
        for room in sorted(queues_in.keys() - clients_in.keys()):
            mine += self.inner(client_id, queues_in[room], clients)
        return mine


def _known(room: str, kind: str, name: str) -> str:
    if not room:
        raise AllocationError(
            f"no machine room is known for {kind} {name!r}; add a pattern for it to [plugins.allocate.rooms.<room>], "
            "or set room_separator in [plugins.allocate] if names begin with their room, as IDC1-broker-a"
        )
    return room
