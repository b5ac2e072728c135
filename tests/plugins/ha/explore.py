"""Look at every world that the model can come to, worlds that differ in the replicas' numbers only counted once.

::

    python -m tests.plugins.ha.explore --messages 3 --terms 3
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from itertools import chain, permutations, product

import attrs

from tests.plugins.ha.model import Limits, Log, Model, Node, Rules, Violation, World, first_world
from verniermq.plugins.ha.election import State


@attrs.frozen
class Found:
    """What an exploration came to."""

    states: int
    steps: int
    violation: str = ""
    path: tuple[str, ...] = ()
    most_acknowledged: int = 0
    highest_term: int = 0
    left: int = 0
    """Worlds that were met and not looked behind, if the exploration ended early."""


def explore(
    limits: Limits,
    rules: Rules | None = None,
    most: int | None = None,
    behind: Sequence[str] = (),
    on_depth: Callable[[int, int, int], None] = lambda depth, states, frontier: None,
) -> Found:
    """Breadth first, so the path to a violation is a shortest one; ``most`` states at most.

    ``behind`` these steps alone: what needs a long way to come to would take too many states. ``on_depth`` is told how
    many steps away the worlds are that come next, how many are known, and how many come next.
    """
    model = Model(limits, rules or Rules())
    first = first_world(limits)
    for step in behind:
        first = dict(model.steps(first))[step]
    came_from: dict[int, tuple[int, str]] = {}
    start = _code(first)
    came_from[start] = (start, "")
    frontier = [(start, first)]
    steps = highest = acknowledged = depth = 0
    while frontier:
        on_depth(depth, len(came_from), len(frontier))
        depth += 1
        following: list[tuple[int, World]] = []
        for number, (code, world) in enumerate(frontier):
            name = ""
            try:
                for name, after in model.steps(world):
                    steps += 1
                    found = _code(after)
                    if found in came_from:
                        continue
                    came_from[found] = (code, name)
                    model.check(after)
                    highest = max(highest, after.stored.term)
                    acknowledged = max(acknowledged, len(after.acknowledged))
                    following.append((found, after))
            except Violation as error:
                path = (*_path(came_from, code), name)
                return Found(len(came_from), steps, str(error), path, acknowledged, highest)
            if most is not None and len(came_from) >= most:
                left = len(frontier) - number - 1 + len(following)
                return Found(len(came_from), steps, "", (), acknowledged, highest, left)
        frontier = following
    return Found(len(came_from), steps, "", (), acknowledged, highest)


def _path(came_from: dict[int, tuple[int, str]], code: int) -> tuple[str, ...]:
    names = []
    while came_from[code][1]:
        code, name = came_from[code]
        names.append(name)
    return tuple(reversed(names))


# --- one name for all worlds that are alike ------------------------------------------------


def _code(world: World) -> int:
    """Replicas are put in an order that does not depend on their numbers; those that look alike, in every order."""
    groups: dict[int, list[int]] = {}
    for node in world.nodes:
        groups.setdefault(_look(world, node), []).append(node.number)
    alike = [permutations(groups[look]) for look in sorted(groups)]
    return min(_encoded(world, tuple(chain.from_iterable(parts))) for parts in product(*alike))


def _look(world: World, node: Node) -> int:
    """What can be said of a replica without naming another."""
    asked, stored = node.asked, world.stored
    return hash(
        (
            node.power, tuple(term for term, _ in node.log), node.synced, node.confirm, node.epochs, node.term,
            node.follows is None, None if asked is None else (asked.taken, asked.state.term),
            node.name in stored.in_sync, node.number == stored.master, node.appointed,
        )
    )  # fmt: skip


def _encoded(world: World, order: tuple[int, ...]) -> int:
    """A number for a world, its replicas taken in this order, and its messages in the order in which they are met."""
    place = {number: position for position, number in enumerate(order)}
    names: dict[int, int] = {}

    def log(found: Log) -> Log:
        return tuple((term, names.setdefault(message, len(names))) for term, message in found)

    def state(found: State | None) -> object:
        if found is None:
            return None
        members = frozenset((place[number], power) for number, power in found.in_sync)
        return found.term, place[found.master], members

    acknowledged, seen = log(world.acknowledged), log(world.seen)
    nodes = []
    for number in order:
        found = world.nodes[number]
        links = tuple(found.links[other] for other in order) if found.links else ()
        follows = None if found.follows is None else (place[found.follows[0]], found.follows[1])
        asked = None if found.asked is None else (state(found.asked.state), found.asked.taken)
        nodes.append(
            (
                found.power, log(found.log), found.synced, found.confirm, found.epochs, follows, found.term,
                state(found.known), links, asked, found.appointed,
            )
        )  # fmt: skip
    orphans = frozenset(map(state, world.orphans))
    return hash((state(world.stored), tuple(nodes), orphans, acknowledged, seen, world.sent, world.cuts))


def main() -> None:
    parser = argparse.ArgumentParser(description="Explore the rules of acknowledgement and election.")
    parser.add_argument("--messages", type=int, default=2)
    parser.add_argument("--terms", type=int, default=2)
    parser.add_argument("--power-cuts", type=int, default=1)
    parser.add_argument("--synchronous", action="store_true", help="Flush before an acknowledgement.")
    parser.add_argument("--hand-overs", action="store_true", help="Planned switches.")
    parser.add_argument("--most", type=int, help="End after so many worlds, and say how many were left.")
    options = parser.parse_args()
    began = time.process_time()
    limits = Limits(
        options.messages,
        options.terms,
        options.power_cuts,
        synchronous=options.synchronous,
        hand_overs=options.hand_overs,
    )

    def show(depth: int, states: int, frontier: int) -> None:
        print(
            f"{depth} steps: {states} states, {frontier} of them next, {time.process_time() - began:.0f} s", flush=True
        )

    found = explore(limits, most=options.most, on_depth=show)
    print(f"{found.states} states, {found.steps} steps, {time.process_time() - began:.0f} s of CPU time")
    print(f"looked behind all but {found.left}" if found.left else "looked behind all of them")
    if found.violation:
        raise SystemExit(f"{found.violation}\n" + "\n".join(f"  {name}" for name in found.path))


if __name__ == "__main__":
    main()
