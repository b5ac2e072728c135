"""A master of one term: who follows it, what they have, and who counts (RocketMQ: ``AutoSwitchHAConnection``).

One of these lives from an election to the next. What it has heard counts for its own term only: acknowledgements are
those of connections that were made to it. ``acks.py`` has the rules, this file the sockets and the coordinator.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from typing import Any, Final

import anyio
import attrs

from verniermq.kernel import Context, ProtocolError, ResponseCode
from verniermq.plugins.ha import acks
from verniermq.plugins.ha.acks import InSync, Replica
from verniermq.plugins.ha.confirmations import Confirmations
from verniermq.plugins.ha.coordinator import ChangeRefused, Coordinator, CoordinatorTrouble
from verniermq.plugins.ha.election import State
from verniermq.plugins.ha.epochs import Epochs
from verniermq.plugins.ha.settings import Config
from verniermq.plugins.ha.switchframes import Block, FollowerStream, Greeting, History

logger = logging.getLogger(__name__)

HEARTBEAT_SECONDS: Final = 0.5
GREETING_SECONDS: Final = 5.0
CONFIRM_SECONDS: Final = 0.005
"""Followers are told this late how far the log is confirmed, if there is nothing else to tell them."""
LOOK_SECONDS: Final = 0.1
FIRST_SECONDS: Final = 2.0
"""So long after an election nobody leaves the set for not being connected: they have to find their master first."""
ASK_AGAIN_SECONDS: Final = 0.3
CHUNK: Final = 65536


class Deposed(Exception):
    """Another term has begun."""


@attrs.define(eq=False)
class Follower:
    """A connection of one that follows."""

    number: int
    incarnation: str
    address: str
    writer: asyncio.StreamWriter
    heard: float
    caught_up: float
    """When it had all that there was a moment before."""
    target: int
    """What there was then."""
    ack: int = -1
    sent: int = -1
    told: int = -1
    """The confirm offset that it was told."""
    reported: anyio.Event = attrs.Factory(anyio.Event)

    @property
    def name(self) -> Replica:
        return self.number, self.incarnation


class Leader:
    def __init__(
        self,
        broker: Context,
        config: Config,
        coordinator: Coordinator,
        me: Replica,
        state: State,
        revision: int,
        epochs: Epochs,
        confirm: int,
        on_set: Callable[[], None],
    ) -> None:
        self.state, self.revision = state, revision
        self.proposed: InSync | None = None
        self.unsettled_since: float | None = None
        """Since when the coordinator has not said what became of a change."""
        self.followers: dict[int, Follower] = {}
        self.confirm = confirm
        self.waiting = Confirmations(broker.clock, config.timeout)
        self.over = False
        self._broker, self._config, self._coordinator = broker, config, coordinator
        self._me = me
        self._epochs = epochs
        self._on_set = on_set
        self._grown = anyio.Event()
        self._news = anyio.Event()
        self._sync_wanted = anyio.Event()
        self._begun = broker.clock.monotonic()
        self.changing = anyio.Lock()
        """Held while the coordinator is asked to store another state."""
        self._missing: dict[int, float] = {}
        """Members of the set that are not connected, and since when."""

    @property
    def term(self) -> int:
        return self.state.term

    async def run(self) -> None:
        """Lead until the term is over.

        Raises:
            Deposed: it is.
        """
        self.wake()  # what it had as a follower may not be on its disk yet
        self.count()
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self.waiting.run)
                tasks.start_soon(self._keep_synced)
                await self._keep_set()
                tasks.cancel_scope.cancel()
        except* Deposed as group:
            raise Deposed(str(group.exceptions[0])) from None
        finally:
            self.end()

    def end(self) -> None:
        """Acknowledge nothing more."""
        self.over = True
        self._news.set()
        self.waiting.give_up()
        for follower in list(self.followers.values()):
            follower.writer.transport.abort()

    # --- what is confirmed -----------------------------------------------------------------

    def wake(self) -> None:
        """The log has grown."""
        grown, self._grown = self._grown, anyio.Event()
        grown.set()
        if self._waits_for_disk:
            self._sync_wanted.set()

    @property
    def _waits_for_disk(self) -> bool:
        return self._broker.store.waits_for_disk or self._may_be_alone

    @property
    def _may_be_alone(self) -> bool:
        return len(self.state.in_sync) == 1 or (self.proposed is not None and len(self.proposed) == 1)

    def wait(self, end: int) -> asyncio.Future[ResponseCode]:
        answer = self.waiting.wait(end)
        if self.over:
            self.waiting.give_up()
        self.wake()
        return answer

    def count(self) -> None:
        """Look again at what all of the set have."""
        if self.over:
            return
        store = self._broker.store
        said = {number: follower.ack for number, follower in self.followers.items() if follower.ack >= 0}
        # With synchronous flush readers of other replicas see no more than this disk has: a power cut of all takes it.
        end = store.durable_end if store.waits_for_disk else store.end
        confirm = acks.confirmed(
            self._me[0], end, store.durable_end, said, self.state.in_sync, self.proposed, self.confirm
        )
        if confirm > self.confirm:
            self.confirm = confirm
            store.dispatch_limit = confirm
            self.wake()
        enough = len(self.state.in_sync) >= self._config.least_in_sync
        self.waiting.advance(self.confirm, ResponseCode.SUCCESS if enough else ResponseCode.FLUSH_SLAVE_TIMEOUT)

    async def _keep_synced(self) -> None:
        """With synchronous flush, and while nobody else counts, what is acknowledged is on the disk."""
        store = self._broker.store
        while True:
            await self._sync_wanted.wait()
            self._sync_wanted = anyio.Event()
            if self._waits_for_disk and store.durable_end < store.end:
                await store.durable(store.end, force=True)
            if self._waits_for_disk:
                self.count()

    # --- who counts ------------------------------------------------------------------------

    async def _keep_set(self) -> None:
        while not self.over:
            async with self.changing:
                wanted = self._wanted()
                if wanted != self.state.in_sync and not self.over:
                    await self._propose(wanted)
            news, self._news = self._news, anyio.Event()
            if not news.is_set():
                with anyio.move_on_after(LOOK_SECONDS):
                    await self._news.wait()

    def _wanted(self) -> InSync:
        now, end = self._broker.clock.monotonic(), self._broker.store.end
        wanted = set(self.state.in_sync)
        for member in self.state.in_sync:
            number = member[0]
            follower = self.followers.get(number)
            if number == self._me[0]:
                continue
            if follower is not None and follower.name == member and follower.ack >= 0:
                self._missing.pop(number, None)
                if follower.ack < end and now - follower.caught_up > self._config.drop_after:
                    logger.warning("replica %d has not caught up for %g s", number, self._config.drop_after)
                    wanted.discard(member)
            else:
                since = self._missing.setdefault(number, max(now, self._begun + FIRST_SECONDS))
                if now - since >= self._config.drop_closed:
                    wanted.discard(member)
        for follower in self.followers.values():
            joins = follower.ack >= 0 and acks.may_join(follower.ack, self.confirm, self._epochs[-1][1])
            if follower.name not in self.state.in_sync and joins:
                wanted = {member for member in wanted if member[0] != follower.number}
                wanted.add(follower.name)
        return frozenset(wanted)

    async def _propose(self, wanted: InSync) -> None:
        if not wanted >= self.state.in_sync and not self._may_shrink(wanted):
            store = self._broker.store
            await store.durable(store.end, force=True)
            if not self._may_shrink(wanted):
                return  # the disk is slow: again in a moment
        state = attrs.evolve(self.state, in_sync=wanted)
        self.proposed, self.unsettled_since = wanted, self._broker.clock.monotonic()
        self.wake()
        try:
            self.revision = await self.settle(state)
        except ChangeRefused as error:
            logger.info("the set of replicas that count stays as it is: %s", error)
            self.proposed, self.unsettled_since = None, None
            self.count()
            return
        logger.warning("the set of replicas that count changed term=%d in_sync=%s", self.term, _numbers(wanted))
        self.state, self.proposed, self.unsettled_since = state, None, None
        self._on_set()
        self.count()

    def _may_shrink(self, wanted: InSync) -> bool:
        store = self._broker.store
        return acks.may_leave(self._me[0], wanted, store.durable_end, self.confirm, store.waits_for_disk)

    async def settle(self, state: State) -> int:
        """Ask for a change until it is known what became of it.

        Raises:
            Deposed: somebody else changed the state.
            ChangeRefused: nobody did, and it stays as it is.
        """
        unknown = False
        while True:
            try:
                revision = await self._coordinator.change(state, self.revision)
                if revision:
                    return revision
                snapshot = await self._coordinator.read()
                if snapshot.state == state:
                    return snapshot.revision  # an answer was lost
                raise Deposed(f"the coordinator has {snapshot.state}, not what this master of term {self.term} knows")
            except (ChangeRefused, CoordinatorTrouble) as error:
                if isinstance(error, ChangeRefused) and not unknown:
                    raise
                unknown = True  # what was asked for before may be done yet
                logger.warning("no answer to a change of the set, asking again: %s", error)
                self._on_set()
                await self._broker.clock.sleep(ASK_AGAIN_SECONDS)

    # --- connections -----------------------------------------------------------------------

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str) -> None:
        """One that wants to follow, until it is gone."""
        stream = FollowerStream()
        try:
            greeting, early = await self._greeting(reader, stream)
        except (OSError, TimeoutError, ProtocolError) as error:
            logger.error("%s is not served: %s", address, error or type(error).__name__)
            return
        why = self._why_not(greeting)
        if why:
            logger.error("replica %d at %s is not served: %s", greeting.replica, address, why)
            return
        with contextlib.suppress(OSError):
            writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        now, end = self._broker.clock.monotonic(), self._broker.store.end
        follower = Follower(greeting.replica, greeting.incarnation, address, writer, now, now, end)
        old = self.followers.get(follower.number)
        if old is not None:
            old.writer.transport.abort()
        self.followers[follower.number] = follower
        try:
            say(writer, History(end, self.term, self._epochs).packed())
            async with anyio.create_task_group() as tasks:
                for work in (self._read(follower, reader, stream, early), self._write(follower), self._watch(follower)):
                    tasks.start_soon(_until_it_ends, work, tasks.cancel_scope)
        finally:
            if self.followers.get(follower.number) is follower:
                del self.followers[follower.number]
            self._news.set()
            logger.info("replica %d is gone address=%s log_end=%d", follower.number, address, follower.ack)

    async def _greeting(self, reader: asyncio.StreamReader, stream: FollowerStream) -> tuple[Greeting, list[Any]]:
        with anyio.fail_after(GREETING_SECONDS):
            while data := await reader.read(CHUNK):
                messages = list(stream.feed(data))
                if messages:
                    if not isinstance(messages[0], Greeting):
                        raise ProtocolError("it does not say who it is")
                    return messages[0], messages[1:]
        raise ProtocolError("it said nothing")

    def _why_not(self, greeting: Greeting) -> str:
        ours = self._broker.configuration.store.segment_size
        who = (self._broker.cluster, self._broker.name)
        if self.over or greeting.term != self.term:
            return f"it follows the master of term {greeting.term}, and this is the one of {self.term}"
        if (greeting.cluster, greeting.name) != who:
            return f"it is of broker {greeting.name!r} in {greeting.cluster!r}, and this is {who[1]!r} in {who[0]!r}"
        if greeting.replica == self._me[0] or not 1 <= greeting.replica <= self._config.replicas:
            return f"replicas are 1 to {self._config.replicas}, and {self._me[0]} is this one; set replica"
        if greeting.segment_size != ours:
            return f"its log's files have {greeting.segment_size} bytes (segment_size), ours {ours}; give both the same"
        return ""

    async def _read(
        self, follower: Follower, reader: asyncio.StreamReader, stream: FollowerStream, early: list[Any]
    ) -> None:
        for message in early:
            if not self._take_report(follower, message):
                return
        while data := await reader.read(CHUNK):
            follower.heard = self._broker.clock.monotonic()
            messages = list(stream.feed(data))
            if messages and not self._take_report(follower, messages[-1]):
                return

    def _take_report(self, follower: Follower, end: Any) -> bool:
        store = self._broker.store
        if self.over or not isinstance(end, int):
            return False
        if follower.sent < 0:
            if end > store.end or 0 < end < store.start:
                logger.error(
                    "replica %d is not served: its log ends at %d, and ours has %d to %d; begin it anew with "
                    "'verniermq ha resync'", follower.number, end, store.start, store.end,
                )  # fmt: skip
                return False
            follower.sent = end or store.start
        elif not max(follower.ack, 0) <= end <= follower.sent:
            logger.error("replica %d says %d after %d, and was sent the log up to %d; it is not believed",
                         follower.number, end, follower.ack, follower.sent)  # fmt: skip
            return False
        follower.ack = end
        if end >= follower.target:
            follower.caught_up, follower.target = self._broker.clock.monotonic(), store.end
        if not follower.reported.is_set():
            follower.reported.set()
            self._news.set()
        self.count()
        if follower.name not in self.state.in_sync and end >= self.confirm:
            self._news.set()
        if follower.sent < store.end:
            self.wake()
        return True

    async def _watch(self, follower: Follower) -> None:
        clock = self._broker.clock
        while (left := follower.heard + self._config.silence - clock.monotonic()) > 0:
            await clock.sleep(left)
        logger.warning("replica %d is silent for %g s, closing", follower.number, self._config.silence)

    async def _write(self, follower: Follower) -> None:
        await follower.reported.wait()
        store, writer = self._broker.store, follower.writer
        while not self.over:
            grown = self._grown
            if follower.sent < store.end:
                size = self._config.block_size
                place = [(follower.sent, min(size, store.end - follower.sent))]
                if (fetching := store.fetching(place)) is not None:
                    await fetching
                term, start, stop = self._epoch_at(follower.sent)
                data = store.read_block(follower.sent, size if stop is None else min(size, stop - follower.sent))
                if data is None:
                    logger.error("replica %d is too slow: its log ends at %d, and ours begins at %d; begin it anew "
                                 "with 'verniermq ha resync'", follower.number, follower.ack, store.start)  # fmt: skip
                    return
                say(writer, Block(follower.sent, term, start, self.confirm, data).packed())
                follower.sent += len(data)
                follower.told = self.confirm
            elif follower.told < self.confirm:
                with anyio.move_on_after(CONFIRM_SECONDS):
                    await grown.wait()
                if not grown.is_set() or follower.sent >= store.end:
                    self._tell_confirm(follower)
            else:
                with anyio.move_on_after(HEARTBEAT_SECONDS):
                    await grown.wait()
                if not grown.is_set():
                    self._tell_confirm(follower)
            await writer.drain()

    def _tell_confirm(self, follower: Follower) -> None:
        term, start = self._epochs[-1]
        say(follower.writer, Block(follower.sent, term, start, self.confirm, b"").packed())
        follower.told = self.confirm

    def _epoch_at(self, offset: int) -> tuple[int, int, int | None]:
        """The term that wrote what lies there, its start, and where it ends if it does."""
        stop: int | None = None
        for term, start in reversed(self._epochs):
            if start <= offset:
                return term, start, stop
            stop = start
        return *self._epochs[0], stop

    def status(self) -> list[dict[str, Any]]:
        """RocketMQ's ``HAConnectionRuntimeInfo`` of each follower."""
        end = self._broker.store.end
        return [
            {
                "addr": follower.address,
                "diff": end - max(follower.ack, 0),
                "inSync": follower.name in self.state.in_sync,
                "slaveAckOffset": follower.ack,
                "transferFromWhere": follower.sent,
                "transferredByteInSecond": 0,
            }
            for follower in self.followers.values()
        ]


def say(writer: asyncio.StreamWriter, data: bytes) -> None:
    """
    Raises:
        ConnectionResetError: the connection is closed; uvloop would raise something else.
    """
    if writer.transport.is_closing():
        raise ConnectionResetError("the connection is closed")
    writer.write(data)


def _numbers(in_sync: InSync) -> list[int]:
    return sorted(number for number, _ in in_sync)


async def _until_it_ends(work: Any, scope: anyio.CancelScope) -> None:
    """Of several pieces of work on one connection, the first that ends ends all."""
    with contextlib.suppress(OSError, ProtocolError):
        await work
    scope.cancel()
