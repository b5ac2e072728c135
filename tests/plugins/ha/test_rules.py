"""The rules of acknowledgement and election hold in every world, and each of them is needed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs
import pytest

from tests.plugins.ha.explore import explore
from tests.plugins.ha.model import Limits, Rules
from verniermq.plugins.ha import acks, election, epochs
from verniermq.plugins.ha.election import Candidate, State

SET = frozenset({(0, "0"), (1, "0"), (2, "0")})


@pytest.mark.parametrize(
    ("limits", "states"), [(Limits(2, 2, 0), 83_084), (Limits(1, 1, 1), 5_220)], ids=["two terms", "a power cut"]
)
def test_no_world_breaks_an_invariant(limits: Limits, states: int) -> None:
    found = explore(limits)

    assert found.violation == "", "\n".join(found.path)
    assert (found.most_acknowledged, found.highest_term) == (limits.messages, limits.terms)
    assert found.states == states, "the model has other worlds now: say how many"


SWITCHED = (
    "send 0", "copy to 1", "copy to 2", "ack 1 at 0", "ack 2 at 0", "flush 0", "hand over to 1", "store 0",
    "appointed 1",
)  # fmt: skip
"""Replica 1 leads, and the only disk that must have the message is that of replica 0."""
DARK = Limits(1, 3, 1, synchronous=True, hand_overs=True)


def test_with_synchronous_flush_all_may_lose_power_after_a_switch() -> None:
    found = explore(DARK, behind=SWITCHED)

    assert found.violation == "", "\n".join(found.path)
    assert found.highest_term == 3
    assert found.states == 22_061, "the model has other worlds now: say how many"


def _without_union(
    me: int, end: int, durable: int, said: Mapping[int, int], stored: Any, proposed: Any, before: int
) -> int:
    return acks.confirmed(me, end, durable, said, stored, None, before)


def _smaller_at_once(
    me: int, end: int, durable: int, said: Mapping[int, int], stored: Any, proposed: Any, before: int
) -> int:
    return acks.confirmed(me, end, durable, said, stored if proposed is None else proposed, None, before)


def _without_own_disk(
    me: int, end: int, durable: int, said: Mapping[int, int], stored: Any, proposed: Any, before: int
) -> int:
    return acks.confirmed(me, end, end, said, stored, proposed, before)


def _any_one(me: int, end: int, durable: int, said: Mapping[int, int], stored: Any, proposed: Any, before: int) -> int:
    return max(before, min(end, max(said.values(), default=0)))


MUTATIONS = {
    "a set that is asked for does not count before the answer": Rules(confirmed=_without_union),
    "a smaller set counts before it is stored": Rules(confirmed=_smaller_at_once),
    "one replica of the set is enough": Rules(confirmed=_any_one),
    "a master alone does not wait for its disk": Rules(confirmed=_without_own_disk),
    "the log is not synced before the others leave": Rules(
        syncs_before_alone=False, may_leave=lambda *_: True, confirmed=acks.confirmed
    ),
    "queues know what is not confirmed": Rules(dispatch_limit=lambda confirm, end: end),
    "a term that begins where the last one did is not recorded": Rules(
        begin=lambda known, term, start: known if known[-1][1] == start else (*known, (term, start))
    ),
    "a log is never cut": Rules(agreed=lambda mine, my_end, theirs, their_end: min(my_end, their_end)),
    "anybody may stand": Rules(may_stand=lambda *_: True),
    "who lost power stands as if it had not": Rules(
        may_stand=lambda state, me, live, logs: me[0] in {number for number, _ in state.in_sync}
    ),
    "whoever connects joins": Rules(may_join=lambda *_: True),
    "the coordinator does not compare revisions": Rules(compares_revisions=False),
    "a killed master goes on with its term": Rules(resumes_terms=True),
    "what was acknowledged before a power cut counts": Rules(keeps_acks=True),
}


def _leaves_other_disks(me: int, left: acks.InSync, durable: int, confirm: int, synchronous: bool) -> bool:
    return acks.may_leave(me, left, durable, confirm, False)


def _any_of_those_that_came_back(
    state: State, me: acks.Replica, live: Mapping[int, str], logs: Iterable[Candidate]
) -> bool:
    return election.may_stand(state, me, live, [found for found in logs if found.replica == me[0]])


def _without_a_beginning(state: State, me: acks.Replica, live: Mapping[int, str], logs: Iterable[Candidate]) -> bool:
    known = list(logs)
    begun = attrs.evolve(state, term=max(found.epoch for found in known))
    return election.may_stand(begun, me, live, known)


def test_the_only_disk_that_has_a_message_must_not_leave() -> None:
    """Where those that lost power may stand for a term whose beginning they lost; otherwise nobody may."""
    rules = Rules(may_leave=_leaves_other_disks, syncs_before_alone=False, may_stand=_without_a_beginning)

    assert explore(DARK, rules, most=60_000, behind=SWITCHED).violation


TWO_LEFT = ("kill 2", "drop 2 by 0", "store 0", "answer 0")


def test_a_term_that_nobody_began_says_nothing_of_those_that_lost_power() -> None:
    """Replica 1 asks and is killed; the next one acknowledges a message to replica 0; then the coordinator makes it the
    master alone, and its power fails."""
    limits = Limits(1, 3, 1)

    missed = explore(limits, Rules(may_stand=_without_a_beginning), most=60_000, behind=TWO_LEFT)
    assert missed.violation
    assert any("late" in step for step in missed.path)
    assert explore(limits, most=missed.states, behind=TWO_LEFT).violation == ""


def test_of_those_that_lost_power_not_any_may_stand() -> None:
    rules = Rules(may_stand=_any_of_those_that_came_back)

    assert explore(Limits(1, 2, 1, synchronous=True), rules, most=60_000).violation


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_rule_that_is_changed_is_missed(name: str) -> None:
    limits = Limits(1, 2, 1) if "disk" in name or "power" in name or "synced" in name else Limits(2, 2, 0)

    found = explore(limits, MUTATIONS[name], most=60_000)

    assert found.violation, f"{found.states} states, and nothing is wrong in them"


# --- the rules by themselves ---------------------------------------------------------------


def test_what_all_of_the_set_have_is_confirmed() -> None:
    assert acks.confirmed(0, 100, 0, {1: 90, 2: 80}, SET, None, 0) == 80
    assert acks.confirmed(0, 100, 0, {1: 90}, SET, None, 0) == 0
    assert acks.confirmed(0, 100, 0, {1: 90, 2: 80}, SET - {(2, "0")}, None, 0) == 90
    assert acks.confirmed(0, 100, 0, {1: 90, 2: 80}, SET - {(2, "0")}, SET, 0) == 80
    assert acks.confirmed(0, 100, 70, {1: 90}, frozenset({(0, "0"), (1, "0")}), frozenset({(0, "0")}), 0) == 70
    assert acks.confirmed(0, 100, 70, {}, frozenset({(0, "0")}), None, 75) == 75


def test_who_is_elected_and_by_what() -> None:
    state = State(4, 0, SET)
    assert election.elected(state, (1, "0")) == State(5, 1, SET - {(0, "0")})
    assert election.elected(state, (0, "0")) == State(5, 0, SET)
    logs = [Candidate(4, 90, 0), Candidate(4, 100, 1), Candidate(4, 80, 2), Candidate(9, 900, 7)]
    assert not election.may_stand(state, (1, "1"), {1: "1", 2: "0"}, logs)
    rebooted = {0: "1", 1: "1", 2: "1"}
    assert election.may_stand(state, (1, "1"), rebooted, logs)
    assert not election.may_stand(state, (0, "1"), rebooted, logs)
    assert not election.may_stand(state, (7, "1"), rebooted, logs)
    assert not election.may_stand(attrs.evolve(state, term=5), (1, "1"), rebooted, logs)
    assert election.elected(state, (1, "1")) == State(5, 1, frozenset({(1, "1")}))
    assert not election.may_stand(state, (1, "1"), {0: "1", 1: "1"}, logs)
    ranked = election.ranked([Candidate(3, 900, 1), Candidate(4, 100, 2), Candidate(4, 100, 0), Candidate(4, 50, 3)])
    assert ranked == [0, 2, 3, 1]


def test_epochs_tell_from_where_two_logs_agree() -> None:
    old = ((1, 0), (2, 500))
    assert epochs.begin(old, 3, 800) == ((1, 0), (2, 500), (3, 800))
    assert epochs.begin(old, 3, 500) == ((1, 0), (3, 500))
    assert epochs.cut(old, 500) == old
    assert epochs.cut(old, 499) == ((1, 0),)
    assert epochs.agreed(old, 900, ((1, 0), (2, 500), (3, 700)), 1000) == 700
    assert epochs.agreed(old, 600, ((1, 0), (2, 500), (3, 700)), 1000) == 600
    assert epochs.agreed(old, 900, ((1, 0), (3, 400)), 1000) == 400
    assert epochs.agreed(((1, 0),), 900, ((2, 0),), 1000) == 0
    assert epochs.agreed((), 0, ((2, 0),), 1000) == 0
