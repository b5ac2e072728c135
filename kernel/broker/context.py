"""What a plugin may use of the broker that it lives in. The constructor of a plugin gets it beside its settings."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from verniermq.kernel.codes import ResponseCode
from verniermq.kernel.host.offers import Check, Metric, Page
from verniermq.kernel.maybe import Withheld
from verniermq.kernel.message import MessageFilter, PendingMessage, Subscription
from verniermq.kernel.remoting.command import Command
from verniermq.kernel.remoting.connection import NO_HANDLERS, Connection, Handler
from verniermq.kernel.remoting.interceptor import Interceptor, ServedTogether
from verniermq.kernel.requests import Access, Caller, Identity, Request
from verniermq.kernel.role import Role
from verniermq.kernel.tables.document import Document, TableFile

if TYPE_CHECKING:
    from verniermq.kernel.broker.broker import Broker
    from verniermq.kernel.dispatch.event import Appended


class Context:
    """One broker, as its plugins see it.

    Attributes:
        configuration: The kernel's settings; a plugin gets its own in its constructor.
        clock: The time, which a test may move.
        store: The messages: append, read, queues. Closed until ``store_opened``.
        topics, groups, offsets: The broker's tables. Empty until ``store_opened``.
        clients: Who is there: producers and consumers, by group and connection.
        held_pulls: Pulls that wait; :meth:`~verniermq.kernel.HeldPulls.arrival` waits for a message of a queue.
        hooks: Calls hooks that the plugin declares, and asks which plugins are active.
        tls: What a listener of the plugin's own needs to speak TLS as the broker does; ``None`` without ``[tls]``.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.configuration = broker.configuration
        self.clock = broker.clock
        self.store = broker.store
        self.topics = broker.topics
        self.groups = broker.groups
        self.offsets = broker.offsets
        self.clients = broker.clients
        self.held_pulls = broker.held_pulls
        self.hooks = broker.host
        self.tls = broker.tls

    # --- who it is -------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self.configuration.broker.name

    @property
    def cluster(self) -> str:
        return self.configuration.broker.cluster

    @property
    def role(self) -> Role:
        """Master or slave, and of which term."""
        return self._broker.roles.now

    @property
    def broker_id(self) -> int:
        """0 for a master."""
        return self.role.broker_id

    def take_role(self, role: Role) -> None:
        """Be a master or a slave from now on: ``role_changed`` is announced, name servers are told."""
        self._broker.take_role(role)

    @property
    def address(self) -> str:
        """``host:port`` as clients are told; known once the broker listens."""
        return self._broker.advertised.text

    @property
    def host(self) -> str:
        """The host of :attr:`address`."""
        return self._broker.advertised.host

    @property
    def port(self) -> int:
        """The port of :attr:`address`."""
        return self._broker.advertised.port

    @property
    def outgoing_tls(self) -> ssl.SSLContext | None:
        """For ``connect(…, tls=…)``, to name servers and other brokers; ``None`` for plain frames."""
        return self._broker.outgoing_tls

    @property
    def name_servers(self) -> list[str]:
        """Where clients find this broker's topics; filled in by whoever provides the name server."""
        return self._broker.name_servers

    @property
    def table_failures(self) -> int:
        """How often a table could not be written."""
        return self._broker.documents.failures

    @property
    def connections(self) -> int:
        """How many peers are connected."""
        return len(self._broker.server.connections)

    # --- what plugins offer ----------------------------------------------------------------

    @property
    def metrics(self) -> Sequence[Metric]:
        """What plugins registered with ``Registry.metric``; so for the other two."""
        return [metric for registry in self._broker.registries for metric in registry.metrics]

    @property
    def pages(self) -> Sequence[Page]:
        return [page for registry in self._broker.registries for page in registry.pages]

    @property
    def checks(self) -> Sequence[Check]:
        return [check for registry in self._broker.registries for check in registry.checks]

    # --- messages --------------------------------------------------------------------------

    async def put(self, message: PendingMessage) -> Appended:
        """Put a message of the plugin's own through ``before_append`` into the log.

        Raises:
            RequestRefused: a plugin refuses it, or the store takes no writes.
        """
        return await self._broker.put(message)

    def before_append(self, message: PendingMessage) -> Awaitable[None] | None:
        """Let the plugins change a message that the plugin will append itself; something to await if one needs time.

        Raises:
            RequestRefused: a plugin refuses it.
        """
        return self._broker.before_append(message, None)

    def saving_topic(self, message: PendingMessage) -> Awaitable[None] | None:
        """Something to await before the plugin appends a message past :meth:`before_append`: its topic is not saved."""
        return self._broker.saving_topic(message)

    def must_confirm(self, properties: Mapping[str, str]) -> bool:
        """Whether the answer to a send has to wait for the disk or for other brokers."""
        return self._broker.acknowledgements.are_wanted(properties)

    async def confirm(self, appended: Appended) -> tuple[ResponseCode, str]:
        """Wait until a message may be acknowledged, and say how."""
        return await self._broker.acknowledgements.confirmed(appended)

    def send(self, request: Command, connection: Connection) -> Command | Withheld[Any] | Coroutine[Any, Any, Command]:
        """Serve a request that is decoded to ``SendMessage``, as if it were a send, or the batch that its code says."""
        return self._broker.send(request, connection)

    def messages_pulled(self, group: str, topic: str, queue_id: int, count: int, size: int) -> None:
        """Announce that the plugin handed out messages."""
        self._broker.messages_pulled(group, topic, queue_id, count, size)

    def compile_filter(self, subscription: Subscription) -> MessageFilter:
        """
        Raises:
            SubscriptionParseFailed: the expression is wrong.
            PluginMissing: nobody understands expressions of this type.
        """
        return self._broker.compile_filter(subscription)

    def catch_up(self) -> None:
        """Have every announcement of messages delivered up to now, also the gathered ones."""
        self._broker.catch_up()

    def decode(self, request: Command) -> Request:
        """What a request is decoded to, for its handler too; one of a code that nobody serves has nothing to decode.

        Raises:
            RequestRefused: it cannot be decoded.
        """
        return self._broker.table.request_class(request.code).of(request)

    def before_access(self, caller: Caller, wanted: Iterable[Access]) -> None:
        """Ask ``before_access`` about something that did not come as a command of RocketMQ's remoting protocol.

        ``wanted`` is iterated by each plugin that is asked, after it knows the caller.

        Raises:
            RequestRefused: a plugin refuses it.
        """
        self._broker.access.ask(caller, wanted)

    def guard(self, request: Command, connection: Connection) -> Awaitable[None] | None:
        """Ask ``before_access`` and ``before_request`` about a request on a listener of the plugin's own.

        It counts as served at once.

        Raises:
            RequestRefused: a plugin refuses it.
        """
        return self._broker.host.guard(request, connection)

    def connect_in_process(
        self, peername: tuple[str, int], identity: Identity, handlers: Mapping[int, Handler] = NO_HANDLERS
    ) -> Connection:
        """A connection to this broker without a socket, for a peer that speaks another protocol.

        What is requested on it is served as if it came from ``peername``; ``handlers`` serve what the broker asks.
        """
        return self._broker.server.connect_in_process(peername, identity, handlers)

    def intercept(
        self, interceptors: Mapping[int, Interceptor], served_together: ServedTogether | None = None
    ) -> Callable[[], None]:
        """Stand before the handlers of some requests, from now on: ``interceptor(handler, request, connection)``.

        Args:
            served_together: for one that only counts: ``served_together(code, oneway, count, elapsed_ns)`` hears of
                plain sends that were served together, and passed by the interceptor; without it none does

        Returns:
            what takes the interceptors away again, the last ones first
        """
        return self._broker.intercept(interceptors, served_together)

    # --- tables ----------------------------------------------------------------------------

    async def delete_topic(self, name: str) -> None:
        """Forget a topic, its queues and what groups had read of it."""
        await self._broker.delete_topic(name)

    def adopt_topics(self, table_end: int) -> None:
        """Create the topics again that messages of the log have and the table lacks.

        Args:
            table_end: where the log ended when the table was copied; queues that only later messages have are shown
        """
        self._broker.adopt_topics(table_end)

    async def topics_saved(self) -> None:
        """Wait until the topics, as they are now, are on the disk.

        Raises:
            TableNotSaved: the disk refuses.
        """
        await self._broker.topics_document.saved()

    async def groups_saved(self) -> None:
        """Wait until the groups, as they are now, are on the disk.

        Raises:
            TableNotSaved: the disk refuses.
        """
        await self._broker.groups_document.saved()

    # --- work ------------------------------------------------------------------------------

    def start_soon(self, work: Callable[..., Coroutine[Any, Any, Any]], *arguments: Any) -> None:
        """Run something beside everything else; it ends with the broker. What it raises ends the broker."""
        self._broker.task_group.start_soon(work, *arguments)

    def keep(self, file: TableFile, snapshot: Callable[[], Mapping[str, Any]], interval: float) -> Document:
        """Keep a table in a file of the plugin's own format, from now on; see ``Registry.table`` for the usual one."""
        return self._broker.documents.add(file, snapshot, interval)
