"""The transport: channels that publish to topics and consume as groups (kombu: ``virtual.Transport``).

=============================  ==================================================================================
AMQP                           here
=============================  ==================================================================================
exchange                       topic ``kombu-<exchange>``
default exchange               topic ``kombu-<queue>`` if the publisher declared the queue, else ``kombu-default``
queue                          consumer group ``kombu-<queue>``
binding                        a subscription of the group to the topic, filtered by the routing key as a tag
exclusive, auto-delete queue   its group begins at the end of the topic, and is deleted with its consumer
other queues                   the group begins with the first message that is still there
unacknowledged message         popped, and kept invisible while this process lives
priority                       a topic for each of ``priority_steps``, looked into from the highest on
=============================  ==================================================================================
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, Final

import attrs
from kombu.transport import virtual
from kombu.utils.json import dumps, loads
from kombu.utils.url import parse_url
from kombu.utils.uuid import uuid

from verniermq.client import ReceivedMessage, SimpleConsumer
from verniermq.client.errors import ClientError
from verniermq.client.sync import Admin, Credentials, Message, Producer
from verniermq.contrib.celery.names import DEFAULT, exchange_topic, key_tag, queue_group
from verniermq.contrib.celery.reader import MOST, ForeignMessage, QueueReader
from verniermq.kernel import Property, RemotingError, RequestRefused, UnexpectedAnswer

LOOPBACK: Final = "127.0.0.1"
DEFAULT_PORT: Final = 9876
SHORTEST_NATIVE_DELAY: Final = timedelta(seconds=1)
LONGEST_NATIVE_DELAY: Final = timedelta(days=3)
"""What brokers of RocketMQ take unless told otherwise; a later task waits in a worker."""


@attrs.define(eq=False)
class _Unsettled:
    """A message that is in the inbox, or with whoever consumes it."""

    reader: QueueReader
    message: ReceivedMessage


class QoS(virtual.QoS):
    """Counts what is unacknowledged; the broker itself brings back what is not."""

    restore_at_shutdown = False

    def ack(self, delivery_tag: str) -> None:
        self.channel.settle(delivery_tag)
        super().ack(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        self.channel.settle(delivery_tag, requeue=requeue, rejected=True)
        self._quick_ack(delivery_tag)

    def restore_unacked(self) -> list[Any]:
        self._flush()
        for tag in list(self._delivered):
            self.reject(tag, requeue=True)
        self._flush()
        return []


class Channel(virtual.Channel):
    QoS = QoS
    do_restore = False
    supports_fanout = True

    visibility_timeout: float = 60.0
    """Seconds after which what a dead process had in hand comes again; those that live ask for more time."""
    native_delay: bool = True
    """Leave tasks with an ETA to the broker until they are due."""
    priority_steps: tuple[int, ...] = (0,)
    """The priorities that are told apart; a message has the highest step that is not above its own priority."""
    queues_per_topic: int = 4
    max_attempts: int = 0
    """How often a message is handed out before it becomes a dead letter; 0: for ever."""
    dead_letter_rejected: bool = False
    """Put what is rejected without requeueing to the dead letters, instead of dropping it."""

    from_transport_options = (
        *virtual.Channel.from_transport_options,
        "visibility_timeout", "native_delay", "priority_steps", "queues_per_topic", "max_attempts",
        "dead_letter_rejected",
    )  # fmt: skip

    def __init__(self, connection: Transport, **options: Any) -> None:
        super().__init__(connection, **options)
        self._pid = os.getpid()
        self._readers: dict[str, QueueReader] = {}
        self._unsettled: dict[str, _Unsettled] = {}
        self._buffered = 0
        self._no_ack: set[str] = set()
        self._lock = threading.Lock()

    # --- exchanges and queues --------------------------------------------------------------

    @property
    def _steps(self) -> list[int]:
        return sorted({*self.priority_steps, 0}, reverse=True)

    def _topics(self, exchange: str) -> list[str]:
        return [exchange_topic(exchange, step) for step in self._steps]

    def exchange_declare(self, exchange: str | None = None, type: str = "direct", **options: Any) -> None:
        super().exchange_declare(exchange, type, **options)
        if not options.get("passive"):
            self.connection.ensure_topics(self._topics(exchange or f"amq.{type or 'direct'}"), self.queues_per_topic)

    def _new_queue(self, queue: str, **options: Any) -> None:
        if options.get("auto_delete") or options.get("exclusive"):
            self.connection.ephemeral.add(queue)
            self.connection.ensure_topics(self._topics(DEFAULT), self.queues_per_topic)
            self._begin_at_the_end(queue, DEFAULT)
        elif queue not in self.connection.durable:
            self.connection.ensure_topics([*self._topics(DEFAULT), *self._topics(queue)], self.queues_per_topic)
            self.connection.ensure_group(queue_group(queue))
            self.connection.durable.add(queue)

    def _has_queue(self, queue: str, **options: Any) -> bool:
        declared = self.connection.ephemeral | self.connection.durable
        return queue in declared or queue_group(queue) in self.connection.admin.groups()

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str, queue: str) -> None:
        self.connection.ensure_topics(self._topics(exchange), self.queues_per_topic)
        if queue in self.connection.ephemeral:
            self._begin_at_the_end(queue, exchange)
        if queue in self._readers:
            self._readers[queue].subscribe(self._subscriptions(queue))

    def _begin_at_the_end(self, queue: str, exchange: str, *, purge: bool = False) -> None:
        """What was published before a queue was bound is not for it; what came since is, for whichever channel."""
        admin, group = self.connection.admin, queue_group(queue)
        for topic in self._topics(exchange):
            if purge or all(place.committed is None for place in admin.progress(group, topic).values()):
                admin.reset_offsets(group, topic, "last")

    def _exchanges(self, queue: str) -> dict[str, list[str]]:
        """The topics that a queue hears, by what they are called after, with the routing keys that it wants."""
        bound: dict[str, list[str]] = {DEFAULT: [queue]}
        if queue not in self.connection.ephemeral:
            bound[queue] = [queue]
        for exchange, routing_key, _ in self.state.queue_bindings(queue):
            bound.setdefault(exchange, []).append(routing_key)
        return bound

    def _subscriptions(self, queue: str) -> list[tuple[str, str]]:
        """The topics of a queue with what it wants of each, the highest priority first."""
        bound = {exchange: self._selector(exchange, keys) for exchange, keys in self._exchanges(queue).items()}
        return [(exchange_topic(exchange, step), wanted) for step in self._steps for exchange, wanted in bound.items()]

    def _selector(self, exchange: str, keys: list[str]) -> str:
        kind = self.state.exchanges[exchange]["type"] if exchange in self.state.exchanges else "direct"
        if kind == "fanout" or (kind == "topic" and any("*" in key or "#" in key for key in keys)):
            return "*"
        return " || ".join(sorted({key_tag(key) for key in keys}))

    def _is_wanted(self, queue: str, payload: dict[str, Any]) -> bool:
        """Whether a message that came by an exchange is for a queue: a wildcard is more than brokers can filter by."""
        info = payload["properties"]["delivery_info"]
        exchange, routing_key = info.get("exchange") or "", info.get("routing_key") or ""
        if not exchange:
            return bool(routing_key == queue)
        if exchange not in self.state.exchanges:
            return False
        if self.typeof(exchange).type == "fanout":
            return any(queue == bound for _, _, bound in self.get_table(exchange))
        return queue in self.typeof(exchange).lookup(self.get_table(exchange), exchange, routing_key, None)

    # --- publishing ------------------------------------------------------------------------

    def basic_publish(self, message: dict[str, Any], exchange: str, routing_key: str, **options: Any) -> None:
        self._inplace_augment_message(message, exchange, routing_key)
        headers = message.get("headers") or {}
        step = next(step for step in self._steps if step <= self._get_message_priority(message))
        where = exchange or (routing_key if routing_key in self.connection.durable else DEFAULT)
        keys = [key for key in (headers.get("id"), message["properties"].get("correlation_id")) if key]
        self.connection.producer.send(
            Message(
                exchange_topic(where, step),
                dumps(message).encode(),
                tags=key_tag(routing_key or ""),
                keys=list(dict.fromkeys(plain_key(key) for key in keys)),
                properties=self._delay(headers),
            )
        )

    def _delay(self, headers: dict[str, Any]) -> dict[str, str]:
        eta = headers.get("eta")
        if not self.native_delay or not isinstance(eta, str):
            return {}
        due = datetime.fromisoformat(eta)
        due = due if due.tzinfo is not None else due.replace(tzinfo=UTC)
        if not SHORTEST_NATIVE_DELAY < due - datetime.now(UTC) < LONGEST_NATIVE_DELAY:
            return {}
        return {Property.TIMER_DELIVER_MS: str(int(due.timestamp() * 1000))}

    def _put(self, queue: str, message: dict[str, Any], **options: Any) -> None:
        self.basic_publish(message, "", queue)

    # --- consuming -------------------------------------------------------------------------

    def _reader(self, queue: str) -> QueueReader:
        reader = self._readers.get(queue)
        if reader is None:
            consumer = SimpleConsumer(
                queue_group(queue), invisible=self.visibility_timeout, start="first", auto_renew=True, in_order=True,
                max_attempts=self.max_attempts, **self.connection.options,
            )  # fmt: skip
            reader = QueueReader(consumer, self._room, lambda message: self._received(queue, message))
            reader.open(self._subscriptions(queue))
            self._readers[queue] = reader
        return reader

    def _room(self) -> int:
        """How many messages may be received now."""
        prefetch: int = self.qos.prefetch_count
        return prefetch - len(self._unsettled) if prefetch else MOST - self._buffered

    def _received(self, queue: str, message: ReceivedMessage) -> None:
        """In the loop: hand over to whoever drains events.

        Raises:
            ForeignMessage: kombu did not write it.
        """
        payload = self._take(self._readers[queue], message)
        with self._lock:
            self._buffered += 1
        self.connection.inbox.put((self, queue, payload))

    def _take(self, reader: QueueReader, message: ReceivedMessage) -> dict[str, Any]:
        """
        Raises:
            ForeignMessage: kombu did not write it.
        """
        tag = uuid()  # one for each delivery: two queues of one channel may get the same message
        try:
            payload: dict[str, Any] = loads(message.body)
            properties = payload["properties"]
            properties["delivery_tag"] = tag
            properties.setdefault("delivery_info", {})["redelivered"] = message.reconsume_times > 0
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ForeignMessage(message, error) from error
        self._unsettled[tag] = _Unsettled(reader, message)
        return payload

    def basic_consume(self, queue: str, no_ack: bool, *arguments: Any, **options: Any) -> None:
        super().basic_consume(queue, no_ack, *arguments, **options)
        (self._no_ack.add if no_ack else self._no_ack.discard)(queue)
        self._reader(queue).read()

    def basic_cancel(self, consumer_tag: str) -> None:
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        reader = self._readers.get(queue) if queue is not None else None
        if reader is not None and queue not in self._active_queues and self._pid == os.getpid():
            reader.stop()

    def deliver(self, queue: str, payload: dict[str, Any]) -> bool:
        """Hand a message to its consumer; say whether there was one."""
        with self._lock:
            self._buffered -= 1
        tag = payload["properties"]["delivery_tag"]
        if self.closed or tag not in self._unsettled:
            return False
        if queue not in self._active_queues:
            self.settle(tag, requeue=True)
            return False
        if not self._is_wanted(queue, payload):
            self.settle(tag)
            return False
        if queue in self._no_ack:
            self.settle(tag)
        elif not self.qos.prefetch_count:
            self._wake()
        self.connection._deliver(payload, queue)
        return True

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        reader = self._reader(queue)
        while (message := reader.get()) is not None:
            try:
                payload = self._take(reader, message)
            except ForeignMessage as error:
                reader.dead_letter(message, str(error))
                continue
            if self._is_wanted(queue, payload):
                return payload
            self.settle(payload["properties"]["delivery_tag"])
        raise Empty

    def basic_get(self, queue: str, no_ack: bool = False, **options: Any) -> Any:
        message = super().basic_get(queue, no_ack, **options)
        if message is not None and no_ack:
            self.settle(message.delivery_tag)
        return message

    def settle(self, tag: str, *, requeue: bool = False, rejected: bool = False) -> None:
        """A message is done with, or comes again; from any thread."""
        unsettled = self._unsettled.pop(tag, None)
        if unsettled is None or self._pid != os.getpid():
            return
        reader, message = unsettled.reader, unsettled.message
        if requeue:
            reader.give_back(message)
        elif rejected and self.dead_letter_rejected:
            reader.dead_letter(message, "rejected")
        else:
            reader.ack(message)
        self._wake()

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        super().basic_qos(prefetch_size, prefetch_count, apply_global)
        self._wake()

    def _wake(self) -> None:
        for reader in list(self._readers.values()):
            reader.wake()

    # --- looking and cleaning up -----------------------------------------------------------

    def _size(self, queue: str) -> int:
        """What the topics of a queue hold and it has not received; of an exchange, some may be for other queues."""
        if queue in self.connection.ephemeral:
            return 0
        topics = [
            topic for exchange in self._exchanges(queue) if exchange != DEFAULT for topic in self._topics(exchange)
        ]
        return sum(self.connection.admin.lag(queue_group(queue), topic) for topic in topics)

    def _purge(self, queue: str) -> int:
        count = self._size(queue)
        for exchange in self._exchanges(queue):
            self._begin_at_the_end(queue, exchange, purge=True)
        return count

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **options: Any) -> None:
        if if_empty and self._size(queue):
            return
        if queue not in self.connection.ephemeral:
            # Its group stays, at the end: a queue of that name begins there.
            self._purge(queue)
        self._forget(queue)
        self.state.queue_bindings_delete(queue)

    def _forget(self, queue: str) -> None:
        reader = self._readers.pop(queue, None)
        if reader is None:
            return
        reader.close()
        if queue in self.connection.ephemeral:
            try:
                self.connection.admin.delete_group(queue_group(queue))
            except (ClientError, RemotingError, RequestRefused):
                pass  # nobody reads it any more, whether it is there or not

    def close(self) -> None:
        if not self.closed and self._pid == os.getpid():
            for reader in self._readers.values():
                reader.stop()
            for tag in list(self._unsettled):
                self.settle(tag, requeue=True)
            for queue in list(self._readers):
                self._forget(queue)
        super().close()


def plain_key(key: str) -> str:
    """A key without blanks, which separate keys."""
    return "-".join(str(key).split())


class Transport(virtual.Transport):
    Channel = Channel

    default_port = DEFAULT_PORT
    driver_type = "verniermq"
    driver_name = "verniermq"
    connection_errors = (*virtual.Transport.connection_errors, ClientError, RemotingError, OSError)
    channel_errors = (*virtual.Transport.channel_errors, UnexpectedAnswer)
    implements = virtual.Transport.implements.extend(
        asynchronous=False, exchange_type=frozenset(["direct", "topic", "fanout"]), heartbeats=False
    )

    def __init__(self, client: Any, **options: Any) -> None:
        super().__init__(client, **options)
        self.inbox: SimpleQueue[tuple[Channel, str, dict[str, Any]]] = SimpleQueue()
        self._producer: Producer | None = None
        self._admin: Admin | None = None
        self._known: set[str] = set()
        """Topics that were there once."""
        self._groups: set[str] = set()
        self.ephemeral: set[str] = set()
        """Queues that are exclusive or go with their last consumer."""
        self.durable: set[str] = set()
        """The others, as far as they were declared here."""
        self._lock = threading.RLock()

    def driver_version(self) -> str:
        return version("verniermq")

    # --- the clients behind it -------------------------------------------------------------

    @property
    def options(self) -> dict[str, Any]:
        """Of every client: where the name servers are, and who this is."""
        client = self.client
        hosts = [(client.hostname, client.port)]
        if len(client.alt or ()) > 1:
            hosts = [(parts["hostname"], parts["port"]) for parts in map(parse_url, client.alt)]
        options: dict[str, Any] = {"namesrv": [f"{host or LOOPBACK}:{port or DEFAULT_PORT}" for host, port in hosts]}
        if client.userid:
            options["credentials"] = Credentials(client.userid, client.password or "")
        if client.virtual_host and client.virtual_host != "/":
            options["namespace"] = client.virtual_host.strip("/")
        if client.ssl:
            options["tls"] = client.ssl
        return {**options, **client.transport_options.get("client", {})}

    @property
    def producer(self) -> Producer:
        with self._lock:
            if self._producer is None:
                self._producer = Producer("kombu", **self.options).start()
            return self._producer

    @property
    def admin(self) -> Admin:
        with self._lock:
            if self._admin is None:
                self._admin = Admin(**self.options).start()
            return self._admin

    def ensure_topics(self, topics: Iterable[str], queues: int) -> None:
        """Create the topics that are not there yet, so that whoever waits for their messages can begin to."""
        missing = [topic for topic in topics if topic not in self._known]
        if not missing:
            return
        existing = set(self.admin.topics())
        for topic in missing:
            if topic not in existing:
                self.admin.create_topic(topic, queues=queues)
            self._known.add(topic)

    def ensure_group(self, group: str) -> None:
        if group not in self._groups:
            if group not in self.admin.groups():
                self.admin.create_group(group)
            self._groups.add(group)

    # --- connections -----------------------------------------------------------------------

    def establish_connection(self) -> Any:
        _ = self.producer  # raises if there is nobody to talk to
        return super().establish_connection()

    def close_connection(self, connection: Any) -> None:
        super().close_connection(connection)
        with self._lock:
            clients = [client for client in (self._producer, self._admin) if client is not None]
            self._producer = self._admin = None
        for client in clients:
            client.close()

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        deadline = None if timeout is None else monotonic() + timeout
        while True:
            left = None if deadline is None else max(0.0, deadline - monotonic())
            try:
                channel, queue, payload = self.inbox.get(timeout=left)
            except Empty:
                raise TimeoutError from None
            if channel.deliver(queue, payload):
                return

    @property
    def default_connection_params(self) -> dict[str, Any]:
        return {"port": self.default_port, "hostname": LOOPBACK}
