"""Logical queues and the physical ones that they lie in."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from verniermq.kernel import InvalidParameter
from verniermq.plugins.statictopic.mapping import MappedQueue, TopicMapping, following, part_of

A = MappedQueue(0, 3, "broker-a", 0)
B = MappedQueue(1, 0, "broker-b", 1000)
UNDECIDED = MappedQueue(2, 1, "broker-c", -1)


def mapping(epoch: int = 5, **chains: tuple[MappedQueue, ...]) -> TopicMapping:
    return TopicMapping("T", 10, "broker-a", epoch, chains={int(name[1:]): chain for name, chain in chains.items()})


def test_offsets_go_on_over_the_parts_of_a_queue() -> None:
    assert [part_of((A, B), offset) for offset in (0, 999, 1000, 5000)] == [A, A, B, B]
    assert (B.physical(1007), B.logical(7), B.delta) == (7, 1007, 1000)


def test_a_part_without_a_beginning_has_no_offsets_yet() -> None:
    assert part_of((A, B, UNDECIDED), 10**12) is B
    assert following((A, B, UNDECIDED), A) is B
    assert following((A, B, UNDECIDED), B) is None


def test_what_is_before_all_parts_is_in_the_first() -> None:
    assert part_of((B, attrs.evolve(UNDECIDED, logic_offset=2000)), 5) is B


def test_a_mapping_is_read_as_it_was_written() -> None:
    whole = mapping(q0=(A,), q7=(A, B))
    assert TopicMapping.from_json(whole.as_json()) == whole
    assert whole.as_route()["currIdMap"] == {"0": 3}, "queue 7 is led by another broker"


@pytest.mark.parametrize(
    ("chain", "why"),
    [
        ((B, A), "generation 0 follows 1"),
        ((attrs.evolve(A, queue_id=-1),), "out of range"),
        ((attrs.evolve(A, start_offset=-1),), "out of range"),
        ((attrs.evolve(A, start_offset=9, end_offset=3),), "ends before it begins"),
        ((attrs.evolve(A, logic_offset=-1), B), "only its last part may lack a logic offset"),
        ((attrs.evolve(A, logic_offset=1000), B), "offset 1000 follows 1000"),
        ((attrs.evolve(A, end_offset=2000), B), "offset 1000 follows 2000"),
    ],
)
def test_a_chain_that_is_none_is_refused(chain: tuple[MappedQueue, ...], why: str) -> None:
    with pytest.raises(InvalidParameter, match=why):
        TopicMapping.from_json(mapping(q0=chain).as_json())


@pytest.mark.parametrize(
    "members",
    [
        {"topic": None, "epoch": None}, {"totalQueues": "x"}, {"totalQueues": -1}, {"totalQueues": 10**9},
        {"hostedQueues": {"0": [7]}}, {"hostedQueues": {"10": []}}, {"hostedQueues": {"x": []}}, {"hostedQueues": [1]},
    ],
)  # fmt: skip
def test_a_mapping_that_is_none_is_refused(members: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameter):
        TopicMapping.from_json({**mapping().as_json(), **members})


def test_a_successor_keeps_the_chains_that_it_does_not_name() -> None:
    old, new = mapping(5, q0=(A,), q1=(A,)), mapping(6, q1=(A, UNDECIDED))
    assert new.after(old, force=False).chains == {0: (A,), 1: (A, UNDECIDED)}


@pytest.mark.parametrize(
    ("new", "why"),
    [
        (mapping(4, q0=(A,)), "epoch 4 is older than 5"),
        (attrs.evolve(mapping(6, q0=(A,)), scope="__other__"), "scope"),
        (mapping(5), "is missing, and the epoch is the same"),
        (mapping(5, q0=(A, B)), "new leader, and the epoch is the same"),
        (mapping(6, q0=(attrs.evolve(A, queue_id=4),)), "generation 0 is .* and cannot be changed"),
        (mapping(6, q0=(attrs.evolve(A, logic_offset=7),)), "generation 0 is .* and cannot be changed"),
    ],
)
def test_what_is_decided_cannot_be_changed_but_by_force(new: TopicMapping, why: str) -> None:
    old = mapping(5, q0=(A,))
    with pytest.raises(InvalidParameter, match=why):
        new.after(old, force=False)
    assert new.after(old, force=True).epoch == new.epoch


def test_an_offset_that_was_open_may_be_decided() -> None:
    old, new = mapping(5, q0=(A, UNDECIDED)), mapping(5, q0=(A, attrs.evolve(UNDECIDED, logic_offset=2000)))
    assert new.after(old, force=False) == new
