"""What a plugin brings to its broker, registered in one moment: its ``setup``.

``setup`` is called once, when all plugins are made and before the store opens, in the order of the plugins. Nothing
runs yet, so it registers and does not act; ``store_opened`` and ``broker_started`` are the moments to act.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import attrs

from verniermq.kernel.dispatch.dispatcher import TagsCoder
from verniermq.kernel.errors import PluginError
from verniermq.kernel.host.hookcall import ActivePlugin
from verniermq.kernel.host.offers import Check, Metric, MetricKind, Page, PageContent, Sample, Value, check_metric
from verniermq.kernel.remoting.command import request_name
from verniermq.kernel.remoting.connection import Connection, Handler
from verniermq.kernel.requests import Request, Undeclared
from verniermq.kernel.tables.document import Document, Documents
from verniermq.kernel.tables.jsonfile import JsonFile
from verniermq.kernel.tables.topics import TopicConfig

BROKERS_TABLES: Final = frozenset({"topics", "subscriptionGroup", "consumerOffset", "clockChanges"})


class Service(NamedTuple):
    """Background work; the broker runs it, and starts it again with a growing pause if it raises."""

    name: str
    run: Callable[[], Awaitable[None]]
    master_only: bool = False


@attrs.define(eq=False)
class Registry:
    """What one plugin registers."""

    plugin: ActivePlugin
    documents: Documents
    folder: Path
    """Where the tables are."""
    topics: list[TopicConfig] = attrs.Factory(list)
    closed_topics: set[str] = attrs.Factory(set)
    handlers: dict[int, tuple[type[Request], Handler]] = attrs.Factory(dict)
    services: list[Service] = attrs.Factory(list)
    tags_coders: dict[str, TagsCoder] = attrs.Factory(dict)
    tables: list[tuple[JsonFile, Callable[[Mapping[str, Any]], None]]] = attrs.Factory(list)
    closing: list[Callable[[], None]] = attrs.Factory(list)
    metrics: list[Metric] = attrs.Factory(list)
    pages: list[Page] = attrs.Factory(list)
    checks: list[Check] = attrs.Factory(list)

    def topic(self, topic: TopicConfig, *, closed: bool = False) -> None:
        """A topic that the plugin keeps messages of its own in; it is created if it is missing.

        Args:
            closed: producers may not send to it
        """
        self.topics.append(topic)
        if closed:
            self.closed_topics.add(topic.name)

    def close_topic(self, name: str) -> None:
        """Let no producer send to a topic of this name, though it is created only when it is needed."""
        self.closed_topics.add(name)

    def handler(self, code: int, handler: Handler, request: type[Request] = Undeclared) -> None:
        """Serve a kind of request; ``request`` is the class that it is decoded to.

        A handler takes ``(request, connection)`` and returns the answer, a coroutine that returns it, or ``None`` when
        it will call ``connection.answer(request, …)`` itself later.

        The class says what a request touches, see ``Request.touches``. One without a class is for administrators, where
        access is controlled. It may replace a handler of the kernel or of an earlier plugin: the last one wins.

        Raises:
            PluginError: the plugin's declaration does not name the code, or it has registered one for it already.
        """
        if code not in self.plugin.declaration.requests:
            raise PluginError(
                f"it serves request {request_name(code)}, which its declaration does not name in requests"
            )
        if code in self.handlers:
            raise PluginError(f"it registers two handlers for request {request_name(code)}")
        self.handlers[code] = (request, handler)

    def sends_pass(self, passes: Callable[[str, str, Connection], bool]) -> None:
        """Let plain sends pass by the plugin's ``before_access``, ``before_request`` and ``request_served`` unseen.

        ``passes(group, topic, connection)`` is asked once for a peer, its producer group and a topic: whether the
        plugin would neither refuse nor delay any plain send of them, nor want to hear of it. It is asked again after
        settings or plugins changed, and when the plugin calls ``broker.hooks.ask_again()``. Without it, or where it
        says no, the plugin is asked about each send.
        """
        self.plugin.sends_pass = passes

    def service(self, name: str, run: Callable[[], Awaitable[None]], *, master_only: bool = False) -> None:
        """Background work, from the start of the broker to its end. If it raises, it is logged, counted, and started
        again with a growing pause. May be called in ``store_opened`` too, by a plugin that keeps the registry.

        Args:
            master_only: it appends messages, or changes what a slave copies from its master
        """
        self.services.append(Service(name, run, master_only))

    def table(
        self,
        name: str,
        *,
        load: Callable[[Mapping[str, Any]], None],
        save: Callable[[], Mapping[str, Any]],
        interval: float = 0.0,
        private: bool = False,
    ) -> Document:
        """A table on disk, ``config/<name>.json`` in the store, as RocketMQ keeps its own.

        Args:
            load: gets the content when the store has opened, before ``store_opened``; ``{}`` without a file
            save: returns the content; called on the loop, soon after each ``touch`` of what this returns
            interval: seconds between two writes at least
            private: there are secrets in it, so only the owner of the broker's process may read the file

        Raises:
            PluginError: the table is the broker's own, or another plugin's.
        """
        file = JsonFile(self.folder / f"{name}.json", private=private)
        if name in BROKERS_TABLES or file.path in self.documents.paths:
            raise PluginError(f"it keeps a table {name!r}, which is taken; choose another name")
        self.tables.append((file, load))
        return self.documents.add(file, save, interval)

    def tags_coder(self, topic: str, coder: TagsCoder) -> None:
        """The number that a consume-queue entry of this topic keeps instead of the hash of the tags.

        Recovery uses it too, so it must not change while the store lives.
        """
        self.tags_coders[topic] = coder

    def on_close(self, finish: Callable[[], None]) -> None:
        """Called when the store closes and everything is dispatched: what is derived from the log becomes durable."""
        self.closing.append(finish)

    def metric(
        self,
        name: str,
        kind: MetricKind,
        help: str,
        collect: Callable[[], Value | Iterable[Sample]],
        labels: tuple[str, ...] = (),
    ) -> None:
        """A figure for Prometheus. ``collect`` is called on the loop when somebody asks: it gives the figure, or with
        ``labels`` pairs of their values and the figure, one by one, so that others have a turn between them.

        Raises:
            PluginError: Prometheus would not take the name, or it is registered already.
        """
        check_metric(name, kind, labels)
        if any(metric.name == name for metric in self.metrics):
            raise PluginError(f"it registers metric {name!r} twice")
        self.metrics.append(Metric(self.plugin.name, name, kind, help, labels, collect))

    def page(
        self,
        path: str,
        serve: Callable[[Mapping[str, str]], PageContent | Awaitable[PageContent]],
        *,
        title: str = "",
        listen: str = "",
    ) -> None:
        """Answer an address over HTTP, if the plugin ``http`` is active, and in the console if the page has a title.

        ``serve`` gets the query and returns data (a mapping or a list) or a ``PageAnswer``, now or later. It must
        change nothing: a page may be looked at as often as anybody likes.

        Args:
            listen: ``host:port`` of a listener of its own, instead of that of ``http``

        Raises:
            PluginError: the path is no path, or is registered already.
        """
        if not path.startswith("/") or not path.isascii() or not path.isprintable() or set(path) & set(" ?#%"):
            raise PluginError(f"page {path!r}: expected a path such as '/visits', in plain characters")
        if any(page.path == path for page in self.pages):
            raise PluginError(f"it registers page {path!r} twice")
        self.pages.append(Page(self.plugin.name, path, serve, title, listen))

    def check(self, name: str, why_not: Callable[[], str | None]) -> None:
        """A condition of being ready for traffic: ``why_not`` says what is wrong, or ``None``."""
        self.checks.append(Check(self.plugin.name, name, why_not))

    def load_tables(self) -> None:
        """Read the tables from the disk.

        Raises:
            PluginError: the plugin cannot use what one of them holds.
        """
        for file, load in self.tables:
            data = file.load() or {}
            try:
                load(data)
            except Exception as error:
                name = self.plugin.name
                raise PluginError(
                    f"{file.path}: plugin {name!r} cannot use what it holds: {type(error).__name__}: {error}; "
                    "mend the file, or move it away to start without it",
                    name,
                ) from error
