"""When a message is on enough brokers: the rules of acknowledgement, without sockets and clocks.

The coordinator stores a set of replicas, those that have everything that was acknowledged. A master acknowledges what
all of them have. While it asks the coordinator for another set it does not know which of the two is stored, so it
waits for the members of both::

    stored    {1 2}          {1 2}   or {1 2 3}            {1 2 3}
    known     {1 2}    asked for {1 2 3}, no answer yet    {1 2 3}
    required  {1 2}              {1 2 3}                   {1 2 3}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

Replica: TypeAlias = tuple[int, str]
"""Its number, and its incarnation: another one after a power cut that may have taken what it acknowledged."""

InSync: TypeAlias = frozenset[Replica]


def required(stored: InSync, proposed: InSync | None) -> InSync:
    """Who must have a message before it is acknowledged; ``proposed`` is a change whose outcome is not known."""
    return stored if proposed is None else stored | proposed


def confirmed(
    me: int, end: int, durable: int, acks: Mapping[int, int], stored: InSync, proposed: InSync | None, before: int
) -> int:
    """Up to where the log is acknowledged. ``acks`` has what each replica said in this term, ``before`` the last.

    If the set may be the master alone, it waits for its own disk: nobody else counts who has what a power cut takes.
    """
    others = {replica for replica, _ in required(stored, proposed) if replica != me}
    sets = (stored,) if proposed is None else (stored, proposed)
    alone = any(all(replica == me for replica, _ in found) for found in sets)
    return max(before, min([end, *([durable] if alone else []), *(acks.get(replica, 0) for replica in others)]))


def may_join(ack: int, confirm: int, epoch_start: int) -> bool:
    """Whether a replica has all that was acknowledged, and follows this term."""
    return ack >= confirm and ack >= epoch_start


def may_leave(me: int, left: InSync, durable: int, confirm: int, synchronous: bool) -> bool:
    """Whether the set may shrink to ``left``: what was acknowledged from two memories must not be in one alone.

    With ``synchronous`` flush one disk of the set has to have it, and that of a master before may be the only one.
    """
    alone = all(replica == me for replica, _ in left)
    return durable >= confirm or not (alone or synchronous)
