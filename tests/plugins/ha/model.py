"""A small world of replicas and a coordinator in which everything that can go wrong may, at any moment.

The rules are those of ``plugins/ha``; the world around them is made as unkind as the real one. Whoever may stand for
election may do so at any time, as if it took every other replica for dead; a master may sleep while others elect; what
was asked of the coordinator comes to it late, or after the process that asked died. A log is a tuple of (term,
message), and an offset is a position in it.

What does not matter for the rules is left out, to have fewer worlds to look at. A process that is killed is there
again at once, without all that it had in memory: one that stays away is one that does nothing. A connection that
breaks is the replica's being killed. A power cut takes any part of what was not synced. A change that the coordinator
will refuse, since its state is another by now, is refused at once.

Whoever stands does nothing until it knows the answer, as one that was killed does nothing: so it is killed first, and
to ask and to be elected is one step. What a killed process asked for is not kept where every replica of the set could
have asked for it: any of them may be stored as the master at any time, and not know it. That is more than can happen,
since a request is sent with the log on disk, and what holds in those worlds holds in fewer.

What nothing depends on any more is forgotten (:meth:`Model.settled`), so that worlds which differ in it are one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations, product
from typing import Any, NamedTuple

import attrs

from verniermq.plugins.ha import acks, election, epochs
from verniermq.plugins.ha.election import State

Log = tuple[tuple[int, int], ...]


class Violation(AssertionError):
    """An invariant does not hold."""


@attrs.frozen
class Rules:
    """What the broker does; a test changes one of them and sees that it is missed."""

    confirmed: Callable[..., Any] = acks.confirmed
    may_join: Callable[..., Any] = acks.may_join
    may_leave: Callable[..., Any] = acks.may_leave
    may_stand: Callable[..., Any] = election.may_stand
    elected: Callable[..., Any] = election.elected
    begin: Callable[..., Any] = epochs.begin
    agreed: Callable[..., Any] = epochs.agreed
    dispatch_limit: Callable[[int, int], int] = lambda confirm, end: confirm
    """Up to where the queues may know the log."""
    compares_revisions: bool = True
    """Whether the coordinator refuses what was asked for on the ground of an older state."""
    syncs_before_alone: bool = True
    """Whether the log is synced before others that have it leave the set, by an election too."""
    resumes_terms: bool = False
    """Whether a master that was killed goes on as the master of its term."""
    keeps_acks: bool = False
    """Whether a master counts what a replica acknowledged on a connection that is gone."""


class Asked(NamedTuple):
    """A change of the coordinator's state that was sent."""

    state: State
    taken: bool = False
    """Whether the coordinator took it, which whoever asked does not know yet."""


class Link(NamedTuple):
    """The master's side of a replica's connection."""

    ack: int = 0
    under_way: int = 0
    """A report that the replica sent and the master has not read."""
    open: bool = True
    """Whether the replica's side is still there."""


class Node(NamedTuple):
    """One replica."""

    number: int
    power: int = 0
    """How often it lost its power: its incarnation."""
    log: Log = ()
    synced: int = 0
    """At least so much is on its disk."""
    confirm: int = 0
    epochs: epochs.Epochs = ()
    follows: tuple[int, int] | None = None
    """The master that it has a connection to, and the term."""
    term: int = 0
    """Of which it is the master; 0 if it is none."""
    known: State | None = None
    """As a master: the last stored state that it knows of."""
    links: tuple[Link | None, ...] = ()
    asked: Asked | None = None
    """As a master: the change whose outcome it does not know."""
    appointed: int = 0
    """The term of which the master before made it the master, if it runs since then."""

    @property
    def name(self) -> tuple[int, str]:
        return self.number, str(self.power)


class World(NamedTuple):
    stored: State
    nodes: tuple[Node, ...]
    orphans: frozenset[State] = frozenset()
    """What killed processes asked for, and the coordinator has not seen yet, but for elections of the set's members."""
    acknowledged: Log = ()
    seen: Log = ()
    """What readers got from the queues of any replica."""
    sent: int = 0
    cuts: int = 0

    def with_node(self, node: Node, **changes: Any) -> World:
        number = node.number
        nodes = (*self.nodes[:number], node, *self.nodes[number + 1 :])
        return self._replace(nodes=nodes, **changes)


@attrs.frozen
class Limits:
    messages: int = 2
    terms: int = 2
    power_cuts: int = 1
    replicas: int = 3
    synchronous: bool = False
    """Flush: only then nothing acknowledged may be lost when all lose power."""
    hand_overs: bool = False
    """Planned switches, and who is made the master by what its killed process asked for."""


