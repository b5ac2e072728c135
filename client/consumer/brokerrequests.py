"""What brokers ask of a consumer, on the connection that it opened: to rebalance, to go elsewhere, how it is doing."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import orjson

from verniermq.client.api import queue_from_json, queue_json
from verniermq.client.message import decode_one
from verniermq.kernel import (
    FROM_SERVER,
    Command,
    Connection,
    Handler,
    InvalidParameter,
    MessageQueue,
    RequestCode,
    ResponseCode,
    object_keyed_map,
    parse_fastjson,
)
from verniermq.protocol.consumer import ConsumeByHand, GetConsumerOffsets

if TYPE_CHECKING:
    from verniermq.client.consumer.push import PushConsumer

logger = logging.getLogger(__name__)


class BrokerRequests:
    def __init__(self, consumer: PushConsumer) -> None:
        self._consumer = consumer

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self.members_changed,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self.reset_offsets,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self.offsets,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self.running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self.consume_directly,
        }

    def members_changed(self, request: Command, connection: Connection) -> Command:
        if hasattr(self._consumer, "_rebalancer"):
            self._consumer._rebalancer.wake()
        return request.reply()

    def reset_offsets(self, request: Command, connection: Connection) -> Command:
        """An operator sends the group elsewhere: each queue that is ours goes on there."""
        try:
            table = parse_fastjson(request.body, FROM_SERVER).get("offsetTable") or {} if request.body else {}
        except (ValueError, AttributeError) as error:
            raise InvalidParameter(f"the body is no table of offsets: {error}") from error
        assignment = self._consumer._assignment
        for queue, offset in _offset_table(table):
            held = assignment.held.get(queue)
            if held is not None:
                self._consumer._background.spawn(assignment.restart, held, offset)
        return request.reply()

    def offsets(self, request: Command, connection: Connection) -> Command:
        topic = GetConsumerOffsets.of(request).topic
        places = [
            (queue_json(queue), self._consumer._offsets.known(queue) or 0)
            for queue in self._consumer._assignment.held
            if not topic or queue.topic == topic
        ]
        return request.reply(body=b'{"messageQueueTable":%s}' % object_keyed_map(places))

    def running_info(self, request: Command, connection: Connection) -> Command:
        """What ``mqadmin consumerStatus`` shows."""
        consumer = self._consumer
        queues = [(queue_json(queue), self._queue_info(queue)) for queue in consumer._assignment.held]
        invoker = consumer._service.invoker
        rest = {
            "properties": {
                "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
                "PROP_CONSUMEORDERLY": "true" if consumer.orderly else "false",
                "PROP_NAMESERVER_ADDR": ";".join(consumer.options.namesrv),
                "PROP_CLIENT_VERSION": "V5_3_3",
                "PROP_PID": str(os.getpid()),
                "PROP_DAMAGED_MSGS": str(consumer._puller.damaged),
            },
            "statusTable": {
                topic: {
                    "consumeFailedMsgs": invoker.failed, "consumeFailedTPS": 0.0, "consumeOKTPS": 0.0,
                    "consumeRT": 0.0, "pullRT": 0.0, "pullTPS": 0.0,
                }
                for topic in consumer._subscriptions
            },
            "subscriptionSet": [wanted.as_json() for wanted in consumer._subscriptions.values()],
            "userConsumerInfo": {},
        }  # fmt: skip
        body = b'{"mqPopTable":{},"mqTable":%s,%s' % (object_keyed_map(queues), orjson.dumps(rest)[1:])
        return request.reply(body=body)

    def _queue_info(self, queue: MessageQueue) -> dict[str, Any]:
        held = self._consumer._assignment.held[queue]
        since = (time.time() - time.monotonic()) * 1000
        offsets = list(held.pending)
        return {
            "cachedMsgCount": len(offsets),
            "cachedMsgMaxOffset": max(offsets, default=0),
            "cachedMsgMinOffset": min(offsets, default=0),
            "cachedMsgSizeInMiB": held.size // (1024 * 1024),
            "commitOffset": self._consumer._offsets.known(queue) or 0,
            "droped": held.dropped,
            "lastConsumeTimestamp": int(since + held.last_consume * 1000) if held.last_consume else 0,
            "lastLockTimestamp": int(since + held.locked_at * 1000) if held.locked_at else 0,
            "lastPullTimestamp": int(since + held.last_pull * 1000),
            "locked": held.locked_at > 0,
            "transactionMsgCount": 0,
            "transactionMsgMaxOffset": 0,
            "transactionMsgMinOffset": 0,
            "tryUnlockTimes": 0,
        }

    async def consume_directly(self, request: Command, connection: Connection) -> Command:
        """An operator hands one message to this member's handler, beside everything else."""
        consumer = self._consumer
        asked = ConsumeByHand.of(request)
        if asked.group != consumer._wire_group:
            return request.reply(ResponseCode.SYSTEM_ERROR, remark="this client is no member of that group")
        message = decode_one(request.body, asked.broker_name, consumer.options.max_body_size)
        started = time.monotonic()
        verdict = await consumer._service.invoker.call(message.queue, [message])
        result = {
            "autoCommit": True,
            "consumeResult": "CR_SUCCESS" if verdict.consumed else "CR_LATER",
            "order": consumer.orderly,
            "remark": verdict.reason,
            "spentTimeMills": int((time.monotonic() - started) * 1000),
        }
        return request.reply(body=orjson.dumps(result))


def _offset_table(table: Any) -> list[tuple[MessageQueue, int]]:
    """Java's form is a map with objects as keys; for clients in C++ it is a list."""
    if isinstance(table, list):
        return [(queue_from_json(entry), int(entry["offset"])) for entry in table]
    return [(queue_from_json(dict(key)), int(offset)) for key, offset in table.items()]
