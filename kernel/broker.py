"""A broker: the parts put together, started and stopped in order.

``async with Broker(configuration) as broker:`` runs one. What comes up first goes down last: plugins are
made, the store is opened, the listener starts, plugins hear ``broker_started``; at the end the listener
stops, plugins hear ``broker_stopping``, tables are written, the store is closed.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import anyio
import anyio.from_thread
import anyio.to_thread
from anyio.abc import TaskGroup

from verniermq.kernel.address import Advertised, advertised_address
from verniermq.kernel.builtin import BUILTIN
from verniermq.kernel.clients import ClientRegistry
from verniermq.kernel.clock import Clock, SystemClock
from verniermq.kernel.codes import RequestCode, ResponseCode
from verniermq.kernel.config import Configuration, RemotingSettings, TlsSettings
from verniermq.kernel.dispatch.longpoll import HeldPulls
from verniermq.kernel.dispatch.offsets import ConsumerOffsets
from verniermq.kernel.errors import ListenFailed, PluginMissing
from verniermq.kernel.feeds import Feed
from verniermq.kernel.groups import GroupTable
from verniermq.kernel.handlers.heartbeat import HeartbeatHandlers
from verniermq.kernel.handlers.offsets import OffsetHandlers
from verniermq.kernel.handlers.pull import PullHandler
from verniermq.kernel.handlers.send import SendHandler
from verniermq.kernel.handlers.topics import TopicHandlers
from verniermq.kernel.hookcall import plugin_handler
from verniermq.kernel.host import PluginHost
from verniermq.kernel.jsonfile import JsonFile
from verniermq.kernel.message import MATCH_ALL, MessageFilter, PendingMessage, Property, Subscription
from verniermq.kernel.persist import Document, Documents
from verniermq.kernel.reload import SettingsWatcher
from verniermq.kernel.remoting import Command, Connection, Handler, RemotingLimits, RemotingServer, Tls, load_tls
from verniermq.kernel.services import run_service
from verniermq.kernel.store import Appended, DispatchEvent, Store
from verniermq.kernel.topics import TopicConfig, TopicTable

logger = logging.getLogger(__name__)

STOP_GRACE_SECONDS: Final = 5.0
CLIENT_SCAN_SECONDS: Final = 10.0

EXPRESSION_PLUGINS: Final = {kind: builtin.name for builtin in BUILTIN.values() for kind in builtin.expressions}
"""Who would have understood a subscription that nobody understood."""


class Broker:
    """One broker. Everything a plugin may use is a public attribute or method of it."""

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
        self.host = PluginHost(stop=self.request_stop)
        self.stop_requested = anyio.Event()
        self.stop_reason = ""
        settings = configuration.broker
        self.advertised: Advertised = advertised_address(settings.host, settings.port, settings.advertise)
        self.store = Store(configuration.store, clock=self.clock, store_host=self.advertised.packed)
        self.documents = Documents()
        self.topics = TopicTable(
            auto_create=configuration.topics.auto_create,
            default_queues=configuration.topics.default_queues,
            on_change=self._topics_changed,
            now_ms=self.clock.now_ms,
        )
        self.groups = GroupTable(
            auto_create=configuration.groups.auto_create,
            on_change=lambda: self.groups_document.touch(),
            now_ms=self.clock.now_ms,
        )
        self.offsets = ConsumerOffsets(self.clock.now_ms, on_change=lambda: self.offsets_document.touch())
        self.clients = ClientRegistry(
            self.clock,
            expiry_seconds=configuration.clients.expiry,
            compile_filter=self.compile_filter,
            may_notify=self._may_notify,
            on_members_changed=lambda group: self.host.announce("members_changed", group),
        )
        self.held_pulls = HeldPulls(self.clock)
        self.name_servers: list[str] = []
        """Where clients find this broker's topics, once it has started; the namesrv plugin fills it in."""
        self.handlers: dict[int, Handler] = {}
        self.tls: Tls | None = _tls(configuration.tls)
        """What listeners of this broker need to speak TLS, if they shall."""
        self.server: RemotingServer
        self.topics_document: Document
        self.groups_document: Document
        self.offsets_document: Document
        self._send: SendHandler
        self._task_group: TaskGroup
        self._exit = contextlib.AsyncExitStack()
        self._appended: list[tuple[PendingMessage, Appended]] = []
        self._appended_feed: Feed
        self._dispatched_feed: Feed
        self._recovering = False
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
        self.host.announce("broker_created", self)
        await self._open_store()
        self._task_group = await self._exit.enter_async_context(anyio.create_task_group())
        self._exit.callback(self._task_group.cancel_scope.cancel)
        self._appended_feed = Feed(self.host.messages_appended, self._task_group)
        self._dispatched_feed = Feed(self.host.messages_dispatched, self._task_group)
        self.store.before_close.insert(0, self._dispatched_feed.hand_over)
        self._exit.callback(self._appended_feed.close)
        self._exit.callback(self._dispatched_feed.close)
        self.documents.start(self._task_group)
        self._task_group.start_soon(self.store.run)
        self._task_group.start_soon(self.held_pulls.run)
        self._task_group.start_soon(self._expire_clients)
        if self._reread is not None:
            path = Path(self.configuration.origin.file)
            watcher = SettingsWatcher(self.host, self.configuration, path, self._reread)
            self._task_group.start_soon(watcher.run)
        self._collect_handlers()
        for plugin, services in self.host.ask_all("services", self):
            for service in services:
                self._task_group.start_soon(run_service, plugin, service, self.clock)
        self._exit.push_async_callback(self._announce_stopping)
        self._running = True
        await self._listen()
        await self.host.announce_and_wait("broker_started", self)
        logger.info("broker started name=%s listening=%s store=%s", self.name, self.advertised.text, self.store.path)

    async def _open_store(self) -> None:
        for _, coders in self.host.ask_all("tags_coders", self):
            self.store.tags_coders.update(coders)
        self.store.listeners.append(self._messages_dispatched)
        self.store.redispatch_from = lambda: min(
            (offset for _, offset in self.host.ask_all("redispatch_from", self)), default=None
        )
        self._recovering = True
        await anyio.to_thread.run_sync(self.store.open, self._progress)
        self._recovering = False
        self._exit.callback(self.store.close)
        self._load_tables()
        self._exit.callback(self.documents.save_now)

    def _load_tables(self) -> None:
        folder = self.store.path / "config"
        folder.mkdir(exist_ok=True)
        files = {name: JsonFile(folder / f"{name}.json") for name in ("topics", "subscriptionGroup", "consumerOffset")}
        self.topics_document = self.documents.add(files["topics"], self.topics.as_json)
        self.groups_document = self.documents.add(files["subscriptionGroup"], self.groups.as_json)
        self.offsets_document = self.documents.add(
            files["consumerOffset"], self.offsets.as_json, self.configuration.offsets.persist_interval
        )
        self.topics.load_json(files["topics"].load() or {})
        self.groups.load_json(files["subscriptionGroup"].load() or {})
        self.offsets.load_json(files["consumerOffset"].load() or {})
        self.topics.add_system_topics(
            [topic for _, topics in self.host.ask_all("system_topics", self) for topic in topics]
        )
        self._adopt_orphans()

    def _adopt_orphans(self) -> None:
        """Give queues that have messages their topic back, if a crash came before it was written to topics.json."""
        counts: dict[str, int] = {}
        for queue in self.store.queues():
            counts[queue.topic] = max(counts.get(queue.topic, 0), queue.queue_id + 1)
        for name, queues in counts.items():
            if name not in self.topics:
                logger.warning("topic found in the log only, created again topic=%s queues=%d", name, queues)
                self.topics.ensure(TopicConfig(name, queues, queues))

    async def _listen(self) -> None:
        settings = self.configuration.broker
        self.server = RemotingServer(
            self.handlers,
            limits=_limits(self.configuration.remoting),
            guards=(self.host.guard,) if self.host.before_request else (),
            on_connect=self._connection_opened,
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
        await self.host.announce_and_wait("broker_stopping", self, reverse=True, limit=STOP_GRACE_SECONDS)

    def request_stop(self, reason: str) -> None:
        """Ask whoever runs the broker to end it."""
        logger.critical("stopping: %s", reason)
        self.stop_reason = reason
        self.stop_requested.set()

    # --- what it is ------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self.configuration.broker.name

    @property
    def address(self) -> str:
        """``host:port`` as clients are told."""
        return self.advertised.text

    @property
    def task_group(self) -> TaskGroup:
        """Where plugins may start tasks of their own; it ends with the broker."""
        return self._task_group

    def config_file(self, name: str) -> JsonFile:
        """A file of a plugin's own among the broker's tables, ``config/<name>.json``."""
        return JsonFile(Path(self.store.path) / "config" / f"{name}.json")

    def _collect_handlers(self) -> None:
        self._send = SendHandler(self)
        families = (self._send, PullHandler(self), OffsetHandlers(self), HeartbeatHandlers(self), TopicHandlers(self))
        for family in families:
            self.handlers.update(family.handlers())
        for builtin in BUILTIN.values():
            if not self.host.is_active(builtin.name):
                for code in builtin.requests:
                    self.handlers.setdefault(code, _refuse_without(builtin.name, code))
        for plugin, handlers in self.host.ask_all("request_handlers", self):
            call = plugin.calls["request_handlers"]
            self.handlers.update({code: plugin_handler(call, handler) for code, handler in handlers.items()})

    # --- messages in -----------------------------------------------------------------------

    def rewrite(self, message: PendingMessage, connection: Connection | None) -> Awaitable[None] | None:
        """Let plugins change or refuse a message; something to await if one of them needs time.

        Raises:
            RequestRefused: a plugin refuses it, or the plugin that it needs is not active.
        """
        for name in self.host.missing.keys() & message.properties.keys():
            if message.properties[name] not in ("0", "false"):
                raise PluginMissing(self.host.missing[name], f"a message with the property {name}")
        return self.host.rewrite(message, connection)

    async def put(self, message: PendingMessage) -> Appended:
        """Put a message of the broker's own through the plugins into the log.

        Raises:
            RequestRefused: a plugin refuses it, or the store takes no writes.
        """
        waiting = self.rewrite(message, None)
        if waiting is not None:
            await waiting
        return self.store.append(message)

    def must_confirm(self, properties: Mapping[str, str]) -> bool:
        """Whether the answer to a send has to wait for the disk or for other brokers."""
        waits = self.store.waits_for_disk or bool(self.host.confirm_append)
        return waits and properties.get(Property.WAIT) != "false"

    async def confirm(self, appended: Appended) -> tuple[ResponseCode, str]:
        """Wait until a message may be acknowledged, and say how."""
        replicas: Awaitable[ResponseCode | None] | None = self.host.ask("confirm_append", appended)
        on_disk = await self.store.durable(appended.end) if self.store.waits_for_disk else True
        if replicas is not None:
            code = await replicas
            if code is not None and code != ResponseCode.SUCCESS:
                return code, "stored, but not confirmed by the other brokers in time"
        if not on_disk:
            return ResponseCode.FLUSH_DISK_TIMEOUT, "stored, but the disk did not confirm it in time"
        return ResponseCode.SUCCESS, ""

    def note_appended(self, message: PendingMessage, appended: Appended) -> None:
        """Gather what ``messages_appended`` announces at the end of this turn of the loop."""
        if not self._appended:
            self._task_group.start_soon(self._announce_appended)
        self._appended.append((message, appended))

    async def _announce_appended(self) -> None:
        batch, self._appended = self._appended, []
        self._appended_feed(batch)

    def _messages_dispatched(self, events: Sequence[DispatchEvent]) -> None:
        if self._recovering:
            # In the thread that opens the store; it waits for those that are async, so that nothing piles up.
            for call in tuple(self.host.messages_dispatched):
                if inspect.isawaitable(waiting := call(events)):
                    anyio.from_thread.run(_finish, waiting)
            return
        self.held_pulls.messages_dispatched(events)
        if self.host.messages_dispatched:
            self._dispatched_feed(events)

    def catch_up(self) -> None:
        """Let plugins that gather announcements hear everything up to now, before somebody asks them about it."""
        self.store.dispatch()
        self._dispatched_feed.hand_over()

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
            plugin = EXPRESSION_PLUGINS.get(subscription.expression_type, subscription.expression_type.lower())
            raise PluginMissing(
                plugin,
                f"the {subscription.expression_type} expression {subscription.expression!r}",
                ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            )
        return compiled

    async def delete_topic(self, name: str) -> None:
        """Forget a topic, its queues and what groups had read of it."""
        self.topics.delete(name)
        self.offsets.forget(topic=name)
        await anyio.to_thread.run_sync(self.store.delete_topic, name)
        await self.topics_document.saved()

    def _may_notify(self, group: str) -> bool:
        config = self.groups.find(group)  # not for_use: who leaves a deleted group must not bring it back
        return config is None or config.notifies_members

    def _topics_changed(self, changed: Sequence[TopicConfig], deleted: Sequence[str]) -> None:
        self.topics_document.touch()
        if self._running:
            self._send.forget_targets([*(topic.name for topic in changed), *deleted])
            self.host.announce("topics_changed", changed, deleted)

    def _connection_opened(self, connection: Connection) -> None:
        if self.host.calls("request_refused"):
            connection.on_refused = lambda *arguments: self.host.announce("request_refused", *arguments)
        self.host.announce("connection_opened", connection)

    def _connection_closed(self, connection: Connection) -> None:
        self.held_pulls.connection_closed(connection)
        self.clients.connection_closed(connection)
        self.host.announce("connection_closed", connection)

    async def _expire_clients(self) -> None:
        while True:
            await self.clock.sleep(CLIENT_SCAN_SECONDS)
            self.clients.expire()


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
    return load_tls(
        settings.mode, settings.certificate, settings.key, settings.client_ca, settings.handshake_timeout
    )


def _refuse_without(plugin: str, code: RequestCode) -> Handler:
    def refuse(request: Command, connection: Connection) -> Command:
        raise PluginMissing(plugin, f"request {code.name} ({code.value})")

    return refuse
