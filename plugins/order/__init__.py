"""Consuming in order: queue locks for orderly consumers (RocketMQ: ``RebalanceLockManager``); see ``locks``."""

from __future__ import annotations

import logging
from typing import Any, ClassVar

import attrs
import orjson

from verniermq.kernel import (
    Command,
    Connection,
    Context,
    Declaration,
    Duration,
    InvalidParameter,
    MessageQueue,
    Registry,
    RequestCode,
    hookimpl,
    in_steps,
    parse_duration,
    setting,
)
from verniermq.plugins.order.locks import QueueLocks
from verniermq.protocol.lock import LockBatchMQ

logger = logging.getLogger(__name__)


@attrs.frozen
class Config:
    """``[plugins.order]``"""

    lock_lifetime: Duration = setting(
        parse_duration("60s"),
        "After how long without renewal a lock is free; clients renew every 20 s and trust theirs for 30 s.",
        at_least=0.1,
        at_most=3600,
    )
    free_on_disconnect: bool = setting(
        True, "Free a client's locks as soon as its connection is gone; false waits for their end, as RocketMQ does."
    )
    max_locks: int = setting(200_000, "How many queues may be locked at a time.", at_least=1)
    max_locks_per_client: int = setting(10_000, "How many of them one client may hold.", at_least=1)


@attrs.define(eq=False)
class Plugin:
    declaration: ClassVar = Declaration(
        api=1,
        config=Config,
        summary="Lets one consumer of a group at a time have a queue, for orderly consumption.",
        requests=(RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ),
    )
    config: Config
    broker: Context
    _locks: QueueLocks = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        config, clock = self.config, self.broker.clock
        self._locks = QueueLocks(clock, config.lock_lifetime, config.max_locks, config.max_locks_per_client)

    def setup(self, registry: Registry) -> None:
        registry.handler(RequestCode.LOCK_BATCH_MQ, self.lock, LockBatchMQ)
        registry.handler(RequestCode.UNLOCK_BATCH_MQ, self.unlock, LockBatchMQ)

    async def lock(self, request: Command, connection: Connection) -> Command:
        locking = LockBatchMQ.of(request)
        granted = []
        async for queue in in_steps(await _queues(locking)):
            if connection.closed:
                break  # nobody would free them again
            if self._locks.lock(locking.group, queue, locking.client_id, connection):
                granted.append(queue)
        return request.reply(body=orjson.dumps({"lockOKMQSet": [_as_json(queue) for queue in granted]}))

    async def unlock(self, request: Command, connection: Connection) -> Command:
        unlocking = LockBatchMQ.of(request)
        async for queue in in_steps(await _queues(unlocking)):
            self._locks.unlock(unlocking.group, queue, unlocking.client_id)
        return request.reply()

    @hookimpl
    def connection_closed(self, connection: Connection) -> None:
        if self.config.free_on_disconnect and (freed := self._locks.free_connection(connection)):
            logger.info("queue locks freed, their client is gone peer=%s locks=%d", connection.peer_address, freed)

    @hookimpl(optionalhook=True)
    def group_is_ordered(self, group: str) -> bool | None:
        return self._locks.is_held(group) or None


async def _queues(request: LockBatchMQ) -> list[MessageQueue]:
    """
    Raises:
        InvalidParameter: one of them is none.
    """
    try:
        return [
            MessageQueue(str(queue["topic"]), str(queue["brokerName"]), int(queue["queueId"]))
            async for queue in in_steps(request.queues)
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidParameter(f"the body of the lock request is malformed: {error!r}") from error


def _as_json(queue: MessageQueue) -> dict[str, Any]:
    return {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}
