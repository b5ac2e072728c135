"""What every client is made of: connections, name servers, routes, a heartbeat, and a beginning and an end.

A client that has started has really reached a name server and a broker; where there is none, starting fails within
the timeouts instead of looking fine.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import random
import weakref
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn, Self, Unpack

import anyio
import attrs

from verniermq.client import hookspecs
from verniermq.client.api import BrokerApi
from verniermq.client.background import Background
from verniermq.client.connection import ConnectionPool
from verniermq.client.context import HostedClient
from verniermq.client.errors import BrokerUnreachable, NoBroker, NotRunning, OtherProcess
from verniermq.client.forks import after_fork
from verniermq.client.identity import client_id
from verniermq.client.java import JavaNames
from verniermq.client.nameservers import NameServers
from verniermq.client.options import ConnectionOptions, Options, UnknownOption
from verniermq.client.plugins import make_host
from verniermq.client.routes import MASTER, Routes
from verniermq.client.selectors import RoundRobinSelector
from verniermq.client.sender import Sender
from verniermq.kernel import (
    ClientContext,
    Command,
    Connection,
    Handler,
    PluginHost,
    RemotingError,
    UnexpectedAnswer,
)
from verniermq.kernel.requests import Heartbeat

logger = logging.getLogger(__name__)

FORKED: Final = "belongs to the parent process"
NEVER: Final = "was not started"
STOPPED: Final = "was stopped: somebody cancelled all of its tasks"

INNER_GROUP: Final = "CLIENT_INNER_PRODUCER"


class Client(JavaNames):
    """The base of producers, consumers and the administrator; an async context manager."""

    statement = "async with"
    """What an error advises to write; the blocking clients have another."""
    default_plugins: ClassVar[tuple[str, ...]] = ()
    group: str = INNER_GROUP

    def __init__(self, **connection: Unpack[ConnectionOptions]) -> None:
        shared = {field.name for field in attrs.fields(Options)}
        unknown = [name for name in connection if name not in shared]
        if unknown:
            raise UnknownOption(type(self).__name__, unknown[0], shared | self._own_options())
        self.options = Options(**connection)
        self.client_id = ""
        """``ip@instance``, known once started."""
        self.host: PluginHost
        self._state = NEVER
        self._over: asyncio.Event
        """Set when it runs no more."""
        self._pid = 0
        self._pool: ConnectionPool
        self._name_servers: NameServers
        self._routes: Routes
        self._api: BrokerApi
        self._background: Background

    @property
    def _what(self) -> str:
        return type(self).__name__

    @classmethod
    def _own_options(cls) -> set[str]:
        """The keyword arguments that this kind of client has beside those that all have."""
        parameters = inspect.signature(cls.__init__).parameters.values()
        return {one.name for one in parameters if one.kind is one.KEYWORD_ONLY}

    # --- start and close -------------------------------------------------------------------

    async def start(self) -> Self:
        """Connect. ``async with`` does it too.

        Raises:
            NameServerUnreachable, NoBroker, BrokerUnreachable: there is nobody to talk to.
        """
        if self._state == "runs":
            return self
        self._pid = os.getpid()
        self.client_id = client_id(self._instance_name(), self.options.client_ip)
        options = self.options
        self._pool = ConnectionPool(
            self._handlers(),
            credentials=options.credentials,
            tls=options.ssl_context(),
            connect_timeout=options.connect_timeout,
            greet=self._greet,
            lost=self._broker_lost,
            strangers=frozenset(options.namesrv),
        )
        self._name_servers = NameServers(self._pool, options.namesrv, options.request_timeout)
        self._routes = Routes(self._name_servers)
        self._api = BrokerApi(self._pool, options.request_timeout, options.max_body_size)
        self._background = Background(self._what)
        self.host = make_host(options.plugins, self._wanted_plugins(), self._context)
        await self._background.start()
        self._state = "runs"
        self._over = asyncio.Event()
        _running.add(self)
        try:
            await self._reach_somebody()
            self._background.every(options.route_interval, self._routes.refresh)
            self._background.every(options.heartbeat_interval, self._heartbeat)
            await self.host.announce_and_wait(hookspecs.client_started)
            await self._started()
            self._background.lost = self._was_stopped
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._end()
            raise
        return self

    async def close(self) -> None:
        """Finish what is under way, say goodbye, and close the connections. A second call does nothing."""
        if self._state != "runs":
            return
        self._state = "is closing"
        # Whoever is cancelled still says goodbye: what is done must be saved, or it would be done again.
        with anyio.CancelScope(shield=True):
            try:
                await self._stopping()
                await self.host.say_goodbye(hookspecs.client_stopping)
            finally:
                await self._end()

    async def _end(self) -> None:
        await self._background.close()
        await self._pool.close()
        self._state = "is closed"
        self._over.set()
        _running.discard(self)

    def _was_forked(self) -> None:
        """In a child process: the connections are the parent's."""
        self._state = FORKED

    async def _was_stopped(self) -> None:
        """All tasks were cancelled, and not by us. Nothing is done any more, so nobody must count on this client."""
        if self._state != "runs":
            return
        self._state = STOPPED
        logger.error(
            "client stopped, somebody cancelled all of its tasks; it says goodbye client=%s id=%s group=%s",
            self._what, self.client_id, self.group,
        )  # fmt: skip
        try:
            await self._stopping()
        finally:
            await self._pool.close()
            self._over.set()
            _running.discard(self)

    async def __aenter__(self) -> Self:
        return await self.start()

    if not TYPE_CHECKING:  # or type checkers would take it for a context manager

        def __enter__(self) -> NoReturn:
            raise TypeError(
                f"{self._what} is asynchronous; write 'async with', or take it from verniermq.client.sync for 'with'"
            )

        def __exit__(self, *error: object) -> None: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
        self._ensure_not_stopped(error)

    def _ensure_not_stopped(self, error: BaseException | None = None) -> None:
        """
        Raises:
            NotRunning: somebody cancelled the tasks of this client, and there is no other error to tell of.
        """
        if self._state == STOPPED and error is None:
            raise NotRunning(self._what, self._state, self.statement)

    def _ensure_running(self) -> None:
        """
        Raises:
            NotRunning, OtherProcess: this client cannot be used now, or here.
        """
        if self._state != "runs":
            if self._state == FORKED:
                raise OtherProcess(self._what, self._pid)
            raise NotRunning(self._what, self._state, self.statement)

    def _ensure_started(self) -> None:
        """
        Raises:
            NotRunning: it was never started, so it knows nothing yet.
        """
        if self._state == NEVER:
            raise NotRunning(self._what, self._state, self.statement)

    async def _reach_somebody(self) -> None:
        """One broker is enough: which ones are needed is known when the topics are."""
        try:
            brokers = await self._name_servers.brokers()
        except UnexpectedAnswer as error:
            logger.debug("the name server does not list its brokers reason=%s", error)
            return
        masters = [ids[MASTER] for ids in brokers.values() if MASTER in ids]
        if not masters:
            raise NoBroker(self._name_servers.text)
        random.shuffle(masters)
        reasons: list[tuple[str, str]] = []
        for address in masters:
            try:
                await self._pool.open(address)
                return
            except RemotingError as error:
                reasons.append((address, str(error).removeprefix(f"cannot reach {address}: ")))
        raise BrokerUnreachable(reasons, self._name_servers.text)

    # --- what kinds of clients add ---------------------------------------------------------

    def _instance_name(self) -> str:
        return self.options.instance

    def _context(self) -> ClientContext:
        """This client, for its plugins."""
        sender = Sender(self._pool, self._routes, RoundRobinSelector(), self._name_servers.text)
        return HostedClient(self.client_id, self.group, sender, self._background)

    def _wanted_plugins(self) -> tuple[str, ...]:
        return self.default_plugins

    def _handlers(self) -> Mapping[int, Handler]:
        """What brokers may ask of this client."""
        return {}

    def _heartbeat_data(self) -> dict[str, Any] | None:
        """Who this client is, for brokers; ``None`` if they need not know."""
        return None

    async def _started(self) -> None:
        """Connected; begin."""

    async def _stopping(self) -> None:
        """About to close; connections are still there."""

    # --- brokers that go -------------------------------------------------------------------

    def _broker_lost(self, address: str) -> None:
        """A broker hung up, or does not answer: its master may be elsewhere. Look now, not only every 30 s."""
        if self._state == "runs":
            self._background.spawn(self._routes.refresh, address)

    # --- heartbeats ------------------------------------------------------------------------

    def _heartbeat_command(self) -> Command | None:
        data = self._heartbeat_data()
        if data is None:
            return None
        heartbeat = Heartbeat(
            client_id=self.client_id,
            producer_groups=[one["groupName"] for one in data.get("producerDataSet", ())],
            consumers=data.get("consumerDataSet", []),
        )
        return heartbeat.command()

    async def _greet(self, address: str, connection: Connection) -> None:
        """Tell a broker who we are before anything else, so that it can reach us from then on."""
        command = self._heartbeat_command()
        if command is None:
            return
        self._pool.sign(command)
        try:
            answer = await connection.request(command, self.options.request_timeout)
        except RemotingError as error:
            logger.warning("no heartbeat to a new connection address=%s reason=%s", address, error)
            return
        if answer.code != 0:
            logger.warning("heartbeat refused address=%s code=%d reason=%s", address, answer.code, answer.remark)

    def _heartbeat_addresses(self) -> set[str]:
        """The brokers that have to know of this client: for producers the masters."""
        return self._routes.addresses(masters_only=True) | (
            set(self._pool.connected()) - frozenset(self.options.namesrv)
        )

    async def _heartbeat(self) -> None:
        """Tell every broker in use that this client lives."""
        async with anyio.create_task_group() as group:
            for address in self._heartbeat_addresses():
                group.start_soon(self._heartbeat_to, address)

    async def _heartbeat_to(self, address: str) -> None:
        command = self._heartbeat_command()
        if command is None:
            return
        try:
            if self._pool.live(address) is None:
                await self._pool.open(address)  # which greets
                return
            answer = await self._pool.request(address, command, self.options.request_timeout)
        except RemotingError as error:
            logger.warning("no heartbeat address=%s reason=%s", address, error)
            return
        if answer.code != 0:
            logger.warning("heartbeat refused address=%s code=%d reason=%s", address, answer.code, answer.remark)


_running: weakref.WeakSet[Client] = weakref.WeakSet()


def _after_fork() -> None:
    for client in _running:
        client._was_forked()
    _running.clear()


after_fork(_after_fork)
