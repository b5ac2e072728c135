"""Taskiq on VernierMQ or Apache RocketMQ 5: tasks are popped, so one that is slow holds up no other.

::

    broker = VernierMQBroker("127.0.0.1:9876")

    @broker.task
    async def add(x: int, y: int) -> int: ...
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any, Final, Unpack

from taskiq import AckableMessage, AsyncBroker, BrokerMessage

from verniermq.client import Admin, Message, Producer, SimpleConsumer
from verniermq.client.errors import ClientError
from verniermq.client.options import ConnectionOptions
from verniermq.kernel import Property, RemotingError

__all__ = ["VernierMQBroker"]

logger = logging.getLogger(__name__)

AFTER_ERROR: Final = 1.0
WAIT_SECONDS: Final = 20.0


class VernierMQBroker(AsyncBroker):
    """Sends tasks to a topic, and takes them from there as a member of a group.

    A task with the label ``delay`` (seconds) is kept by the broker until then. What a worker has in hand is asked for
    again and again until it is acknowledged; if the worker dies, it comes again after ``invisible`` seconds.

    Args:
        address: the name servers, as ``namesrv`` of every client; the environment's or the local one if left out
        topic: where tasks go; created if it is not there
        group: whose workers share them
        prefetch: how many tasks are taken at a time
        max_attempts: how often a task is handed out before it becomes a dead letter
        options: those of every client, such as ``credentials``
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        topic: str = "taskiq",
        group: str = "taskiq",
        queues: int = 4,
        prefetch: int = 8,
        invisible: float = 60.0,
        max_attempts: int = 16,
        **options: Unpack[ConnectionOptions],
    ) -> None:
        super().__init__()
        if address is not None:
            options["namesrv"] = address
        self._topic, self._group = topic, group
        self._queues, self._prefetch = queues, prefetch
        self._invisible, self._max_attempts = invisible, max_attempts
        self._options = options
        self._producer: Producer | None = None
        self._consumer: SimpleConsumer | None = None

    async def startup(self) -> None:
        """Connect; a worker joins its group."""
        await super().startup()
        async with Admin(**self._options) as admin:
            if self._topic not in await admin.topics():
                await admin.create_topic(self._topic, queues=self._queues)
        self._producer = await Producer("taskiq", **self._options).start()
        if self.is_worker_process:
            await self._join()

    async def _join(self) -> SimpleConsumer:
        if self._consumer is None:
            consumer = SimpleConsumer(
                self._group, start="first", auto_renew=True, invisible=self._invisible,
                max_attempts=self._max_attempts, **self._options,
            )  # fmt: skip
            consumer.subscribe(self._topic)
            self._consumer = await consumer.start()
        return self._consumer

    async def shutdown(self) -> None:
        for client in (self._consumer, self._producer):
            if client is not None:
                await client.close()
        self._consumer = self._producer = None
        await super().shutdown()

    async def kick(self, message: BrokerMessage) -> None:
        """Send a task.

        Raises:
            ClientError: this broker was not started, or the message was not taken.
        """
        if self._producer is None:
            raise ClientError("this broker was not started; call startup() before tasks are sent")
        properties = {}
        delay = message.labels.get("delay")
        if delay is not None:
            properties[Property.TIMER_DELIVER_MS] = str(int((time.time() + float(delay)) * 1000))
        await self._producer.send(
            Message(self._topic, message.message, tags=message.task_name, keys=[message.task_id], properties=properties)
        )

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        """Tasks, as they come."""
        consumer = await self._join()
        while True:
            try:
                received = await consumer.receive(self._prefetch, wait=WAIT_SECONDS)
            except (ClientError, RemotingError) as error:
                logger.warning("no tasks, again in a second group=%s reason=%s", self._group, error)
                await asyncio.sleep(AFTER_ERROR)
                continue
            for message in received:
                yield AckableMessage(data=message.body, ack=partial(self._acknowledge, message))

    async def _acknowledge(self, message: Any) -> None:
        if self._consumer is not None:
            await self._consumer.ack(message)
