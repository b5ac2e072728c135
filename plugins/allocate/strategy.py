"""What every allocation strategy is, and the check that RocketMQ's strategies share.

A strategy is a pure function: each member of a consumer group calls it with the same two sorted lists and its
own id, and takes what comes back. Nobody coordinates; the members agree because they compute the same thing.

    strategy("10.0.0.2@7", [a0, a1, a2, a3], ["10.0.0.1@5", "10.0.0.2@7"])  →  [a2, a3]

Both lists arrive sorted (queues by topic, broker and number, clients by text); a strategy does not sort again,
so that it gives RocketMQ's result for RocketMQ's input (RocketMQ: ``AllocateMessageQueueStrategy``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from verniermq.kernel import MessageQueue, RequestRefused

Strategy = Callable[[str, Sequence[MessageQueue], Sequence[str]], list[MessageQueue]]
"""``(client_id, queues, clients)`` → the queues of that client, in order."""


class AllocationError(RequestRefused):
    """A strategy cannot answer; the consumer keeps the queues it has until the next round.

    It is a refusal and no failure of the plugin: the same strategy answers once the settings are right.
    """


def index_of(client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str]) -> int | None:
    """The caller's place among the clients; ``None`` when it is not one of them and so gets nothing.

    That happens for a moment after a start, until the broker has heard of the new member.

    Raises:
        AllocationError: there is no id, no queue or no client at all.
    """
    if not client_id:
        raise AllocationError("cannot allocate queues: the client id is empty")
    if not queues:
        raise AllocationError(f"cannot allocate queues to {client_id!r}: the topic has no readable queue")
    if not clients:
        raise AllocationError(f"cannot allocate queues to {client_id!r}: the group has no member")
    try:
        return clients.index(client_id)
    except ValueError:
        return None
