"""Consuming in order: queue locks for orderly consumers (RocketMQ: ``RebalanceLockManager``); see ``locks``."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, ClassVar

import attrs
import orjson

from verniermq.kernel import (
    Broker,
    Command,
    Connection,
    Declaration,
    Duration,
    Handler,
    InvalidParameter,
    MessageQueue,
    RequestCode,
    hookimpl,
    parse_duration,
    parse_fastjson,
    setting,
)
from verniermq.plugins.order.locks import Locks

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


@attrs.define(eq=False)
class Plugin:
    declaration: ClassVar = Declaration(
        api=1, config=Config, summary="Lets one consumer of a group at a time have a queue, for orderly consumption."
    )
    config: Config
    _locks: Locks = attrs.field(init=False)

    @hookimpl
    def broker_created(self, broker: Broker) -> None:
        self._locks = Locks(broker.clock, self.config.lock_lifetime)

    @hookimpl
    def request_handlers(self, broker: Broker) -> Mapping[int, Handler]:
        return {RequestCode.LOCK_BATCH_MQ: self.lock, RequestCode.UNLOCK_BATCH_MQ: self.unlock}

    def lock(self, request: Command, connection: Connection) -> Command:
        group, client_id, queues = _read(request)
        granted = self._locks.lock(group, queues, client_id, connection)
        return request.reply(body=orjson.dumps({"lockOKMQSet": [_as_json(queue) for queue in granted]}))

    def unlock(self, request: Command, connection: Connection) -> Command:
        group, client_id, queues = _read(request)
        self._locks.unlock(group, queues, client_id)
        return request.reply()

    @hookimpl
    def connection_closed(self, connection: Connection) -> None:
        if self.config.free_on_disconnect and (freed := self._locks.free_connection(connection)):
            logger.info("queue locks freed, their client is gone peer=%s locks=%d", connection.peer_address, freed)

    @hookimpl
    def group_is_ordered(self, group: str) -> bool | None:
        return self._locks.is_held(group) or None


def _read(request: Command) -> tuple[str, str, list[MessageQueue]]:
    """Group, client and queues of a request's body.

    Raises:
        InvalidParameter: the body is not what it should be.
    """
    try:
        data = parse_fastjson(request.body)
        group, client_id = data["consumerGroup"], data["clientId"]
        if not isinstance(group, str) or not isinstance(client_id, str) or not group or not client_id:
            raise ValueError("consumerGroup and clientId must be texts")
        queues = [MessageQueue(str(q["topic"]), str(q["brokerName"]), int(q["queueId"])) for q in data["mqSet"]]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidParameter(f"the body of the lock request is malformed: {error!r}") from error
    return group, client_id, queues


def _as_json(queue: MessageQueue) -> dict[str, Any]:
    return {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}
