"""Queues dealt out one by one, like cards: neighbours go to different clients.

    8 queues, 3 clients:   c0 c1 c2 c0 c1 c2 c0 c1

A broker's queues stand together in the sorted list, so this spreads each broker over all clients
(RocketMQ: ``AllocateMessageQueueAveragelyByCircle``, name ``AVG_BY_CIRCLE``).
"""

from __future__ import annotations

from collections.abc import Sequence

from verniermq.kernel import MessageQueue
from verniermq.plugins.allocate.strategy import index_of


def circle(client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str]) -> list[MessageQueue]:
    index = index_of(client_id, queues, clients)
    return [] if index is None else list(queues[index :: len(clients)])
