"""The contract of every allocation strategy: run it on your own.

``check_allocator(allocate)`` tries a strategy on many sizes of topics and groups and asserts what a group
relies on. It needs nothing but the strategy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random

from verniermq.kernel.message import MessageQueue

Allocate = Callable[[str, Sequence[MessageQueue], Sequence[str]], list[MessageQueue]]


def check_allocator(
    allocate: Allocate,
    *,
    balanced: bool = True,
    broker_name: str = "broker-{}",
    client_id: str = "10.0.0.{}@7",
    seed: int = 1,
) -> None:
    """Assert that the members of a group, each asking for itself, share a topic without gaps or overlaps.

    For a group and a topic of any size: every queue has exactly one owner; a stranger gets nothing; asking
    again gives the same answer; the lists that were handed over are not changed; and, if ``balanced``,
    nobody has two queues more than another. ``broker_name`` and ``client_id`` are the forms of the names,
    for strategies that read something in them.
    """
    random = Random(seed)
    sizes = [(queues, clients) for queues in range(1, 18) for clients in range(1, 9)]
    sizes += [(random.randrange(1, 200), random.randrange(1, 60)) for _ in range(20)]
    for queue_count, client_count in sizes:
        brokers = random.randrange(1, 4)
        queues = sorted(
            MessageQueue("orders", broker_name.format(number % brokers), number // brokers)
            for number in range(queue_count)
        )
        clients = sorted(client_id.format(number) for number in range(client_count))
        kept_queues, kept_clients = list(queues), list(clients)

        shares = {client: allocate(client, queues, clients) for client in clients}

        where = f"{queue_count} queues, {client_count} clients"
        owners = Counter(queue for share in shares.values() for queue in share)
        assert not set(queues) - set(owners), f"{where}: nobody reads {sorted(set(queues) - set(owners))}"
        assert not set(owners) - set(queues), f"{where}: invented {sorted(set(owners) - set(queues))}"
        twice = sorted(queue for queue, count in owners.items() if count > 1)
        assert not twice, f"{where}: read by more than one client: {twice}"
        if balanced:
            counts = [len(share) for share in shares.values()]
            assert max(counts) - min(counts) <= 1, f"{where}: unequal shares {counts}"
        assert allocate(clients[0], queues, clients) == shares[clients[0]], f"{where}: a second answer differs"
        assert allocate(client_id.format("stranger"), queues, clients) == [], f"{where}: a stranger got queues"
        assert (queues, clients) == (kept_queues, kept_clients), f"{where}: the arguments were changed"