def first_world(limits: Limits) -> World:
    """Replica 0 is the master of term 1, all are in the set and connected, nothing is written."""
    everybody = frozenset((number, "0") for number in range(limits.replicas))
    state = State(1, 0, everybody)
    links = tuple(None if number == 0 else Link() for number in range(limits.replicas))
    master = Node(0, term=1, known=state, links=links, epochs=((1, 0),))
    others = (Node(number, follows=(0, 1), epochs=((1, 0),)) for number in range(1, limits.replicas))
    return World(state, (master, *others))


@attrs.define(eq=False)
class Model:
    """Every step that can come next, by name, and what must hold in each world."""

    limits: Limits
    rules: Rules = attrs.Factory(Rules)

    # --- steps -----------------------------------------------------------------------------

    def steps(self, world: World) -> Iterator[tuple[str, World]]:
        for name, after in self._steps(world):
            yield name, self.settled(after)

    def _steps(self, world: World) -> Iterator[tuple[str, World]]:
        for orphan in world.orphans:
            after = self._store(world._replace(orphans=world.orphans - {orphan}), orphan)
            yield "store late", self._appoint(after, orphan) if orphan.term > world.stored.term else after
        yield from self._late_elections(world)
        yield from self._power_cuts(world)
        for node in world.nodes:
            yield from self._killed(world, node)
            if node.asked is not None and not node.asked.taken:
                yield f"store {node.number}", self._stored(world, node, node.asked)
            if node.term:
                yield from self._as_master(world, node)
            else:
                yield from self._as_other(world, node)

    def _late_elections(self, world: World) -> Iterator[tuple[str, World]]:
        """A process of the set asked, was killed, and the next one did whatever it did since."""
        if world.stored.term == self.limits.terms:
            return
        for name in world.stored.in_sync:
            if world.nodes[name[0]].term != world.stored.term:  # a master that was killed leads no more
                state = self.rules.elected(world.stored, name)
                yield f"elect {name[0]} late", self._appoint(self._store(world, state), state)

    def _killed(self, world: World, node: Node) -> Iterator[tuple[str, World]]:
        killed = _empty(node)
        if self.rules.resumes_terms and node.term:
            killed = node._replace(asked=None, links=(None,) * self.limits.replicas)
        if killed != node:
            yield f"kill {node.number}", self._gone(world, node, killed)

    def _power_cuts(self, world: World) -> Iterator[tuple[str, World]]:
        """Of one replica, or of any at once where that takes nothing that was acknowledged."""
        if world.cuts == self.limits.power_cuts:
            return
        most = self.limits.replicas if self.limits.synchronous else 1
        for count in range(1, most + 1):
            for struck in combinations(world.nodes, count):
                for ends in product(*(range(node.synced, len(node.log) + 1) for node in struck)):
                    after = world._replace(cuts=world.cuts + 1)
                    for node, end in zip(struck, ends, strict=True):
                        now = after.nodes[node.number]
                        cut = _empty(now)._replace(
                            power=node.power + 1, log=node.log[:end], synced=end, confirm=min(node.confirm, end),
                            epochs=epochs.cut(node.epochs, end),
                        )  # fmt: skip
                        after = self._gone(after, now, cut)
                    yield f"power cut {[(node.number, end) for node, end in zip(struck, ends, strict=True)]}", after

    def _gone(self, world: World, node: Node, left: Node) -> World:
        """A process ends, and the next one has what is left. What it asked the coordinator for may come there yet."""
        if node.asked is not None and not node.asked.taken:
            world = world._replace(orphans=world.orphans | {node.asked.state})
        return self._without_links(world.with_node(left), node)

    def _without_links(self, world: World, gone: Node) -> World:
        """A process is gone: what it sent may still be read, and those who follow it notice."""
        nodes = []
        for other in world.nodes:
            if other.links and (link := other.links[gone.number]) is not None and link.open:
                closed = link._replace(open=False)
                other = other._replace(links=_put(other.links, gone.number, closed))
            if other.follows == (gone.number, gone.term):
                other = other._replace(follows=None)
            nodes.append(other)
        return world._replace(nodes=tuple(nodes))

    def _store(self, world: World, state: State) -> World:
        """The coordinator takes a change; whatever else was asked for on the ground of the old state it refuses."""
        if not self.rules.compares_revisions:
            return world._replace(stored=state)
        nodes = tuple(
            node._replace(asked=None if node.asked is not None and not node.asked.taken else node.asked, appointed=0)
            for node in world.nodes
        )
        return world._replace(nodes=nodes, stored=state, orphans=frozenset())

    def _stored(self, world: World, node: Node, asked: Asked) -> World:
        after = self._store(world, asked.state)
        after = after.with_node(node._replace(asked=asked._replace(taken=True)))
        return self._appoint(after, asked.state) if asked.state.term > node.term else after

    def _appoint(self, world: World, state: State) -> World:
        """Its process runs already, and will lead, though it did not ask for it."""
        chosen = world.nodes[state.master]
        if not self.limits.hand_overs or chosen.name not in state.in_sync:
            return world
        return world.with_node(chosen._replace(appointed=state.term))

    # --- a master --------------------------------------------------------------------------

    def _as_master(self, world: World, node: Node) -> Iterator[tuple[str, World]]:
        number = node.number
        if node.known is None:  # see settled
            if world.sent < self.limits.messages:
                longer = node._replace(log=(*node.log, (node.term, world.sent)))
                yield f"send {number}", world.with_node(longer, sent=world.sent + 1)
            return
        hands_over = node.asked is not None and node.asked.state.term > node.term
        if world.sent < self.limits.messages and not hands_over:
            longer = node._replace(log=(*node.log, (node.term, world.sent)))
            yield f"send {number}", self._confirm(world.with_node(longer, sent=world.sent + 1), number)
        for other, link in enumerate(node.links):
            if link is not None and link.under_way > link.ack:
                told = node._replace(links=_put(node.links, other, link._replace(ack=link.under_way)))
                yield f"ack {other} at {number}", self._confirm(world.with_node(told), number)
        if node.asked is None:
            yield from self._changes(world, node)
            if self.limits.hand_overs:
                yield from self._hand_over(world, node)
        elif hands_over and node.asked.taken:
            follows = node._replace(term=0, known=None, links=(), asked=None)
            yield f"step down {number}", self._without_links(world.with_node(follows), node)
        elif node.asked.taken:
            after = node._replace(known=node.asked.state, asked=None)
            yield f"answer {number}", self._confirm(world.with_node(after), number)
        alone = len(node.known.in_sync) == 1 or len(self._proposed(node) or (1, 2)) == 1
        if node.synced < len(node.log) and (alone or self.limits.synchronous):
            flushed = node._replace(synced=len(node.log))
            yield f"flush {number}", self._confirm(world.with_node(flushed), number)

    @staticmethod
    def _proposed(node: Node) -> acks.InSync | None:
        return None if node.asked is None else node.asked.state.in_sync

    def _changes(self, world: World, node: Node) -> Iterator[tuple[str, World]]:
        known = node.known
        if known is None or (world.stored != known and self.rules.compares_revisions):
            return  # it would be refused
        for number, link in enumerate(node.links):
            if number == node.number:
                continue
            member = next((replica for replica in known.in_sync if replica[0] == number), None)
            if member is not None:
                if link is not None and link.open and link.ack == len(node.log):
                    continue  # it is there and has everything
                left = known.in_sync - {member}
                before = node
                if (len(left) == 1 or self.limits.synchronous) and self.rules.syncs_before_alone:
                    before = node._replace(synced=len(node.log))
                if self.rules.may_leave(node.number, left, before.synced, node.confirm, self.limits.synchronous):
                    asked = Asked(attrs.evolve(known, in_sync=left))
                    yield f"drop {number} by {node.number}", world.with_node(before._replace(asked=asked))
            elif link is not None and link.open and self.rules.may_join(link.ack, node.confirm, node.epochs[-1][1]):
                asked = Asked(attrs.evolve(known, in_sync=known.in_sync | {world.nodes[number].name}))
                yield f"add {number} by {node.number}", world.with_node(node._replace(asked=asked))

    def _hand_over(self, world: World, node: Node) -> Iterator[tuple[str, World]]:
        """Everything is confirmed, nothing more is taken, and the other one has all: it becomes the master."""
        assert node.known is not None
        if node.known != world.stored or world.stored.term >= self.limits.terms or node.confirm < len(node.log):
            return
        for number, link in enumerate(node.links):
            is_whole = link is not None and link.open and link.ack == len(node.log)
            if is_whole and world.nodes[number].name in node.known.in_sync:
                asked = Asked(State(node.term + 1, number, node.known.in_sync))
                yield f"hand over to {number}", world.with_node(node._replace(asked=asked))

    def _confirm(self, world: World, number: int) -> World:
        """The master counts its acknowledgements, answers producers and lets readers see what is confirmed."""
        node = world.nodes[number]
        said = {other: link.ack for other, link in enumerate(node.links) if link is not None}
        assert node.known is not None
        stored, proposed = node.known.in_sync, self._proposed(node)
        end = node.synced if self.limits.synchronous else len(node.log)
        confirm = self.rules.confirmed(number, end, node.synced, said, stored, proposed, node.confirm)
        world = _show(world, node.log, self.rules.dispatch_limit(confirm, len(node.log)))
        acknowledged = _extend(world.acknowledged, node.log[:confirm], "acknowledged twice at one offset")
        if confirm == node.confirm:
            return world._replace(acknowledged=acknowledged)
        # Those who follow hear of it at once: the more they know to be confirmed, the less they may cut off.
        nodes = tuple(
            other._replace(confirm=max(other.confirm, min(confirm, len(other.log))))
            if other.number == number or other.follows == (number, node.term)
            else other
            for other in world.nodes
        )
        return world._replace(nodes=nodes, acknowledged=acknowledged)

    # --- the others ------------------------------------------------------------------------

    def _as_other(self, world: World, node: Node) -> Iterator[tuple[str, World]]:
        if node.appointed:
            yield f"appointed {node.number}", self._lead(world, node)
        if node.follows is not None:
            yield from self._follow(world, node)
        else:
            yield from self._connect(world, node)
        if world.stored.term < self.limits.terms:
            live = {other.number: other.name[1] for other in world.nodes}
            logs = [
                election.Candidate(other.epochs[-1][0] if other.epochs else 0, len(other.log), other.number)
                for other in world.nodes
            ]
            if self.rules.may_stand(world.stored, node.name, live, logs):
                wanted = self.rules.elected(world.stored, node.name)
                alone, stands = self._stand(world, node)
                yield f"elect {node.number}", self._begin(self._store(alone, wanted), stands, wanted)
                if node.name not in world.stored.in_sync:
                    asked = alone.with_node(_empty(stands), orphans=world.orphans | {wanted})
                    yield f"ask for {node.number}", asked

    def _stand(self, world: World, node: Node) -> tuple[World, Node]:
        """Close the connection, read, sync."""
        if node.follows is not None:
            world = _close(world, node)
        synced = len(node.log) if self.rules.syncs_before_alone else node.synced
        return world, node._replace(synced=synced, follows=None)

    def _lead(self, world: World, node: Node) -> World:
        if node.follows is not None:
            world = _close(world, node)
        return self._begin(world, node._replace(follows=None, appointed=0), world.stored)

    def _begin(self, world: World, node: Node, state: State) -> World:
        """It is elected. One that does not know it yet is like a master that does nothing yet."""
        began = node._replace(
            asked=None, appointed=0, term=state.term, known=state, links=(None,) * self.limits.replicas,
            epochs=self.rules.begin(node.epochs, state.term, len(node.log)),
        )  # fmt: skip
        return self._confirm(world.with_node(began), node.number)

    def _connect(self, world: World, node: Node) -> Iterator[tuple[str, World]]:
        """Follow the master that the coordinator names, if it is one: cut what it does not have, and report at once."""
        master = world.nodes[world.stored.master]
        if master.term != world.stored.term or master.number == node.number:
            return
        agreed = self.rules.agreed(node.epochs, len(node.log), master.epochs, len(master.log))
        if agreed < node.confirm:
            raise Violation(f"I6: replica {node.number} would cut to {agreed}, below its confirmed {node.confirm}")
        cut = node._replace(
            log=node.log[:agreed], synced=min(node.synced, agreed), epochs=epochs.cut(master.epochs, agreed),
            follows=(master.number, master.term), confirm=max(node.confirm, min(master.confirm, agreed)),
        )  # fmt: skip
        old = master.links[node.number]
        kept = old.ack if old is not None and self.rules.keeps_acks else 0
        links = _put(master.links, node.number, Link(kept, max(kept, agreed)))
        yield f"follow {node.number}", world.with_node(cut).with_node(master._replace(links=links))

    @staticmethod
    def _follow(world: World, node: Node) -> Iterator[tuple[str, World]]:
        assert node.follows is not None
        master = world.nodes[node.follows[0]]
        link = master.links[node.number]
        assert link is not None
        assert link.open
        end = len(node.log)
        if end < len(master.log):
            copied = node._replace(log=(*node.log, master.log[end]), epochs=epochs.cut(master.epochs, end + 1),
                confirm=max(node.confirm, min(master.confirm, end + 1)),
            )  # fmt: skip
            links = _put(master.links, node.number, link._replace(under_way=end + 1))
            yield f"copy to {node.number}", world.with_node(copied).with_node(master._replace(links=links))

    # --- what does not matter any more -----------------------------------------------------

    def settled(self, world: World) -> World:
        """The same world without what no step to come depends on."""
        for node in world.nodes:
            settled = node
            if node.term and node.term < world.stored.term and self._is_over(node):
                # It may write for itself alone, and whoever is killed can do what it can do when it was.
                left = world.sent < self.limits.messages
                settled = node._replace(known=None, links=(), asked=None) if left else _empty(node)
            elif node.links and not self.rules.keeps_acks:
                links = tuple(link and _heard(link, node.confirm) for link in node.links)
                settled = node if links == node.links else node._replace(links=links)
            if settled.known is None and self._never_asks_its_disk(world):
                settled = settled._replace(synced=0)
            if settled is not node:
                world = world.with_node(settled)
        return world

    def _is_over(self, node: Node) -> bool:
        """Whether this master of an earlier term can confirm nothing more: it only waits for its end."""
        if node.known is None or any(link is not None and link.open for link in node.links):
            return False
        said = {other: link.under_way for other, link in enumerate(node.links) if link is not None}
        stored, proposed = node.known.in_sync, self._proposed(node)
        cases = [(stored, proposed)] if proposed is None else [(stored, proposed), (stored, None), (proposed, None)]
        end = len(node.log) + self.limits.messages
        return all(
            self.rules.confirmed(node.number, end, end, said, *case, node.confirm) == node.confirm for case in cases
        )

    def _never_asks_its_disk(self, world: World) -> bool:
        """Whether one that does not lead may lose no more, and syncs before it leads."""
        no_more_cuts = world.cuts == self.limits.power_cuts
        return no_more_cuts and self.rules.syncs_before_alone and not self.limits.hand_overs

    # --- what must hold --------------------------------------------------------------------

    @staticmethod
    def check(world: World) -> None:
        """
        Raises:
            Violation: an invariant does not hold.
        """
        terms = [node.term for node in world.nodes if node.term]
        if len(set(terms)) != len(terms):
            raise Violation(f"I1: two masters of one term: {terms}")
        acknowledged = world.acknowledged
        in_sync = world.stored.in_sync
        for node in world.nodes:
            if node.name in in_sync and node.log[: len(acknowledged)] != acknowledged:
                raise Violation(f"I2: replica {node.number} is in the set and lacks what was acknowledged")
            if node.term == world.stored.term and node.log[: len(acknowledged)] != acknowledged:
                raise Violation(f"I4: master {node.number} lacks what was acknowledged")
            if node.log[: node.confirm] != world.seen[: node.confirm]:
                raise Violation(f"I7: replica {node.number} confirms what nobody else has")
        written = {}
        for node in world.nodes:
            for offset, record in enumerate(node.log):
                if written.setdefault((offset, record[0]), record) != record:
                    raise Violation(f"I7: two records of term {record[0]} at offset {offset}")


