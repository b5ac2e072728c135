"""Dramatiq on VernierMQ or Apache RocketMQ 5.

::

    import dramatiq
    from verniermq.contrib.dramatiq import VernierMQBroker

    dramatiq.set_broker(VernierMQBroker("127.0.0.1:9876"))

A queue is a topic and a group, ``dramatiq-<queue>``; delays are kept by the broker; what is given up becomes a dead
letter of the group.
"""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import Any, Final, Unpack

from dramatiq import Broker, Consumer, MessageProxy, QueueJoinTimeout, QueueNotFound
from dramatiq import Message as Task
from dramatiq.errors import DecodeError

from verniermq.client import ReceivedMessage
from verniermq.client.errors import ReceiptExpired
from verniermq.client.options import ConnectionOptions
from verniermq.client.sync import Admin, Message, Producer, SimpleConsumer
from verniermq.kernel import Property

__all__ = ["VernierMQBroker"]

MOST: Final = 32
PAUSE_SECONDS: Final = 0.05


def topic_of(queue_name: str) -> str:
    """The topic, and the group, of a queue."""
    return "dramatiq-" + re.sub(r"[^a-zA-Z0-9_-]", "-", queue_name)


class VernierMQBroker(Broker):
    """
    Args:
        address: the name servers, as ``namesrv`` of every client; the environment's or the local one if left out
        invisible: seconds after which the messages of a worker that died come again
        queues_per_topic: of topics that are created
        options: those of every client, such as ``credentials``
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        middleware: list[Any] | None = None,
        invisible: float = 60.0,
        queues_per_topic: int = 4,
        **options: Unpack[ConnectionOptions],
    ) -> None:
        super().__init__(middleware=middleware)
        if address is not None:
            options["namesrv"] = address
        self.queues: dict[str, None] = {}
        self._invisible = invisible
        self._queues_per_topic = queues_per_topic
        self._options = options
        self._lock = threading.RLock()
        self._producer: Producer | None = None
        self._admin: Admin | None = None
        self._created: set[str] = set()

    # --- queues ----------------------------------------------------------------------------

    def declare_queue(self, queue_name: str) -> None:
        """Know a queue. Its topic is created when it is first used: actors are declared while modules are imported."""
        if queue_name not in self.queues:
            self.emit_before("declare_queue", queue_name)
            self.queues[queue_name] = None
            self.emit_after("declare_queue", queue_name)

    def _topic(self, queue_name: str) -> str:
        """
        Raises:
            QueueNotFound: nobody declared it.
        """
        if queue_name not in self.queues:
            raise QueueNotFound(queue_name)
        topic = topic_of(queue_name)
        with self._lock:
            if topic not in self._created:
                if topic not in self.admin.topics():
                    self.admin.create_topic(topic, queues=self._queues_per_topic)
                self._created.add(topic)
        return topic

    @property
    def admin(self) -> Admin:
        with self._lock:
            if self._admin is None:
                self._admin = Admin(**self._options).start()
            return self._admin

    @property
    def producer(self) -> Producer:
        with self._lock:
            if self._producer is None:
                self._producer = Producer("dramatiq", **self._options).start()
            return self._producer

    # --- messages --------------------------------------------------------------------------

    def enqueue(self, message: Task[Any], *, delay: int | None = None) -> Task[Any]:
        """Send a message; with ``delay`` (ms), the broker keeps it so long."""
        topic = self._topic(message.queue_name)
        self.emit_before("enqueue", message, delay)
        due = {} if delay is None else {Property.TIMER_DELIVER_MS: str(int(time.time() * 1000) + delay)}
        self.producer.send(
            Message(topic, message.encode(), tags=message.actor_name, keys=[message.message_id], properties=due)
        )
        self.emit_after("enqueue", message, delay)
        return message

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 5000) -> Consumer:
        topic = self._topic(queue_name)
        consumer = SimpleConsumer(
            topic, start="first", auto_renew=True, invisible=self._invisible, max_attempts=0, **self._options
        )
        consumer.subscribe(topic)
        return _Consumer(consumer.start(), prefetch, timeout)

    # --- looking after ---------------------------------------------------------------------

    def flush(self, queue_name: str) -> None:
        """Skip what is in a queue."""
        topic = self._topic(queue_name)
        self.admin.reset_offsets(topic, topic, "last")

    def flush_all(self) -> None:
        for queue_name in self.queues:
            self.flush(queue_name)

    def join(self, queue_name: str, *, timeout: int | None = None) -> None:
        """Wait until everything in a queue was handed out to workers. For tests.

        Raises:
            QueueJoinTimeout: it was not, after ``timeout`` ms.
        """
        topic = self._topic(queue_name)
        deadline = None if timeout is None else time.monotonic() + timeout / 1000
        while self.admin.lag(topic, topic):
            if deadline is not None and time.monotonic() > deadline:
                raise QueueJoinTimeout(queue_name)
            time.sleep(PAUSE_SECONDS)

    def close(self) -> None:
        with self._lock:
            clients = [client for client in (self._producer, self._admin) if client is not None]
            self._producer = self._admin = None
        for client in clients:
            client.close()


class _Received(MessageProxy):
    """A message with what it is settled by."""

    def __init__(self, message: Task[Any], received: ReceivedMessage) -> None:
        super().__init__(message)
        self.received = received


class _Consumer(Consumer):
    def __init__(self, consumer: SimpleConsumer, prefetch: int, timeout: int) -> None:
        self._consumer = consumer
        self._prefetch = prefetch
        self._timeout = timeout / 1000
        self._ready: deque[_Received] = deque()
        self._unsettled = 0
        self._lock = threading.Lock()

    def __next__(self) -> MessageProxy | None:
        if not self._ready:
            room = min(self._prefetch - self._unsettled, MOST)
            if room <= 0:
                time.sleep(PAUSE_SECONDS)
                return None
            for received in self._consumer.receive(room, wait=self._timeout):
                try:
                    self._ready.append(_Received(Task.decode(received.body), received))
                except DecodeError as error:
                    self._consumer.dead_letter(received, f"not a message of dramatiq: {error}")
                else:
                    self._count(1)
        return self._ready.popleft() if self._ready else None

    def _count(self, change: int) -> None:
        with self._lock:
            self._unsettled += change

    def ack(self, message: Any) -> None:
        self._consumer.ack(message.received)
        self._count(-1)

    def nack(self, message: Any) -> None:
        """Given up: a dead letter."""
        self._consumer.dead_letter(message.received, "the actor failed, and is not tried again")
        self._count(-1)

    def requeue(self, messages: Iterable[Any]) -> None:
        for message in messages:
            try:
                self._consumer.change_invisible(message.received, 0)
            except ReceiptExpired:
                pass  # it comes again already
            self._count(-1)

    def close(self) -> None:
        self.requeue(list(self._ready))
        self._ready.clear()
        self._consumer.close()
