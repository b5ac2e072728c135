"""Only the queues of chosen machine rooms; a broker is named ``room@name``.

    rooms {room1}, 3 clients:   room1@a: c0 c1 c2 c0     room2@b: nobody

The kept queues are dealt in equal blocks from the front; what does not divide comes from the end, one each
for the first clients. Queues of other rooms belong to **nobody**: another group of consumers, in the
other room, is expected to read them (RocketMQ: ``AllocateMessageQueueByMachineRoom``, name ``MACHINE_ROOM``).
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from verniermq.kernel import MessageQueue
from verniermq.plugins.allocate.strategy import index_of


def room_of_broker(broker_name: str) -> str | None:
    """The room in ``room@name``; ``None`` for a name of another form. ``@`` at the end does not count."""
    parts = broker_name.rstrip("@").split("@")
    return parts[0] if len(parts) == 2 else None


@attrs.frozen
class MachineRoom:
    """The strategy with its rooms bound."""

    rooms: frozenset[str]

    def __call__(self, client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str]) -> list[MessageQueue]:
        index = index_of(client_id, queues, clients)
        if index is None:
            return []
        kept = [queue for queue in queues if room_of_broker(queue.broker_name) in self.rooms]
        share, rest = divmod(len(kept), len(clients))
        mine = kept[index * share : (index + 1) * share]
        if index < rest:
            mine.append(kept[share * len(clients) + index])
        return mine
