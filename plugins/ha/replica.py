"""One of the replicas that choose their master: it follows, stands, or leads (RocketMQ: ``ReplicasManager``).

::

             elected, or appointed by the master
    follows ────────────────────────────────────> leads
       ^  └─ the master is gone: stands ─┘          │
       └────────── another term has begun ──────────┘

``election.py`` and ``acks.py`` have the rules and say why they are safe. Nothing here depends on how long something
takes: a lease that ran out is a reason to stand, never a permission.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread
import attrs

from verniermq.kernel import Context, RequestRefused, Role, StoreError
from verniermq.plugins.ha import epochfile
from verniermq.plugins.ha.acks import Replica
from verniermq.plugins.ha.coordinator import ChangeRefused, Coordinator, CoordinatorTrouble, Live, Snapshot
from verniermq.plugins.ha.election import Candidate, State, elected, may_stand, ranked
from verniermq.plugins.ha.epochs import Epochs, begin, cut
from verniermq.plugins.ha.follower import Following
from verniermq.plugins.ha.leader import Deposed, Leader
from verniermq.plugins.ha.settings import Config
from verniermq.plugins.ha.switchframes import Greeting

logger = logging.getLogger(__name__)

RANK_SECONDS: Final = 0.15
"""A replica that is not the best waits this long for each better one."""
LOOK_SECONDS: Final = 1.0
AGAIN_SECONDS: Final = 0.3
SWITCH_SECONDS: Final = 1.0
"""A planned switch waits so long for the other one to have everything; sends are held meanwhile."""


class Members:
    """The replica of this broker. ``me`` is its number and incarnation."""

    def __init__(
        self, broker: Context, config: Config, coordinator: Coordinator, me: Replica, *, whole: bool = True
    ) -> None:
        self.me = me
        self.whole = whole
        """Whether the log has all that this replica acknowledged. One that may lack some is not alive to others until
        it has caught up; needed where replicas are known by their numbers alone."""
        self.leader: Leader | None = None
        self.following: Following | None = None
        self.snapshot: Snapshot | None = None
        """The last that was read."""
        self.trouble = "not asked yet"
        """Why the coordinator cannot be asked; empty if it can."""
        self.epochs: Epochs = ()
        self.stands = True
        """Whether it may become the master by itself; one that is about to stop would be a master for a moment only."""
        self.ha_address = ""
        self._table_end = 0
        self.on_role: Callable[[], None] = lambda: None
        self.on_whole: Callable[[], None] = lambda: None
        self._broker, self._config, self._coordinator = broker, config, coordinator
        self._news = anyio.Event()
        self._stop_following: Callable[[], None] | None = None
        self._stopped_following = anyio.Event()
        self._first_term: int | None = None
        """The term of the first state that this process saw: of that and earlier ones it may have been the master."""
        self._last_led = 0
        self._refused_term = 0
        """The term whose master has no process any more."""
        self._said = ""
        self._leaving = False

    @property
    def term(self) -> int:
        """The newest one that is known."""
        state = self.snapshot.state if self.snapshot is not None else None
        return 0 if state is None else state.term

    def note_topics(self, table_end: int) -> None:
        """The topics are a master's, copied when our log ended at ``table_end``."""
        self._table_end = table_end

    # --- life ------------------------------------------------------------------------------

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._stay_alive)
            tasks.start_soon(self._watch)
            try:
                while True:
                    await self._look(tasks)
                    await self._wait()
            finally:
                self._stop_leading("this broker stops, or its work in ha failed")

    async def leave(self) -> None:
        """Say that this replica is gone.

        Raises:
            CoordinatorTrouble: the coordinator cannot be told.
        """
        self._leaving = True
        await self._coordinator.leave()

    async def _wait(self) -> None:
        with anyio.move_on_after(LOOK_SECONDS):
            await self._news.wait()
        self._news = anyio.Event()

    def hurry(self) -> None:
        """Something has changed: look again."""
        self._news.set()

    async def _watch(self) -> None:
        while True:
            try:
                await self._coordinator.changed()
            except CoordinatorTrouble as error:
                self.trouble = str(error)
                await self._broker.clock.sleep(AGAIN_SECONDS)
            self.hurry()

    async def _stay_alive(self) -> None:
        said: Live | None = None
        while not self._leaving:
            following = self.following
            if not self.whole and (following is None or not following.caught_up):
                self._say(
                    "this replica lost power and may lack what it acknowledged; it does not count before it follows"
                )
                await self._broker.clock.sleep(AGAIN_SECONDS)
                continue
            if not self.whole:
                self.whole = True
                self.on_whole()
            live = self.live()
            try:
                if said is None or not await self._coordinator.keep_alive() or live != said:
                    await self._coordinator.announce(self.me[0], live)
                    said = live
            except CoordinatorTrouble as error:
                self._complain(str(error))
                said = None
            await self._broker.clock.sleep(self._config.ttl / 3 if said is not None else AGAIN_SECONDS)

    @property
    def why_idle(self) -> str:
        """Why this replica neither leads nor follows; empty if it does, or is about to."""
        return "" if self.leader is not None or self.following is not None else self._said

    def is_led(self, term: int) -> bool:
        """Whether this replica leads that term, or hears who does."""
        leader, following = self.leader, self.following
        if leader is not None:
            return leader.term == term
        return following is not None and following.connected and following.term == term

    @property
    def known_epochs(self) -> Epochs:
        """Those of the log as it is now, also while it follows."""
        return cut(self.epochs if self.following is None else self.following.epochs, self._broker.store.end)

    def live(self) -> Live:
        """What this replica says of itself."""
        store = self._broker.store
        epochs = self.known_epochs
        return Live(
            self.me[1], self._broker.address, self.ha_address, epochs[-1][0] if epochs else 0, store.copied_end,
            store.dispatch_limit or 0, 0 if self.leader is None else self.leader.term,
        )  # fmt: skip

    def _complain(self, trouble: str) -> None:
        if trouble and trouble != self.trouble:
            logger.warning("%s", trouble)
        self.trouble = trouble

    def _say(self, text: str) -> None:
        if text != self._said:
            logger.warning("%s", text)
        self._said = text

    # --- looking ---------------------------------------------------------------------------

    async def _look(self, tasks: anyio.abc.TaskGroup) -> None:
        snapshot = await self._read()
        if snapshot is None:
            return
        state, leader = snapshot.state, self.leader
        if leader is not None:
            if state is not None and state.term > leader.term:
                await self._step_down(f"replica {state.master} is the master of term {state.term}")
            else:
                return
        if state is None:
            await self._stand_first(tasks, snapshot)
        elif self._is_appointed(state):
            await self._lead(tasks, state, snapshot.revision)
        elif self._master_is_gone(state, snapshot):
            if self.stands:
                await self._stand(tasks, state)
        else:
            await self._follow(tasks, state, snapshot)

    async def _read(self) -> Snapshot | None:
        try:
            snapshot = await self._coordinator.read()
        except CoordinatorTrouble as error:
            self._complain(str(error))
            return None
        self._complain("")
        self.snapshot = snapshot
        if self._first_term is None:
            self._first_term = 0 if snapshot.state is None else snapshot.state.term
        return snapshot

    def _is_appointed(self, state: State) -> bool:
        """Whether the master before made this replica the master of a term that no process of it can have led."""
        first = self._first_term
        if state.master != self.me[0] or self.me not in state.in_sync or first is None:
            return False
        return state.term > max(first, self._last_led)

    def _master_is_gone(self, state: State, snapshot: Snapshot) -> bool:
        if state.master == self.me[0] or self._refused_term == state.term:
            return True
        if self.following is not None and self.following.connected and self.following.term == state.term:
            return False  # we hear it, whatever the coordinator does
        live = snapshot.live.get(state.master)
        # Another incarnation lost what it had, and will not lead.
        return live is None or (state.master, live.incarnation) not in state.in_sync

    # --- standing --------------------------------------------------------------------------

    async def _stand_first(self, tasks: anyio.abc.TaskGroup, snapshot: Snapshot) -> None:
        """There never was a master. All replicas must be there: one that is not may have messages from before."""
        missing = set(range(1, self._config.replicas + 1)) - set(snapshot.live)
        if missing == {self.me[0]}:
            return  # it is announced in a moment, or the coordinator's trouble is told
        if missing := missing - {self.me[0]}:
            numbers = ", ".join(map(str, sorted(missing)))
            are = "is" if len(missing) == 1 else "are"
            self._say(f"there is no master yet: replica {numbers} of {self._config.replicas} {are} not there")
            return
        if self._rank(snapshot, set(snapshot.live)) == 0:
            await self._ask(tasks, State(1, self.me[0], frozenset({self.me})), 0)

    async def _stand(self, tasks: anyio.abc.TaskGroup, state: State) -> None:
        await self.stop_following()
        snapshot = await self._read()
        if snapshot is None or snapshot.state != state or not self._may_stand(snapshot):
            return
        members = {number for number, name in state.in_sync if self._is_live(snapshot, number, name)}
        rank = self._rank(snapshot, members | {self.me[0]})
        if rank:
            await self._broker.clock.sleep(rank * RANK_SECONDS)
            snapshot = await self._read()
            if snapshot is None or snapshot.state != state or not self._may_stand(snapshot):
                return
        store = self._broker.store
        try:
            if store.copied_end < store.end:
                await store.cut(store.copied_end)
            if not await store.durable(store.end, force=True):
                self._say("this replica does not stand for election: its disk does not take the log")
                return
        except (OSError, StoreError) as error:
            self._say(f"this replica does not stand for election: {error}")
            return
        wanted = elected(state, self.me)
        if self._coordinator.elects_alone:
            wanted = attrs.evolve(wanted, in_sync=frozenset({self.me}))
        await self._ask(tasks, wanted, snapshot.revision)

    def _may_stand(self, snapshot: Snapshot) -> bool:
        state = snapshot.state
        assert state is not None
        live = {number: found.incarnation for number, found in snapshot.live.items()}
        live[self.me[0]] = self.me[1]
        if may_stand(state, self.me, live, self._candidates(snapshot)) and self._master_is_gone(state, snapshot):
            return True
        self._say(self._why_nobody_stands(state, live))
        return False

    def _why_nobody_stands(self, state: State, live: Mapping[int, str]) -> str:
        numbers = ", ".join(str(number) for number, _ in sorted(state.in_sync))
        why = (
            f"broker {self._broker.name!r} has no master, and only these replicas are known to have all that was "
            f"acknowledged: {numbers}; "
        )
        others = sorted(number for number, name in state.in_sync if live.get(number, name) != name)
        if others:
            shown = ", ".join(map(str, others))
            why += (
                f"replica {shown} {'is' if len(others) == 1 else 'are'} here with another store: start with the former "
                f"one, or, if this is not that cluster {self._broker.cluster!r}, give it a name of its own, "
                "[broker] cluster; or give up what only the former has with 'verniermq ha force'"
            )
        else:
            why += "start one of them, or give up what only they have with 'verniermq ha force'"
        return why

    @staticmethod
    def _is_live(snapshot: Snapshot, number: int, incarnation: str) -> bool:
        live = snapshot.live.get(number)
        return live is not None and live.incarnation == incarnation

    def _candidates(self, snapshot: Snapshot) -> list[Candidate]:
        known = {**snapshot.live, self.me[0]: self.live()}
        return [Candidate(live.epoch, live.end, number) for number, live in known.items()]

    def _rank(self, snapshot: Snapshot, numbers: set[int]) -> int:
        return ranked(found for found in self._candidates(snapshot) if found.replica in numbers).index(self.me[0])

    async def _ask(self, tasks: anyio.abc.TaskGroup, state: State, revision: int) -> None:
        """Ask to be the master until it is known whether we are: before, this replica neither follows nor leads."""
        while True:
            try:
                taken = await self._coordinator.change(state, revision)
                if not taken:
                    snapshot = await self._coordinator.read()
                    taken = snapshot.revision if snapshot.state == state else 0
                break
            except CoordinatorTrouble as error:
                self._complain(str(error))
                await self._broker.clock.sleep(AGAIN_SECONDS)
        if taken:
            await self._lead(tasks, state, taken)
        else:
            self.hurry()

    # --- leading ---------------------------------------------------------------------------

    async def _lead(self, tasks: anyio.abc.TaskGroup, state: State, revision: int) -> None:
        await self.stop_following()
        store = self._broker.store
        self._last_led = state.term
        try:
            if store.copied_end < store.end:
                await store.cut(store.copied_end)
            old = cut(self.epochs, store.end)
            # What was there before the first master has no epoch: all of it belongs to the first.
            self.epochs = begin(old, state.term, store.end) if old else ((state.term, 0),)
            await anyio.to_thread.run_sync(epochfile.save, Path(self._broker.configuration.store.path), self.epochs)
            store.take_over()
        except (OSError, StoreError) as error:
            # Others wait for a lease that runs out, which ours will not: somebody has to act.
            logger.critical("this replica was elected and cannot lead: %s", error)
            raise
        self._broker.adopt_topics(self._table_end)
        leader = Leader(
            self._broker, self._config, self._coordinator, self.me, state, revision, self.epochs,
            store.dispatch_limit or 0, self._look_at_set,
        )  # fmt: skip
        self.leader, self._said = leader, ""
        store.on_held_back = leader.wake
        logger.warning("this replica is the master of %r term=%d from=%d", self._broker.name, state.term, store.end)
        self._broker.take_role(Role(0, state.term, self.ha_address))
        self._look_at_set()
        self.on_role()
        tasks.start_soon(self._keep_leading, leader)

    async def _keep_leading(self, leader: Leader) -> None:
        try:
            await leader.run()
        except Deposed as error:
            if self.leader is leader:
                await self._step_down(str(error))
            self.hurry()

    def _look_at_set(self) -> None:
        """Take messages while enough replicas count, and the coordinator can say who does."""
        leader = self.leader
        if leader is None:
            return
        count, least = len(leader.state.in_sync), self._config.least_in_sync
        unsettled = leader.unsettled_since
        why = None
        if count < least:
            why = f"{count} of {self._config.replicas} replicas are in sync, and {least} must be (min_in_sync)"
        elif unsettled is not None and self._broker.clock.monotonic() - unsettled > self._config.ttl:
            why = "replicas are missing, and the coordinator does not answer: there may be another master"
        self._broker.store.refuse_writes(why, "ha")

    async def hand_over(self, to: int) -> str:
        """Make another replica the master, once it has everything; its address.

        Raises:
            RequestRefused: this is no master, or the other one cannot be.
        """
        leader, store = self.leader, self._broker.store
        if leader is None:
            raise RequestRefused(f"replica {self.me[0]} of {self._broker.name!r} is not its master; ask the master")
        follower = leader.followers.get(to)
        if follower is None or follower.name not in leader.state.in_sync:
            numbers = ", ".join(str(number) for number, _ in sorted(leader.state.in_sync) if number != self.me[0])
            raise RequestRefused(f"replica {to} is not in sync; there are {numbers or 'no others'} to switch to")
        address = self._address_of(to)
        async with leader.changing:
            store.refuse_writes(f"replica {to} becomes the master in a moment", "ha switch")
            try:
                with anyio.move_on_after(SWITCH_SECONDS):
                    while min(leader.confirm, follower.ack) < store.end:  # noqa: ASYNC110 - a moment
                        await anyio.sleep(0.002)
                if min(leader.confirm, follower.ack) < store.end or leader.over:
                    raise RequestRefused(f"replica {to} did not catch up within {SWITCH_SECONDS:g} s; try again")
                left = frozenset({follower.name}) if self._coordinator.elects_alone else leader.state.in_sync
                state = State(leader.term + 1, to, left)
                try:
                    leader.revision = await leader.settle(state)
                except Deposed as error:
                    raise RequestRefused(f"there is another master already: {error}") from error
                except ChangeRefused as error:
                    raise RequestRefused(str(error)) from error
                await self._step_down(f"replica {to} was made the master of term {state.term}")
                return address
            finally:
                store.refuse_writes(None, "ha switch")
                self.hurry()

    def _address_of(self, number: int) -> str:
        """Where sends are forwarded to. One whose lease ran out on a busy machine is there as long as it follows.

        Raises:
            RequestRefused: the coordinator never told.
        """
        snapshot = self.snapshot
        known = {} if snapshot is None else {**snapshot.members, **snapshot.live}
        if number not in known:
            raise RequestRefused(f"the coordinator has not told yet where replica {number} is; try again")
        return known[number].address

    async def read(self) -> Snapshot:
        """What the coordinator has now.

        Raises:
            CoordinatorTrouble: it cannot be asked.
        """
        return await self._coordinator.read()

    async def force(self) -> State:
        """Make this replica the one that counts, whatever the others have.

        Raises:
            RequestRefused: it is not needed, or somebody else changed the state meanwhile.
            CoordinatorTrouble: the coordinator cannot be asked.
        """
        snapshot = await self._coordinator.read()
        state = snapshot.state
        if self.leader is not None:
            raise RequestRefused(f"replica {self.me[0]} is the master already")
        if state is not None and not self._master_is_gone(state, snapshot) and state.master != self.me[0]:
            raise RequestRefused(f"replica {state.master} is the master and alive; use 'verniermq ha switch'")
        if not self.whole:
            self.whole = True
            self.on_whole()
            await self._coordinator.announce(self.me[0], self.live())
        forced = State(1 if state is None else state.term + 1, self.me[0], frozenset({self.me}))
        if not await self._coordinator.change(forced, snapshot.revision):
            raise RequestRefused("somebody else changed who is the master meanwhile; look with 'verniermq ha status'")
        logger.warning("an operator made this replica the only one that counts term=%d", forced.term)
        self.hurry()
        return forced

    async def _step_down(self, why: str) -> None:
        leader = self._stop_leading(f"this broker is no longer the master of {self._broker.name!r}; ask for the route")
        if leader is None:
            return
        logger.warning("this replica leads no longer term=%d: %s", leader.term, why)
        self._broker.take_role(Role(self.me[0], self.term))
        self.on_role()

    def _stop_leading(self, refusal: str) -> Leader | None:
        """From here on nothing is acknowledged by this master."""
        leader, self.leader = self.leader, None
        if leader is not None:
            self._broker.store.refuse_writes(refusal, "ha")
            self._broker.store.on_held_back = None
            leader.end()
        return leader

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str) -> None:
        """Somebody connected to the HA port."""
        if self.leader is not None:
            await self.leader.serve(reader, writer, address)

    # --- following -------------------------------------------------------------------------

    async def _follow(self, tasks: anyio.abc.TaskGroup, state: State, snapshot: Snapshot) -> None:
        following = self.following
        live = snapshot.live.get(state.master)
        if (
            following is not None
            and following.term == state.term
            and (live is None or live.ha_address == following.address)
        ):
            return
        if live is None:
            return
        address = live.ha_address
        await self.stop_following()
        settings = self._broker.configuration
        greeting = Greeting(
            self.me[0], self.me[1], state.term, self._broker.cluster, self._broker.name, settings.store.segment_size
        )
        self._said = ""
        self.following = Following(self._broker, self._config, greeting, address, self.epochs, self._refused)
        self._stopped_following = anyio.Event()
        scope = anyio.CancelScope()
        self._stop_following = scope.cancel
        self._broker.store.refuse_writes(
            f"this broker is a slave (replica {self.me[0]} of {self._broker.name!r}); send to its master", "ha"
        )
        if self._broker.role != (role := Role(self.me[0], state.term)):
            self._broker.take_role(role)
        self.on_role()
        tasks.start_soon(self._keep_following, self.following, scope, self._stopped_following)

    async def _keep_following(self, following: Following, scope: anyio.CancelScope, stopped: anyio.Event) -> None:
        try:
            with scope:
                await following.run()
        finally:
            self.epochs = following.epochs
            stopped.set()

    async def stop_following(self) -> None:
        """Follow nobody: from here on nothing is acknowledged."""
        if self._stop_following is not None:
            self._stop_following()
            await self._stopped_following.wait()
            self._stop_following, self.following = None, None

    def _refused(self) -> None:
        """Nothing listens where the master was: its process is gone."""
        if self.following is not None and self._refused_term != self.following.term:
            self._refused_term = self.following.term
            self.hurry()
