"""Who may become master, and what the coordinator is asked to store then: rules without sockets and clocks.

Whether the old master is really gone does not matter for safety: whoever stands has stopped acknowledging to it
before, was in the stored set, and so has all that was acknowledged, and the old master needs it for anything more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from verniermq.plugins.ha.acks import InSync, Replica


@attrs.frozen
class State:
    """What the coordinator stores of one broker name; changed only if nobody changed it meanwhile."""

    term: int
    master: int
    in_sync: InSync


@attrs.frozen(order=True)
class Candidate:
    """A live replica, by what it wrote last: the greater the better."""

    epoch: int
    end: int
    replica: int


def may_stand(state: State, me: Replica, live: Mapping[int, str], logs: Iterable[Candidate]) -> bool:
    """Whether a replica has all that was acknowledged. ``live`` has the incarnation of each replica that is up, and
    ``logs`` how far the log of each goes.

    If all of the set lost power and are back, the one with the longest log may, and no other: with synchronous flush
    what was acknowledged was on the disk of one of them, and what all of them lost nobody has. It must have begun the
    term: the set of a term that nobody began may come from a request that reached the coordinator late, when whoever
    asked had been started again and had acknowledged more to the master before, who is not in this set and has it.
    """
    if me in state.in_sync:
        return True
    members = {number for number, _ in state.in_sync}
    if me[0] not in members or not _all_came_back(state, live):
        return False
    known = {found.replica: found for found in logs if found.replica in members}
    return ranked(known.values())[:1] == [me[0]] and known[me[0]].epoch == state.term


def _all_came_back(state: State, live: Mapping[int, str]) -> bool:
    return all(live.get(replica, incarnation) != incarnation for replica, incarnation in state.in_sync)


def ranked(candidates: Iterable[Candidate]) -> list[int]:
    """The replicas that may stand, the best first; the lower number of two equal ones."""
    best = sorted(candidates, key=lambda found: (-found.epoch, -found.end, found.replica))
    return [found.replica for found in best]


def elected(state: State, me: Replica) -> State:
    """The next term. The old master is out of the set until it has caught up; so is whoever lost power."""
    left = {replica for replica in state.in_sync if replica[0] not in (me[0], state.master)}
    if me not in state.in_sync:
        left = set()
    return State(state.term + 1, me[0], frozenset({me, *left}))
