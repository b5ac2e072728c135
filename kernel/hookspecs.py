"""Every hook of a broker, in the order a broker and then a message meet them.

:mod:`verniermq.kernel.hookspec` explains the three shapes. An implementation takes the arguments it needs by name and
may leave out the others. What happens when one raises anything but ``RequestRefused`` is the plugin's own declaration
(``on_failure``), never a lost or half changed message. Hooks marked *hot* lie on the path of every message: a hook that
nobody implements costs nothing there, and batches are handed over where possible.

What a plugin brings (topics, handlers, services, tables) it registers in ``setup``, see
:class:`verniermq.kernel.Registry`. The hooks of a client are in ``client/hookspecs.py``; ``admin``, ``retention`` and
``retry`` bring hooks of their own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verniermq.kernel.hookspec import hookspec

if TYPE_CHECKING:
    from verniermq.kernel.codes import ResponseCode
    from verniermq.kernel.message import MessageFilter, MessageQueue, PendingMessage, Subscription
    from verniermq.kernel.remoting import Command, Connection
    from verniermq.kernel.requests import Access, Caller
    from verniermq.kernel.role import Role
    from verniermq.kernel.store import Appended, DispatchEvent
    from verniermq.kernel.tables.topics import TopicConfig


# --- a broker comes up ---------------------------------------------------------------------


@hookspec("announcement", at_start=True)
def store_opened() -> None:
    """The store is open and recovered, the tables are read; the broker does not listen yet.

    The moment to make again what the plugin keeps in memory, from the log. Used by ``txn``, ``pop``, ``query``,
    ``schedule``, ``retention``.
    """


@hookspec("announcement", may_wait=True, at_start=True)
def broker_started() -> Awaitable[None] | None:
    """The broker listens and serves. Awaited in order before the broker is ready.

    Used by ``namesrv`` to register the broker.
    """


@hookspec("announcement")
def role_changed(role: Role) -> None:
    """The broker is a master or a slave from now on, of a term, and its copies are had at an address.

    A broker that nobody gives a role is a master and never hears this. Services of a plugin that only a master may run
    are registered with ``master_only``. Used by ``namesrv`` to register the broker as what it is, and by
    ``schedule``.
    """


@hookspec("announcement")
def settings_changed(settings: Any) -> None:
    """Take new settings without a restart: an instance of the plugin's own configuration class.

    Called only for a plugin whose table in ``broker.toml`` changed while the broker runs. Used by ``flow``.
    """


# --- a peer asks, and goes -----------------------------------------------------------------


@hookspec("change", hot=True)
def before_access(caller: Caller, wanted: Iterable[Access]) -> None:
    """Refuse what a peer wants to do with which topics and groups, by raising ``NoPermission``.

    Asked first of all about every request, also about those of a plugin's own listener. ``caller`` is who asks: its
    address, its access key, and whether it knows a secret. ``wanted`` has what the request touches, by name: iterate it
    when it is clear who asks, since it is found out meanwhile, and refuses a request that cannot be decoded. A request
    that declares nothing touches the cluster, and so does one that touches a topic of the broker's own.
    Used by ``acl``.
    """


@hookspec("change", may_wait=True, hot=True)
def before_request(request: Command, connection: Connection) -> Awaitable[None] | None:
    """Refuse a request before its handler sees it, by raising ``RequestRefused``.

    Called for every request on every connection of the broker. An ``async`` implementation makes the request wait
    (flow control spreads requests this way); the others of that connection go on meanwhile. ``broker.hooks.pause``
    takes the implementation off the path for as long as it has nothing to do. Used by ``flow``.
    """


@hookspec("announcement", hot=True)
def request_served(
    request: Command, connection: Connection, answer: Command | None, error: Exception | None, elapsed_ns: int
) -> None:
    """A request is answered, was refused (by ``before_request`` too), or failed; ``elapsed_ns`` after it was begun.

    ``answer`` is ``None`` when there is an ``error``, and when the handler answers later by itself, as for a pull that
    waits for a message. Called once for each request that ``before_request`` saw. Used by ``flow``, ``audit``.
    """


@hookspec("announcement")
def connection_closed(connection: Connection) -> None:
    """A connection is gone. Used by ``order`` to free locks, by ``pop``."""


@hookspec("announcement")
def client_joined(kind: str, group: str, client_id: str, connection: Connection) -> None:
    """A client is a ``"producer"`` or a ``"consumer"`` of a group from now on. Used by ``audit``."""


@hookspec("announcement")
def client_left(kind: str, group: str, client_id: str, connection: Connection) -> None:
    """A client is in a group no longer: it said so, or its connection is gone. Used by ``audit``."""


@hookspec("announcement", hot=True)
def offset_committed(group: str, topic: str, queue_id: int, offset: int) -> None:
    """A consumer group has consumed a queue up to an offset, which is the next one that it will consume.

    Called for each commit, though nothing may have changed; a reset by an operator is none. Used by ``audit``.
    """


@hookspec("announcement")
def members_changed(group: str) -> None:
    """A consumer group gained or lost a member or changed its subscriptions. Used by ``retry``."""


@hookspec("announcement")
def topics_changed(changed: Sequence[TopicConfig], deleted: Sequence[str]) -> None:
    """Topics were created, altered or deleted, a moment ago. Used by ``namesrv`` to tell the name servers."""


# --- on the way in: a producer sends -------------------------------------------------------


@hookspec("change", may_wait=True, hot=True)
def before_append(message: PendingMessage, connection: Connection | None) -> Awaitable[None] | None:
    """Change or refuse a message just before it goes into the log (RocketMQ: ``PutMessageHook``).

    ``connection`` is the producer's, or ``None`` for a message that the broker itself puts. Mark the
    implementation with :func:`~verniermq.kernel.concerns` unless it really wants every message. When
    it raises anything but ``RequestRefused`` the message is put back as it was before the call. An ``async``
    implementation makes this send wait for it. Used by ``schedule``, ``txn``, ``retry``.
    """


@hookspec("question", hot=True)
def confirm_append(appended: Appended) -> Awaitable[ResponseCode] | None:
    """Say when an appended message, and all that the log has before it, may be acknowledged, and how: an awaitable
    of ``SUCCESS``, ``SLAVE_NOT_AVAILABLE`` or ``FLUSH_SLAVE_TIMEOUT``; ``None`` means at once.

    Asked once for each turn of the loop, with the last message of the turn whose producer waits (property ``WAIT``):
    what is said counts for all such messages of the turn. Runs beside the wait for the disk. Used by ``ha``.
    """


@hookspec("announcement", may_wait=True, hot=True)
def messages_appended(batch: Sequence[tuple[PendingMessage, Appended]]) -> Awaitable[None] | None:
    """Producers sent messages, with what became of them; one batch per turn of the loop.

    Unlike ``messages_dispatched`` it has the bodies, and is not called during recovery. Used by ``audit``, ``trace``.
    """


@hookspec("announcement", may_wait=True, hot=True)
def messages_dispatched(events: Sequence[DispatchEvent]) -> Awaitable[None] | None:
    """Messages are in the log and in their queues (RocketMQ: ``CommitLogDispatcher``); batches in log order.

    During recovery it comes again for what may have been missed, so it must cope with repeats. Mark it with
    :func:`~verniermq.kernel.gathered` if it need not come at once. An ``async`` implementation is fed by a queue of
    its own, batch after batch; one that falls behind by more batches than the queue holds has failed. An event of a
    message that came in a batch is made when it is looked at; to sum up, ask :func:`~verniermq.kernel.sizes_of` for the
    sizes of all, or :func:`~verniermq.kernel.parts_of` for the runs that they were stored in. Used by ``query`` (the
    key index), ``admin``, ``pop`` and ``spark``.
    """


# --- on the way out: a consumer pulls ------------------------------------------------------


@hookspec("question")
def compile_filter(subscription: Subscription) -> MessageFilter | None:
    """Turn a subscription's expression into a test for messages (RocketMQ: ``MessageFilter``).

    Asked once, when the subscription arrives; the kernel keeps the answer and uses it for every candidate
    of a pull, so it must answer from memory. The first plugin with an answer decides: return ``None`` for an
    expression type that is not yours, raise ``SubscriptionParseFailed`` for a bad expression of yours. When
    nobody answers, the pull is refused with the name of the plugin that would have. The subscription to
    everything (``*``) is the kernel's own and never asked. Used by ``filter``, ``sql``.
    """


@hookspec("question")
def allocate_queues(
    strategy: str, group: str, client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str]
) -> list[MessageQueue] | None:
    """Say which of a topic's queues a consumer of the group gets (RocketMQ: ``AllocateMessageQueueStrategy``).

    ``queues`` and ``clients`` are sorted, the same for every member, and ``client_id`` is one of ``clients``:
    all members answer alike, so every queue finds exactly one owner. Return ``None`` for a strategy that is
    not yours. Asked by consumers, and by ``pop`` for those that leave the sharing to the broker. Used by ``allocate``.
    """


@hookspec("announcement", hot=True)
def messages_pulled(group: str, topic: str, queue_id: int, count: int, size: int) -> None:
    """A pull or pop was answered with messages: how many, and how many bytes; once per answer.

    Used by ``admin`` for its rates.
    """


@hookspec("announcement")
def offset_moved(group: str, topic: str, queue_id: int, asked: int, given: int) -> None:
    """A pull asked for messages before the first or behind the last of a queue, and is told where to go on.

    Retention overtook the group, or its offset is of another queue of this name. Used by ``admin``.
    """


# --- the end -------------------------------------------------------------------------------


@hookspec("announcement", may_wait=True)
def broker_leaving() -> Awaitable[None] | None:
    """The broker was asked to stop, and still serves: hand over to others what only it does.

    Announced by ``verniermq broker`` at the first signal, before anything ends. Awaited in order, as long as each
    takes; a second signal ends the wait. Used by ``ha`` to make another replica the master.
    """


@hookspec("announcement", may_wait=True)
def broker_stopping() -> Awaitable[None] | None:
    """The broker is about to stop: it takes no new requests, the store is still open.

    Awaited in reverse order, at most 5 s each. Used by ``namesrv``, ``txn``, ``pop``.
    """


# --- the files of a stopped broker ---------------------------------------------------------


@hookspec("question")
def check_files(path: Path, mend: bool) -> Iterable[str] | None:
    """Look at the plugin's own files in the store at ``path`` and say what is damaged, a line each. All are asked.

    Asked by ``verniermq store check``, which must change nothing, and with ``mend`` by ``verniermq store repair``: then
    mend it, or have the next start do so. No broker runs. Used by ``schedule`` for timed messages.
    """
