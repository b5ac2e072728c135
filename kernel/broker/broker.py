"""A broker: the parts put together, started and stopped in order.

``async with Broker(configuration) as broker:`` runs one. What comes up first goes down last: plugins are
made, the store is opened, the listener starts, plugins hear ``broker_started``; at the end the listener
stops, plugins hear ``broker_stopping``, the log is synced, tables are written, the store is closed.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from verniermq.kernel import hookspecs
from verniermq.kernel.accel.lane import PlainLane, plain_lane
from verniermq.kernel.broker.context import Context
from verniermq.kernel.clock import Clock, SystemClock
from verniermq.kernel.codes import RequestCode, ResponseCode
from verniermq.kernel.config import Configuration, RemotingSettings, TlsSettings
from verniermq.kernel.config.filestamps import FileStamps, watch_files
from verniermq.kernel.errors import (
    BadName,
    CannotOpenStore,
    ListenFailed,
    PluginError,
    PluginMissing,
    RequestRefused,
    StoreError,
)
from verniermq.kernel.handlers.access import AccessCheck
from verniermq.kernel.handlers.acknowledgements import Acknowledgements
from verniermq.kernel.handlers.heartbeat import HeartbeatHandlers
from verniermq.kernel.handlers.longpoll import HeldPulls
from verniermq.kernel.handlers.offsets import OffsetHandlers
from verniermq.kernel.handlers.pull import PullHandler
from verniermq.kernel.handlers.send import SendHandler
from verniermq.kernel.handlers.table import HandlerTable
from verniermq.kernel.host.brokerhost import BrokerHost
from verniermq.kernel.host.feed import Feed
from verniermq.kernel.host.hookcall import plugin_handler
from verniermq.kernel.host.registry import Registry
from verniermq.kernel.host.reload import SettingsWatcher
from verniermq.kernel.host.service import Tasks, keep_running, run_service
from verniermq.kernel.maybe import Withheld, in_turn
from verniermq.kernel.message import MATCH_ALL, MessageFilter, PendingMessage, Subscription
from verniermq.kernel.names import Property
from verniermq.kernel.refusals import REFUSED_REQUESTS
from verniermq.kernel.remoting import (
    Command,
    Connection,
    Intercepted,
    Interceptor,
    RemotingLimits,
    RemotingServer,
    ServedTogether,
    request_name,
)
from verniermq.kernel.remoting.advertised import Advertised, advertised_address
from verniermq.kernel.role import Role, Roles
from verniermq.kernel.store import Appended, DispatchEvent, Store
from verniermq.kernel.tables.clients import ClientRegistry
from verniermq.kernel.tables.document import Document, Documents
from verniermq.kernel.tables.groups import GroupTable
from verniermq.kernel.tables.jsonfile import JsonFile
from verniermq.kernel.tables.offsets import ConsumerOffsets
from verniermq.kernel.tables.topics import TopicConfig, TopicTable
from verniermq.kernel.tables.unsaved import UnsavedTopics

if TYPE_CHECKING:
    from verniermq.kernel.remoting.tls import Tls

logger = logging.getLogger(__package__)

STOP_GRACE_SECONDS: Final = 5.0
CLIENT_SCAN_SECONDS: Final = 10.0


class Broker:
    """One broker. What a plugin may use of it is in :class:`~verniermq.kernel.broker.context.Context`."""

    def __init__(
        self,
        configuration: Configuration,
        clock: Clock | None = None,
        *,
        reread: Callable[[], Configuration] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """``reread`` reads the configuration again when its file changes; without it, it is read once.

        ``progress`` is called from a thread while the log is read after a crash: bytes read, bytes to read.
        """
        self.configuration = configuration
        self._progress = progress
        self._reread = reread
        self.clock: Clock = clock or SystemClock()
        self.host = BrokerHost(self._context, stop=self.request_stop)
        self.roles = Roles()
        self.stop_requested = anyio.Event()
        self.stop_reason = ""
        settings = configuration.broker
        self.advertised: Advertised = advertised_address(settings.host, settings.port, settings.advertise)
        self.store = Store(configuration.store, clock=self.clock, store_host=self.advertised.packed)
        self.documents = Documents()
        self.topics = TopicTable(
            configuration.topics,
            on_change=self._topics_changed,
            now_ms=self.clock.now_ms,
        )
        self.groups = GroupTable(
            configuration.groups,
            on_change=lambda: self.groups_document.touch(),
            now_ms=self.clock.now_ms,
        )
        self.offsets = ConsumerOffsets(
            self.clock.now_ms,
            on_change=lambda: self.offsets_document.touch(),
            most=configuration.offsets.max_offsets,
        )
        self.clients = ClientRegistry(
            self.clock,
            configuration.clients,
            compile_filter=self.compile_filter,
            may_notify=self._may_notify,
            on_members_changed=lambda group: self.host.announce(hookspecs.members_changed, group),
            on_joined=lambda *member: self.host.announce(hookspecs.client_joined, *member),
            on_left=lambda *member: self.host.announce(hookspecs.client_left, *member),
        )
        self.held_pulls = HeldPulls(
            self.clock, most=configuration.pull.max_held, most_per_connection=configuration.pull.max_held_per_connection
        )
        self.acknowledgements = Acknowledgements(self.store, self.host)
        self._pulled = self.host.calls(hookspecs.messages_pulled)
        self.name_servers: list[str] = []
        """Where clients find this broker's topics, once it has started; the namesrv plugin fills it in."""
        self.table = HandlerTable()
        self.handlers = self.table.handlers
        tls = configuration.tls
        self._certificates = FileStamps(filter(None, (tls.certificate, tls.key, tls.client_ca, tls.server_ca)))
        self.access = AccessCheck(
            self.host.calls(hookspecs.before_access), self.table, self.store, self.topics.is_closed
        )
        self.host.access_guard = self.access
        self.tls: Tls | None = _tls(configuration.tls)
        """What listeners of this broker need to speak TLS, if they shall."""
        self.outgoing_tls = _outgoing_tls(configuration.tls)
        self.server: RemotingServer
        self.topics_document: Document
        self.groups_document: Document
        self.offsets_document: Document
        self._send: SendHandler
        self._lane: PlainLane | None
        self._task_group: TaskGroup
        self._tasks: Tasks
        self._registries: list[Registry] = []
        self._exit = contextlib.AsyncExitStack()
        self._appended: list[tuple[PendingMessage, Appended]] = []
        self._appended_feed: Feed
        self._dispatched_feed: Feed
        self._unsaved: UnsavedTopics
        self._needed: dict[str, tuple[int, int]] = {}
        """Topic → how many queues its messages need that recovery found, and where in the log the newest ends."""
        self._running = False

    # --- start and stop --------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._exit.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return await self._exit.__aexit__(kind, error, traceback)

    async def _start(self) -> None:
        self.host.load(self.configuration)
        self.host.check_role(self.configuration.broker.id)
        self._set_up_plugins()
        await self._open_store()
        self._task_group = await self._exit.enter_async_context(anyio.create_task_group())
        self._exit.callback(self._task_group.cancel_scope.cancel)
        self._tasks = Tasks(self._task_group)
        self._appended_feed = Feed(self.host.calls(hookspecs.messages_appended), self._tasks)
        self._dispatched_feed = Feed(self.host.calls(hookspecs.messages_dispatched), self._tasks)
        self.store.listeners[:0] = (self.held_pulls.messages_dispatched, self._dispatched_feed)
        self.store.before_close.insert(0, self._dispatched_feed.hand_over)
        self._exit.callback(self._appended_feed.close)
        self._exit.callback(self._dispatched_feed.close)
        self.documents.start(self._task_group)
        self._keep_running("store", self._run_store)
        self._keep_running("looks at the clock", self.store.clock_changes.run)
        self._keep_running("held pulls", self.held_pulls.run)
        self._keep_running("expiry of clients", self._expire_clients)
        if self.tls is not None or self.outgoing_tls is not None:
            self._keep_running("changed certificates", self._watch_certificates)
        if self._reread is not None and self.configuration.origin.files:
            watcher = SettingsWatcher(self.host, self.configuration, self._reread)
            self._keep_running("changed settings", watcher.run)
        self._collect_handlers()
        self.host.announce(hookspecs.store_opened)
        for registry in self._registries:
            for service in registry.services:
                self._task_group.start_soon(run_service, registry.plugin, service, self.clock, self.roles)
        self._exit.push_async_callback(self._announce_stopping)
        self._running = True
        self.offsets.committing = self.host.calls(hookspecs.offset_committed)
        await self._listen()
        await self.host.announce_and_wait(hookspecs.broker_started)
        logger.info("broker started name=%s listening=%s store=%s", self.name, self.advertised.text, self.store.path)

    def _context(self) -> Context:
        return Context(self)

    def _set_up_plugins(self) -> None:
        folder = self.store.path / "config"
        for plugin in self.host.active.values():
            setup = getattr(plugin.instance, "setup", None)
            if setup is not None:
                registry = Registry(plugin, self.documents, folder)
                try:
                    setup(registry)
                except Exception as error:
                    why = f"plugin {plugin.name!r} cannot be set up: {type(error).__name__}: {error}"
                    raise PluginError(why, plugin.name) from error
                self._registries.append(registry)

    async def _open_store(self) -> None:
        for registry in self._registries:
            self.store.tags_coders.update(registry.tags_coders)
            self.store.before_close.extend(registry.closing)
        self.store.listeners.append(self._messages_recovered)
        await anyio.to_thread.run_sync(self.store.open, self._progress)
        self.store.listeners.remove(self._messages_recovered)
        self._exit.callback(self.store.close)
        self._load_tables()
        self._exit.callback(self.documents.save_now)
        self._exit.callback(self.store.clock_changes.on_change)  # it says when a broker ran last
        self._exit.callback(self._sync_log)

    def _sync_log(self) -> None:
        """At the stop: tables that tell what became of messages must not be on the disk before these messages are."""
        try:
            self.store.sync()
        except OSError as error:
            logger.error("the log could not be synced: %s; tables say what was on the disk before", error)

    def _load_tables(self) -> None:
        folder = self.store.path / "config"
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            raise CannotOpenStore(self.store.path, error) from error
        names = ("topics", "subscriptionGroup", "consumerOffset", "clockChanges")
        files = {name: JsonFile(folder / f"{name}.json") for name in names}
        self.topics_document = self.documents.add(files["topics"], self.topics.as_document)
        self._unsaved = UnsavedTopics(
            self.topics_document, self.topics.__contains__, lambda *task: self._task_group.start_soon(*task)
        )
        self.groups_document = self.documents.add(files["subscriptionGroup"], self.groups.as_json)
        self.offsets_document = self.documents.add(
            files["consumerOffset"],
            self.offsets.as_json,
            self.configuration.offsets.persist_interval,
            prepare=self.offsets.write_out,
        )
        _load(files["topics"], self.topics.load_json)
        changes = self.store.clock_changes
        _load(files["clockChanges"], changes.load_json)
        changes.on_change = self.documents.add(files["clockChanges"], lambda: changes.as_json(self.store.start)).touch
        changes.begin(self.store.newest_timestamp / 1000)
        _load(files["subscriptionGroup"], self.groups.load_json)
        _load(files["consumerOffset"], self.offsets.load_json)
        for registry in self._registries:
            registry.load_tables()
        self.topics.add_system_topics(
            [topic for registry in self._registries for topic in registry.topics],
            closed={name for registry in self._registries for name in registry.closed_topics},
            cluster=self.configuration.broker.cluster,
            broker=self.configuration.broker.name,
        )
        self.topics.forget_deletions(self.store.start)
        self.adopt_topics()

    def adopt_topics(self, table_end: int | None = None) -> None:
        """Give messages their topic back whose topic topics.json lacks: the file is an older one, or was removed.

        A message is stored only after its topic was saved, so a crash alone leaves none. Queues of topics that were
        deleted, which recovery made again from the log, go instead.

        Args:
            table_end: the table of topics is a copy, made when the log ended here: what was stored later in a queue
                that its topic lacks shows that the topic has grown since, and the queue can be read
        """
        stored = [(queue.topic, queue.queue_id, queue.physical_end) for queue in self.store.queues()]
        stored += [(event.topic, event.queue_id, event.end) for event in self.store.undispatched]
        for topic, queue_id, end in stored:
            self._note_needed(topic, queue_id, end)
            if table_end is not None and end > table_end and self.topics.show_queue(topic, queue_id):
                logger.warning("queue found in the log only, shown again topic=%s queue=%d", topic, queue_id)
        for name, (queues, newest) in self._needed.items():
            if name in self.topics:
                continue
            if self.topics.was_deleted_after(name, newest - 1):
                self.store.delete_topic(name)
                continue
            try:
                queues = self.topics.restore(name, queues).queues
            except BadName as error:
                logger.error("the log has messages of a topic that there cannot be, and they cannot be read: %s", error)
                continue
            logger.warning("topic found in the log only, created again topic=%s queues=%d", name, queues)
        self._needed.clear()

    def _note_needed(self, topic: str, queue_id: int, end: int) -> None:
        queues, newest = self._needed.get(topic, (0, 0))
        self._needed[topic] = max(queues, queue_id + 1), max(newest, end)

    async def _listen(self) -> None:
        settings = self.configuration.broker
        self.server = RemotingServer(
            self.handlers,
            limits=_limits(self.configuration.remoting),
            guards=self.host.guards,
            observers=self.host.calls(hookspecs.request_served),
            lane=self._lane,
            unsupported=self._unsupported,
            on_disconnect=self._connection_closed,
            tls=self.tls,
        )
        port = await self.server.listen(settings.host, settings.port)
        if settings.port == 0:
            self.advertised = advertised_address(settings.host, port, settings.advertise)
            self.store.store_host = self.advertised.packed
        self._exit.push_async_callback(self.server.stop, STOP_GRACE_SECONDS)
        self._exit.callback(self.held_pulls.close)
        if settings.vip_port and settings.port > 2:
            try:
                await self.server.listen(settings.host, settings.port - 2)
            except ListenFailed as error:
                logger.warning("no port for old Java clients: %s; without them, set [broker] vip_port = false", error)

    async def _announce_stopping(self) -> None:
        self._running = False
        with anyio.move_on_after(STOP_GRACE_SECONDS, shield=True):
            await self._appended_feed.drain()
            await self._dispatched_feed.drain()
        await self.host.say_goodbye(hookspecs.broker_stopping)

    async def leave(self) -> None:
        """Let plugins hand over what only this broker does, before it is stopped."""
        await self.host.announce_and_wait(hookspecs.broker_leaving)

    def request_stop(self, reason: str) -> None:
        """Ask whoever runs the broker to end it."""
        logger.critical("stopping: %s", reason)
        self.stop_reason = reason
        self.stop_requested.set()

    # --- what it does all the time ----------------------------------------------------------

    def _keep_running(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        """Have a part of the broker's own work done until the end, also if it stumbles on the way."""

        def failed(error: Exception, pause: float) -> None:
            self._tasks.failures += 1
            logger.error("the broker's own work failed work=%s restart_in_s=%g", what, pause, exc_info=error)

        self._task_group.start_soon(keep_running, work, self.clock, failed)

    async def _watch_certificates(self) -> None:
        def reload() -> None:
            if self.tls is not None:
                self.tls.reload()
            self.outgoing_tls = _outgoing_tls(self.configuration.tls)

        await watch_files("certificate is", self._certificates, reload)

    async def _run_store(self) -> None:
        self.store.refuse_writes(None, "background")
        try:
            await self.store.run()
        except Exception as error:
            # Nothing is synced until it runs again: better to take no messages than to acknowledge those.
            why = f"its work in the background failed: {type(error).__name__}: {error}"
            self.store.refuse_writes(why, "background")
            raise

    # --- what it is ------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self.configuration.broker.name

    @property
    def address(self) -> str:
        """``host:port`` as clients are told."""
        return self.advertised.text

    @property
    def registries(self) -> Sequence[Registry]:
        """What each plugin brought in its ``setup``, in their order."""
        return self._registries

    @property
    def task_group(self) -> Tasks:
        """Where plugins may start tasks of their own; they end with the broker, and their failures with themselves."""
        return self._tasks

    def _collect_handlers(self) -> None:
        self._send = SendHandler(self)
        self._lane = plain_lane(self, self._send)
        families = (self._send, PullHandler(self), OffsetHandlers(self), HeartbeatHandlers(self))
        for family in families:
            family.register(self.table)
        for registry in self._registries:
            for code, (request, handler) in registry.handlers.items():
                self.table.serve(code, request, plugin_handler(registry.plugin, handler))

    def intercept(
        self, interceptors: Mapping[int, Interceptor], served_together: ServedTogether | None = None
    ) -> Callable[[], None]:
        """Have requests pass an interceptor, which may call the handler that it gets; returns what undoes it."""
        before = {code: self.handlers[code] for code in interceptors if code in self.handlers}
        for code, handler in before.items():
            self.handlers[code] = Intercepted(interceptors[code], handler, served_together)
        return lambda: self.handlers.update(before)

    def _unsupported(self, request: Command, connection: Connection) -> Command:
        if (reason := REFUSED_REQUESTS.get(request.code)) is not None:
            what = f"request {request_name(request.code)} is not supported here: {reason}"
            raise RequestRefused(what, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        plugin = self.host.server_of(request.code)
        if plugin is not None:
            # A client asks first whether one that is active only on request is there; this code is its "no".
            usual = plugin in self.host.catalogue.defaults
            code = ResponseCode.SYSTEM_ERROR if usual else ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            raise PluginMissing(plugin, f"request {request_name(request.code)}", code)
        raise RequestRefused(
            f"request {request_name(request.code)} is not supported here; perhaps its plugin is not active",
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        )

    def take_role(self, role: Role) -> None:
        """Be a master or a slave from now on, and let plugins and name servers know."""
        self.roles.change(role)
        self.topics.version.state_version = role.term
        self.host.announce(hookspecs.role_changed, role)

    # --- messages in -----------------------------------------------------------------------

    def before_append(self, message: PendingMessage, connection: Connection | None) -> Awaitable[None] | None:
        """Let plugins change or refuse a message, and have its topic saved; something to await if that takes time.

        Raises:
            RequestRefused: a plugin refuses it, or the plugin that it needs is not active.
        """
        return in_turn(self._before_append(message, connection))

    def _before_append(
        self, message: PendingMessage, connection: Connection | None
    ) -> Iterator[Awaitable[None] | None]:
        yield from self.host.before_append(message, connection)
        yield self._unsaved.saving(message, connection)

    def is_saved(self, topic: str) -> bool:
        """Whether the disk has a topic as it is now, and nobody waits for that any more."""
        return self._unsaved.is_saved(topic)

    def saving_topic(
        self, message: PendingMessage, connection: Connection | None = None
    ) -> Coroutine[Any, Any, None] | None:
        """Something to await before a message is appended: the topic it goes to, now or later, is not on the disk yet.

        What comes through :meth:`before_append` has it. When many wait, ``connection`` is not served until then.
        """
        return self._unsaved.saving(message, connection)

    @property
    def path(self) -> Literal["compiled", "plain"]:
        """How plain sends are served."""
        return "plain" if self._lane is None else "compiled"

    def send(self, request: Command, connection: Connection) -> Command | Withheld[Any] | Coroutine[Any, Any, Command]:
        """Serve a request that is decoded to ``SendMessage``, as if it were a send, or the batch that its code says."""
        if request.code == RequestCode.SEND_BATCH_MESSAGE:
            return self._send.send_batch(request, connection)
        return self._send.send(request, connection)

    async def put(self, message: PendingMessage) -> Appended:
        """Put a message of the broker's own through the plugins into the log.

        Raises:
            RequestRefused: a plugin refuses it, or the store takes no writes.
        """
        waiting = self.before_append(message, None)
        if waiting is not None:
            await waiting
        return self.store.append(message)

    def note_appended(self, message: PendingMessage, appended: Appended) -> None:
        """Gather what ``messages_appended`` announces at the end of this turn of the loop."""
        if not self._appended:
            self._task_group.start_soon(self._announce_appended)
        self._appended.append((message, appended))

    async def _announce_appended(self) -> None:
        batch, self._appended = self._appended, []
        self._appended_feed(batch)

    def _messages_recovered(self, events: Sequence[DispatchEvent]) -> None:
        """In the thread that opens the store; it waits for plugins that are async, so that nothing piles up."""
        for event in events:
            name, queue_id = event.properties.get(Property.REAL_TOPIC), event.properties.get(Property.REAL_QUEUE_ID, "")
            if name and queue_id.isdecimal() and self.topics.is_system(event.topic):
                self._note_needed(name, int(queue_id), event.end)
        for call in tuple(self.host.calls(hookspecs.messages_dispatched)):
            if inspect.isawaitable(waiting := call(events)):
                from anyio.from_thread import run

                run(_finish, waiting)

    def catch_up(self) -> None:
        """Let plugins that gather announcements hear everything up to now, before somebody asks them about it."""
        self.store.dispatch()
        self._dispatched_feed.hand_over()
        if self._lane is not None:
            self._lane.served.tell()

    # --- subscriptions, topics, clients ----------------------------------------------------

    def compile_filter(self, subscription: Subscription) -> MessageFilter:
        """
        Raises:
            SubscriptionParseFailed: the expression is wrong.
            PluginMissing: nobody understands expressions of this type.
        """
        if subscription.wants_all:
            return MATCH_ALL
        compiled = self.host.compile_filter(subscription)
        if compiled is None:
            kind = subscription.expression_type
            raise PluginMissing(
                self.host.reader_of(kind) or kind.lower(),
                f"the {kind} expression {subscription.expression!r}",
                ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            )
        return compiled

    async def delete_topic(self, name: str) -> None:
        """Forget a topic, its queues and what groups had read of it."""
        self.topics.forget_deletions(self.store.start)
        self.topics.delete(name, self.store.end)
        self.offsets.forget(topic=name)
        await anyio.to_thread.run_sync(self.store.delete_topic, name)
        await self.topics_document.saved()

    def _may_notify(self, group: str) -> bool:
        config = self.groups.find(group)  # not for_use: who leaves a deleted group must not bring it back
        return config is None or config.notifies_members

    def _topics_changed(self, changed: Sequence[TopicConfig], deleted: Sequence[str]) -> None:
        self.topics_document.touch()
        for topic in changed:
            self._unsaved.changed(topic.name)
        for name in deleted:
            self._unsaved.deleted(name)
        if self._running:
            self._send.forget_targets([*(topic.name for topic in changed), *deleted])
            self.host.announce(hookspecs.topics_changed, changed, deleted)

    def messages_pulled(self, group: str, topic: str, queue_id: int, count: int, size: int) -> None:
        """Announce that messages were handed out."""
        for call in tuple(self._pulled):
            call(group, topic, queue_id, count, size)

    def _connection_closed(self, connection: Connection) -> None:
        self.held_pulls.connection_closed(connection)
        self.clients.connection_closed(connection)
        self.host.announce(hookspecs.connection_closed, connection)

    async def _expire_clients(self) -> None:
        while True:
            await self.clock.sleep(CLIENT_SCAN_SECONDS)
            await self.clients.expire()


async def _finish(waiting: Awaitable[object]) -> None:
    await waiting


def _limits(settings: RemotingSettings) -> RemotingLimits:
    return RemotingLimits(
        max_frame_size=settings.max_frame_size,
        max_header_size=settings.max_header_size,
        max_connections=settings.max_connections,
        idle_seconds=settings.idle_timeout,
        max_inflight_per_connection=settings.max_inflight,
        write_buffer_high=settings.write_buffer,
    )


def _tls(settings: TlsSettings) -> Tls | None:
    if settings.mode == "disabled":
        return None
    from verniermq.kernel.remoting.tls import load_tls

    return load_tls(settings.mode, settings.certificate, settings.key, settings.client_ca, settings.handshake_timeout)


def _outgoing_tls(settings: TlsSettings) -> ssl.SSLContext | None:
    if not settings.outgoing:
        return None
    from verniermq.kernel.remoting.tls import load_outgoing_tls

    return load_outgoing_tls(settings.outgoing, settings.server_ca, settings.certificate, settings.key)


def _load(file: JsonFile, load: Callable[[Mapping[str, Any]], None]) -> None:
    """
    Raises:
        StoreError: the file holds something else than the table.
    """
    data = file.load() or {}
    try:
        load(data)
    except Exception as error:
        raise StoreError(
            f"{file.path} holds what cannot be used: {type(error).__name__}: {error}; mend the file, or move it away "
            "to start without it"
        ) from error
