"""Every hook, in the order a broker and then a message meet them.

Three shapes, and the name tells which:

- **A question** (``compile_filter``): the first plugin with an answer decides, ``None`` means "not mine".
  Plain ``def`` only.
- **An announcement** (``messages_dispatched``, past tense): all plugins hear it, in order. An implementation
  may be ``async def``; see each hook for when it is awaited.
- **A chance to change or refuse** (``before_append``): edit the object in place, or raise
  :class:`~verniermq.kernel.errors.RequestRefused` to refuse with a code and a text that the peer will see.

An implementation takes the arguments it needs by name and may leave out the others. What happens when one
raises anything but ``RequestRefused`` is the plugin's own declaration (``on_failure``), never a lost or half
changed message. Hooks marked *hot* lie on the path of every message: the kernel keeps their implementations
in plain lists, so that a hook nobody implements costs nothing, and hands them batches where it can.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from verniermq.kernel.plugin import hookspec

if TYPE_CHECKING:
    from verniermq.kernel.broker import Broker
    from verniermq.kernel.codes import ResponseCode
    from verniermq.kernel.fault import FaultStrategy
    from verniermq.kernel.message import MessageFilter, MessageQueue, PendingMessage, Subscription
    from verniermq.kernel.plugin import Service
    from verniermq.kernel.remoting import Command, Connection, Handler
    from verniermq.kernel.store import Appended, DispatchEvent, TagsCoder
    from verniermq.kernel.topics import TopicConfig
    from verniermq.kernel.traffic import Consuming, EndedTransaction, HostingClient, Sending


# --- a broker comes up ---------------------------------------------------------------------


@hookspec
def broker_created(broker: Broker) -> None:
    """Keep the broker, if the plugin needs it later. Called once, first of all, before the store opens.

    Nothing of the broker runs yet: look, do not use. Plain ``def``.
    """


@hookspec
def system_topics(broker: Broker) -> Iterable[TopicConfig]:
    """Name the topics that the plugin keeps its own messages in; they are created if they are missing.

    Asked once, when the store has opened. Used by ``schedule``, ``txn``, ``pop``. Plain ``def``.
    """


@hookspec
def tags_coders(broker: Broker) -> Mapping[str, TagsCoder]:
    """Say, per topic, which number a consume-queue entry keeps instead of the hash of the tags.

    Asked once, before the store opens, since recovery needs them too; an answer must not change while the
    store lives. Used by ``schedule``, whose queues keep the delivery time there. Plain ``def``.
    """


@hookspec
def redispatch_from(broker: Broker) -> int | None:
    """Say from which commit-log offset on the plugin has to hear ``messages_dispatched`` again.

    Asked once, while the store opens, of plugins that keep something derived from the log on disk (the key
    index); ``None`` means: only what recovery replays anyway. Plain ``def``.
    """


@hookspec
def request_handlers(broker: Broker) -> Mapping[int, Handler]:
    """Serve requests: ``{RequestCode.X: handler}``, where a handler takes ``(request, connection)``.

    Asked once, after the store opened and before the first connection. A plugin may replace a handler of
    the kernel or of a plugin that was asked before it: the last one wins. A handler returns the answer, a
    coroutine that returns it, or ``None`` when it will call ``connection.answer(request, …)`` itself later.
    """


@hookspec
def services(broker: Broker) -> Iterable[Service]:
    """Name background work; it runs in the broker's task group from the start to the end.

    A service that raises is logged, counted, and started again with a growing pause. Plain ``def``; the work itself is
    a coroutine function.
    """


@hookspec
def broker_started(broker: Broker) -> Awaitable[None] | None:
    """Hear that the broker listens and serves. May be ``async``; awaited in order before the broker is ready.

    Used by ``namesrv`` to register the broker.
    """


@hookspec
def settings_changed(settings: Any) -> None:
    """Take new settings without a restart: an instance of the plugin's own configuration class.

    Called only for a plugin whose table in ``broker.toml`` changed while the broker runs. Used by ``flow``.
    """


# --- a peer comes, asks, and goes ----------------------------------------------------------


@hookspec
def connection_opened(connection: Connection) -> None:
    """Hear of a new connection, before its first request. Plain ``def``."""


@hookspec
def before_request(request: Command, connection: Connection) -> Awaitable[None] | None:
    """Refuse a request before anybody looks at it, by raising ``RequestRefused``. *Hot.*

    Sees every request on every connection of the broker. An ``async`` implementation makes the request wait
    (flow control spreads requests this way); the others of that connection go on meanwhile.
    """


@hookspec
def request_refused(request: Command, connection: Connection, error: Exception) -> None:
    """Hear that a request was refused, by whomever, or failed. ``error`` says why. Plain ``def``.

    The counterpart of ``messages_appended`` for sends that were not taken. Used by ``audit``.
    """


@hookspec
def connection_closed(connection: Connection) -> None:
    """Hear that a connection is gone. Plain ``def``. Used by ``order`` to free locks."""


@hookspec
def members_changed(group: str) -> None:
    """Hear that a consumer group gained or lost a member or changed its subscriptions. Plain ``def``."""


@hookspec(firstresult=True)
def group_is_ordered(group: str) -> bool | None:
    """Say whether a consumer group works in order just now: a member of it holds the lock of a queue.

    The first plugin with an answer decides; silence means no. Asked by ``retry``, answered by ``order``.
    """


@hookspec
def topics_changed(changed: Sequence[TopicConfig], deleted: Sequence[str]) -> None:
    """Hear of created, altered and deleted topics, soon after it happened. Plain ``def``.

    Used by ``namesrv`` to tell the name servers.
    """


# --- on the way in: a producer sends -------------------------------------------------------


@hookspec
def before_append(message: PendingMessage, connection: Connection | None) -> Awaitable[None] | None:
    """Change or refuse a message just before it goes into the log (RocketMQ: ``PutMessageHook``). *Hot.*

    ``connection`` is the producer's, or ``None`` for a message that the broker itself puts. Mark the
    implementation with :func:`~verniermq.kernel.plugin.concerns` unless it really wants every message. When
    it raises anything but ``RequestRefused`` the message is put back as it was before the call. An ``async``
    implementation makes this send wait for it. Used by ``schedule``, ``txn``, ``retry``.
    """


@hookspec(firstresult=True)
def confirm_append(appended: Appended) -> Awaitable[ResponseCode] | None:
    """Say when an appended message may be acknowledged, and how: an awaitable of ``SUCCESS``,
    ``SLAVE_NOT_AVAILABLE`` or ``FLUSH_SLAVE_TIMEOUT``; ``None`` means at once. *Hot.*

    Asked only for messages whose producer waits (property ``WAIT``). Runs beside the wait for the disk.
    Used by replication.
    """


@hookspec
def messages_appended(batch: Sequence[tuple[PendingMessage, Appended]]) -> Awaitable[None] | None:
    """Hear of messages that producers sent, with what became of them. *Hot, batched* per turn of the loop.

    Unlike ``messages_dispatched`` it has the bodies and hears nothing during recovery. Used by audit.
    """


@hookspec
def messages_dispatched(events: Sequence[DispatchEvent]) -> Awaitable[None] | None:
    """Hear of messages that are in the log and in their queues (RocketMQ: ``CommitLogDispatcher``). *Hot, batched.*

    Comes in log order, and again during recovery for what may have been missed, so it must cope with
    repeats. Mark it with :func:`~verniermq.kernel.plugin.gathered` if it need not be told at once. An ``async``
    implementation is fed by a queue of its own, batch after batch; one that falls behind by more batches than the
    queue holds has failed. Used by ``query`` (the key index), ``admin`` and ``spark``.
    """


# --- on the way out: a consumer pulls ------------------------------------------------------


@hookspec(firstresult=True)
def compile_filter(subscription: Subscription) -> MessageFilter | None:
    """Turn a subscription's expression into a test for messages (RocketMQ: ``MessageFilter``).

    Asked once, when the subscription arrives; the kernel keeps the answer and uses it for every candidate
    of a pull, so it must answer from memory. The first plugin with an answer decides: return ``None`` for an
    expression type that is not yours, raise ``SubscriptionParseFailed`` for a bad expression of yours. When
    nobody answers, the pull is refused with the name of the plugin that would have. The subscription to
    everything (``*``) is the kernel's own and never asked.
    """


@hookspec
def messages_pulled(group: str, topic: str, queue_id: int, count: int, size: int) -> None:
    """Hear that a pull was answered with messages: how many, and how many bytes. *Hot*, once per answer. Plain ``def``.

    Used by ``admin`` for its rates.
    """


# --- afterwards ----------------------------------------------------------------------------


@hookspec
def log_trimmed(min_offset: int) -> None:
    """Hear that the log now begins at ``min_offset``, because older segments were deleted. Plain ``def``."""


@hookspec
def runtime_info(broker: Broker) -> Mapping[str, str]:
    """Add figures to what ``mqadmin brokerStatus`` shows. A later plugin's key replaces an earlier one's."""


@hookspec
def broker_stopping(broker: Broker) -> Awaitable[None] | None:
    """Hear that the broker is about to stop: it takes no new requests, the store is still open.

    May be ``async``; awaited in reverse order, at most 5 s each.
    """


# --- in a client ---------------------------------------------------------------------------


@hookspec
def client_started(client: HostingClient) -> Awaitable[None] | None:
    """Hear that a producer or consumer is connected, before it sends or handles the first message.

    Keep ``client`` to do something of the plugin's own with it: send a message, run a task beside the others. May be
    ``async``; awaited in order. Used by ``trace``.
    """


@hookspec(firstresult=True)
def allocate_queues(
    strategy: str, group: str, client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str]
) -> list[MessageQueue] | None:
    """Say which of a topic's queues a consumer of the group gets (RocketMQ: ``AllocateMessageQueueStrategy``).

    ``queues`` and ``clients`` are sorted, the same for every member, and ``client_id`` is one of ``clients``:
    all members answer alike, so every queue finds exactly one owner. Return ``None`` for a strategy that is
    not yours.
    """


@hookspec(firstresult=True)
def fault_strategy(name: str) -> FaultStrategy | None:
    """Make the object that steers a producer away from brokers that fail or are slow (RocketMQ: ``MQFaultStrategy``).

    Asked once per producer with the name from its settings; ``None`` for a name that is not yours.
    """


@hookspec
def before_send(sending: Sending) -> Awaitable[None] | None:
    """Change, delay or refuse a message before a producer sends it (RocketMQ: ``SendMessageHook``).

    Called once per message, not once per try, for each message of a batch too; first the plugins in their order, then
    the functions of the program. Raise ``RequestRefused`` to refuse it: the caller of the send gets that error, later
    plugins are not asked, nothing is sent. When it raises anything else the message is put back as it was before the
    call, and ``on_failure`` decides. An ``async`` implementation makes this send wait. Used by ``enrich``.
    """


@hookspec
def after_send(sending: Sending) -> Awaitable[None] | None:
    """Hear how a send ended, well or with an error: its broker's, or the refusal of a ``before_send``.

    Called once per message, in the order of ``before_send``, also for a plugin whose ``before_send`` was not reached.
    Nothing that it raises changes what became of the send. Used by ``trace``, ``audit``.
    """


@hookspec
def transaction_ended(ended: EndedTransaction) -> Awaitable[None] | None:
    """Hear what a producer told its broker about a transaction (RocketMQ: ``EndTransactionHook``).

    Used by ``trace``.
    """


@hookspec
def before_consume(consuming: Consuming) -> Awaitable[None] | None:
    """Hear of messages that are about to be handed to a consumer's handler, and delay them or hand them back.

    An ``async`` implementation makes them wait (flow rules spread them this way); ``RequestRefused`` means: not now,
    and the messages are offered again later as if the handler had failed.
    """


@hookspec
def after_consume(consuming: Consuming) -> Awaitable[None] | None:
    """Hear what became of them. Used by ``trace``."""


@hookspec
def client_stopping(client: HostingClient) -> Awaitable[None] | None:
    """Hear that a client is about to close: it takes nothing new, its connections are still there.

    May be ``async``; awaited in reverse order, at most 5 s each.
    """