def _empty(node: Node) -> Node:
    """What a process has forgotten when it starts again."""
    return node._replace(follows=None, term=0, known=None, links=(), asked=None, appointed=0)


def _heard(link: Link, confirm: int) -> Link | None:
    """What a replica has below what is confirmed neither lets it join nor confirms anything."""
    if link.under_way <= confirm and not link.open:
        return None
    ack = link.ack if link.ack >= confirm else 0
    return Link(ack, link.under_way if link.under_way >= confirm else 0, link.open)


def _put(links: tuple[Link | None, ...], number: int, link: Link | None) -> tuple[Link | None, ...]:
    return (*links[:number], link, *links[number + 1 :])


def _close(world: World, node: Node) -> World:
    """A replica closes its connection; what it sent may still be read."""
    assert node.follows is not None
    master = world.nodes[node.follows[0]]
    link = master.links[node.number]
    assert link is not None
    return world.with_node(master._replace(links=_put(master.links, node.number, link._replace(open=False))))


def _show(world: World, log: Log, end: int) -> World:
    return world._replace(seen=_extend(world.seen, log[:end], "I5: readers saw two messages at one offset"))


def _extend(known: Log, log: Log, why: str) -> Log:
    common = min(len(known), len(log))
    if known[:common] != log[:common]:
        raise Violation(f"{why}: {known[:common]} and {log[:common]}")
    return log if len(log) > len(known) else known
