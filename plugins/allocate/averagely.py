"""Neighbouring queues in equal blocks; the first clients get one more where it does not divide.

    8 queues, 3 clients:   c0 c0 c0 | c1 c1 c1 | c2 c2

RocketMQ's default (``AllocateMessageQueueAveragely``, name ``AVG``).
"""

from __future__ import annotations

from collections.abc import Sequence

from verniermq.kernel import MessageQueue
from verniermq.plugins.allocate.strategy import index_of


def averagely(client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str]) -> list[MessageQueue]:
    index = index_of(client_id, queues, clients)
    if index is None:
        return []
    share, rest = divmod(len(queues), len(clients))
    # The first `rest` clients hold one queue more, so everybody behind them starts that much later.
    start = index * share + min(index, rest)
    return list(queues[start : start + share + (index < rest)])
