"""Keeping outside name servers up to date about this broker: at start, every 30 s, and when a topic changes.

A name server forgets a broker whose connection is gone, so a connection that breaks is a reason to register at once.
Every name server is on its own: one that cannot be reached is tried again next time and holds up nobody.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Sequence
from typing import Final

import anyio

from verniermq.kernel import (
    SAME_MOMENT,
    Command,
    Connection,
    Context,
    RemotingError,
    RequestCode,
    ResponseCode,
    TopicConfig,
    UnexpectedAnswer,
    connect,
    hookspec,
)
from verniermq.plugins.namesrv import registration
from verniermq.plugins.namesrv.admission import sign
from verniermq.protocol.nameserver import RegisterBroker, UnregisterBroker

logger = logging.getLogger(__name__)

INTERVAL_SECONDS: Final = 30.0
RETRY_SECONDS: Final = 5.0
SLAVE_SECONDS: Final = 2.0
"""How often a slave asks who its master is. Its topics are its master's, so they need not go along."""
SHORTEST_SECONDS: Final = 1.0
"""Between two registrations because of a lost connection: a name server that hangs up at once is not to be stormed."""
CALL_TIMEOUT: Final = 6.0


@hookspec("question")
def queue_mappings() -> registration.Mappings | None:
    """Say which logical queues of static topics this broker leads, for clients to find them: by topic, as RocketMQ's
    ``TopicQueueMappingInfo``.

    Asked at each registration; what changed is announced by ``topics_changed``. Used by ``statictopic``.
    """


@hookspec("announcement")
def master_found(master: str, ha_address: str) -> None:
    """A name server told a slave who its master is: the address of its broker, and where its log is had.

    Announced after each registration of a slave; both are empty while no master is registered. Used by ``ha``.
    """


class Registrar:
    """Registers one broker with one name server. ``secret`` is asked for each request; with none it is not signed."""

    def __init__(self, broker: Context, address: str, secret: Callable[[], str]) -> None:
        self._broker = broker
        self._secret = secret
        self.address = address
        self._started = anyio.Event()
        self._due = 0.0
        """When everything is registered again."""
        self._last = 0.0
        """When it was tried last."""
        self.trouble: str | None = "not registered yet"
        """Why this name server does not know us; ``None`` if it does."""
        self._connection: Connection | None = None
        self._news: dict[str, TopicConfig] = {}
        """Topics that changed since the last registration."""
        self._changed = anyio.Event()
        self._round = anyio.Event()
        """Set when the registration that is under way, or was last, has ended; well or not."""
        self._round.set()
        self._next_round = anyio.Event()

    async def told(self) -> None:
        """Wait until the topics that changed so far are registered; not if the name server was out of reach before."""
        if self.trouble is None:
            await (self._next_round if self._news else self._round).wait()

    def topics_changed(self, changed: Sequence[TopicConfig]) -> None:
        self._news.update({topic.name: topic for topic in changed})
        self._changed.set()

    def register_again(self) -> None:
        """It is something else now: tell it at once, with everything."""
        self._due = self._broker.clock.monotonic()
        self._changed.set()

    def start(self) -> None:
        """The broker listens: from now on it can be registered."""
        self._started.set()

    async def run(self) -> None:
        """Register now and at every interval with all topics, and on every change with those that changed."""
        await self._started.wait()
        clock = self._broker.clock
        self._due = clock.monotonic()
        while True:
            news, self._news = list(self._news.values()), {}
            self._changed = anyio.Event()
            self._round, self._next_round = self._next_round, anyio.Event()
            self._last = clock.monotonic()
            everything = self._last + SAME_MOMENT >= self._due
            if everything:
                self._due = self._last + INTERVAL_SECONDS
            try:
                if everything or news or not self._broker.role.is_master:
                    await self.register(list(self._broker.topics) if everything else news)
                    self.trouble = None
            except RemotingError as error:
                logger.warning("cannot register with name server: %s; trying again in %g s", error, RETRY_SECONDS)
                self.trouble = str(error)
                self._due = clock.monotonic() + RETRY_SECONDS
            self._round.set()
            await self._wait()

    def _lost(self, connection: Connection) -> None:
        """The name server has forgotten us, or is gone itself."""
        if connection is self._connection:
            self.trouble = "the connection is lost"
            self._due = max(self._broker.clock.monotonic(), self._last + SHORTEST_SECONDS)
            self._changed.set()

    async def _wait(self) -> None:
        """Until there is something new, or the time has come."""

        async def sleep() -> None:
            seconds = self._due - self._broker.clock.monotonic()
            await self._broker.clock.sleep(seconds if self._broker.role.is_master else min(seconds, SLAVE_SECONDS))
            tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sleep)
            await self._changed.wait()
            tasks.cancel_scope.cancel()

    async def register(self, topics: Sequence[TopicConfig]) -> None:
        """
        Raises:
            RemotingError: it cannot be reached or refuses.
        """
        role = self._broker.role
        mappings = self._broker.hooks.ask(queue_mappings) or {}
        body = registration.encode(self._broker.topics.version.as_json(), topics, mappings)
        registering = RegisterBroker(
            name=self._broker.name,
            address=self._broker.address,
            cluster=self._broker.cluster,
            broker_id=role.broker_id,
            ha_address=role.ha_address,  # the field itself is wanted by Apache's name server
            crc=zlib.crc32(body) & 0x7FFFFFFF,
            registration=body,
        )
        answer = await self._call(registering.command())
        if not role.is_master:
            master, ha_address = answer.text("masterAddr", ""), answer.text("haServerAddr", "")
            self._broker.hooks.announce(master_found, master, ha_address)

    async def unregister(self) -> None:
        """Say goodbye, if it can be heard."""
        leaving = UnregisterBroker(
            name=self._broker.name,
            address=self._broker.address,
            cluster=self._broker.cluster,
            broker_id=self._broker.broker_id,
        )
        try:
            await self._call(leaving.command())
        except RemotingError as error:
            logger.info("could not unregister: %s", error)
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.close()

    async def _call(self, command: Command) -> Command:
        if self._connection is None or self._connection.closed:
            self._connection = await connect(self.address, timeout=CALL_TIMEOUT, tls=self._broker.outgoing_tls)
            self._connection.on_close.append(self._lost)
        if secret := self._secret():
            sign(command, secret, self._broker.clock.now_ms())
        answer = await self._connection.request(command, CALL_TIMEOUT)
        if answer.code != ResponseCode.SUCCESS:
            raise UnexpectedAnswer(self.address, RequestCode(command.code).name, answer.code, answer.remark)
        return answer
