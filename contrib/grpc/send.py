"""SendMessage, EndTransaction and RecallMessage: calls of producers as the requests that brokers know.

Producers of this protocol are in no group. Where RocketMQ wants one, it is the name of the topic: transactions are
asked about at whoever sends to the same topic.
"""

from __future__ import annotations

import base64
import itertools
import re
from typing import Any, Final

import attrs

from verniermq.contrib.grpc.brokers import BrokerQueues, Brokers
from verniermq.contrib.grpc.call import Call
from verniermq.contrib.grpc.clients import ClientTable
from verniermq.contrib.grpc.enums import Code, Encoding, MessageType, TransactionResolution, TransactionSource
from verniermq.contrib.grpc.handles import TransactionId
from verniermq.contrib.grpc.properties import BORN_HOST, BORN_TIMESTAMP, PRIORITY, TRACE_CONTEXT, is_reserved
from verniermq.contrib.grpc.routes import accepted_types
from verniermq.contrib.grpc.schema import proto
from verniermq.contrib.grpc.status import STORED, CallFailed, checked, code_of, common, status
from verniermq.kernel import (
    AUTO_CREATE_TOPIC,
    Perm,
    Property,
    RequestCode,
    SysFlag,
    format_properties,
    java_hash,
    parse_offset_message_id,
)
from verniermq.kernel.requests import SendMessage
from verniermq.protocol.recall import RecallMessage
from verniermq.protocol.transaction import EndTransaction

MOST_PROPERTIES: Final = 128
MOST_PROPERTY_BYTES: Final = 16 * 1024
LONGEST_MESSAGE_GROUP: Final = 64
LONGEST_DELAY_MS: Final = 24 * 3600 * 1000
LONGEST_RECOVERY_SECONDS: Final = 3600
MOST_MESSAGES: Final = 1024
"""Of one call; clients send one each."""

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")


@attrs.define(eq=False)
class SendCalls:
    brokers: Brokers
    clients: ClientTable
    _turn: itertools.count[int] = attrs.field(factory=itertools.count, init=False)

    # --- SendMessage -----------------------------------------------------------------------

    async def send(self, request: Any, call: Call) -> Any:
        if not request.messages:
            raise CallFailed(Code.MESSAGE_CORRUPTED, "a call without a message")
        if len(request.messages) > MOST_MESSAGES:
            raise CallFailed(Code.BAD_REQUEST, f"{len(request.messages)} messages in a call; at most {MOST_MESSAGES}")
        if len({(one.topic.resource_namespace, one.topic.name) for one in request.messages}) > 1:
            raise CallFailed(Code.MESSAGE_CORRUPTED, "messages of one call must have the same topic")
        topic = call.topic(request.messages[0].topic)
        route = await self.brokers.route(topic)
        for message in request.messages:
            self._check(message, route[0])
        answer = proto.SendMessageResponse()
        for message in request.messages:
            answer.entries.append(await self._send_one(message, topic, route, call))
        answer.status.CopyFrom(common([Code(entry.status.code) for entry in answer.entries]))
        if len(answer.entries) == 1:
            answer.status.CopyFrom(answer.entries[0].status)
        return answer

    async def _send_one(self, message: Any, topic: str, route: list[BrokerQueues], call: Call) -> Any:
        found, queue_id = self._queue(message, route)
        system = message.system_properties
        is_transaction = system.message_type == MessageType.TRANSACTION
        client = self.clients.of(call)
        if is_transaction:
            await client.sends_to(topic, call)
        flag = SysFlag.COMPRESSED | SysFlag.COMPRESSION_ZLIB if system.body_encoding == Encoding.GZIP else 0
        command = SendMessage(
            group=topic,
            topic=topic,
            queue_id=queue_id,
            born_timestamp=system.born_timestamp.ToMilliseconds() or self.brokers.clock.now_ms(),
            default_topic=AUTO_CREATE_TOPIC,
            default_queues=found.topic.write_queues,
            sys_flag=flag | (SysFlag.TRANSACTION_PREPARED if is_transaction else 0),
            properties=format_properties(stored_properties(message, topic, call.peer[0])),
            broker_name=found.broker_name,
        ).command()
        command.body = message.body
        answer = await client.request(found.broker_name, command, call)
        if answer.code not in STORED:
            return proto.SendResultEntry(status=status(code_of(answer), answer.remark))
        entry = proto.SendResultEntry(status=status(code_of(answer), answer.remark or "OK"))
        entry.message_id = entry.transaction_id = system.message_id
        entry.offset = answer.integer("queueOffset", 0)
        entry.recall_handle = answer.text("recallHandle", "")
        if is_transaction:
            _, log_offset = parse_offset_message_id(answer.text("msgId"))
            entry.transaction_id = str(TransactionId(found.broker_name, log_offset, entry.offset))
        return entry

    def _queue(self, message: Any, route: list[BrokerQueues]) -> tuple[BrokerQueues, int]:
        """The same queue for all messages of a group, else one after the other.

        Raises:
            CallFailed: none may be written.
        """
        open_ones = [found for found in route if found.topic.perm & Perm.WRITE and found.topic.write_queues]
        if not open_ones:
            raise CallFailed(Code.FORBIDDEN, f"topic {route[0].topic.name!r} has no queue that may be written")
        total = sum(found.topic.write_queues for found in open_ones)
        group = message.system_properties.message_group
        number = (java_hash(group) if group else next(self._turn)) % total
        for found in open_ones:
            if number < found.topic.write_queues:
                return found, number
            number -= found.topic.write_queues
        raise AssertionError("a number below the sum is within one of its parts")

    def _check(self, message: Any, found: BrokerQueues) -> None:
        """
        Raises:
            CallFailed: the message cannot be sent, or not to this topic.
        """
        system = message.system_properties
        if not message.body:
            raise CallFailed(Code.MESSAGE_BODY_EMPTY, "the message has no body")
        if len(message.body) > self.brokers.max_message_size:
            size, limit = len(message.body), self.brokers.max_message_size
            raise CallFailed(Code.MESSAGE_BODY_TOO_LARGE, f"a body of {size} bytes; at most {limit} are taken")
        if not system.message_id.strip() or _CONTROL.search(system.message_id):
            raise CallFailed(Code.ILLEGAL_MESSAGE_ID, "the message has no message_id, or one with a control character")
        _check_properties(message)
        _check_texts(system)
        kinds = accepted_types(found.topic)
        if system.message_type == MessageType.LITE or system.HasField("lite_topic"):
            raise CallFailed(Code.NOT_IMPLEMENTED, "lite topics are not served here")
        if system.message_type not in kinds:
            kind = _name_of(system.message_type)
            takes = ", ".join(one.name for one in kinds)
            raise CallFailed(
                Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
                f"a message of type {kind} cannot go to topic {found.topic.name!r}, which takes {takes}",
            )
        if system.HasField("delivery_timestamp"):
            ahead = system.delivery_timestamp.ToMilliseconds() - self.brokers.clock.now_ms()
            if ahead > LONGEST_DELAY_MS:
                raise CallFailed(Code.ILLEGAL_DELIVERY_TIME, f"delivery in {ahead} ms; at most {LONGEST_DELAY_MS} ms")
        if system.orphaned_transaction_recovery_duration.ToSeconds() > LONGEST_RECOVERY_SECONDS:
            what = f"orphaned_transaction_recovery_duration may be {LONGEST_RECOVERY_SECONDS} s at most"
            raise CallFailed(Code.BAD_REQUEST, what)

    # --- EndTransaction --------------------------------------------------------------------

    async def end_transaction(self, request: Any, call: Call) -> Any:
        topic = call.topic(request.topic)
        if not request.transaction_id.strip():
            raise CallFailed(Code.INVALID_TRANSACTION_ID, "the call names no transaction")
        half = TransactionId.parse(request.transaction_id)
        outcomes = {
            TransactionResolution.COMMIT: SysFlag.TRANSACTION_COMMIT,
            TransactionResolution.ROLLBACK: SysFlag.TRANSACTION_ROLLBACK,
        }
        outcome = outcomes.get(request.resolution)
        if outcome is not None:  # otherwise it is not known yet, and the next check asks again
            end = EndTransaction(
                topic=topic,
                group=topic,
                half_offset=half.half_offset,
                log_offset=half.log_offset,
                outcome=outcome,
                from_check=request.source == TransactionSource.SOURCE_SERVER_CHECK,
                message_id=request.message_id,
                transaction_id=request.message_id,
                broker_name=half.broker_name,
            )
            client = self.clients.of(call)
            checked(await client.request(half.broker_name, end.command(), call), RequestCode.END_TRANSACTION)
        return proto.EndTransactionResponse(status=status(Code.OK))

    # --- RecallMessage ---------------------------------------------------------------------

    async def recall(self, request: Any, call: Call) -> Any:
        topic = call.topic(request.topic)
        found = (await self.brokers.whole_route(topic))[0]
        if MessageType.DELAY not in accepted_types(found.topic):
            what = f"topic {topic!r} takes no delayed messages, so none can be taken back"
            raise CallFailed(Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, what)
        recall = RecallMessage(group=topic, topic=topic, handle=request.recall_handle)
        broker_name = broker_of(request.recall_handle)
        answer = await self.clients.of(call).request(broker_name, recall.command(), call)
        checked(answer, RequestCode.RECALL_MESSAGE)
        return proto.RecallMessageResponse(status=status(Code.OK), message_id=answer.text("msgId", ""))


def broker_of(recall_handle: str) -> str:
    """The broker that has the message: ``v1 orders broker-a 1700000029001 C0A8…`` in base64.

    Raises:
        CallFailed: it is no such handle.
    """
    try:
        version, _, broker_name, _, _ = base64.b64decode(recall_handle, b"-_", validate=True).decode().split(" ")
        if version == "v1":
            return broker_name
    except ValueError:
        pass
    raise CallFailed(Code.BAD_REQUEST, f"{recall_handle[:100]!r} is no recall handle")


# --- messages ------------------------------------------------------------------------------


def stored_properties(message: Any, topic: str, peer_host: str) -> dict[str, str]:
    """The properties that a message is stored with."""
    system = message.system_properties
    properties = dict(message.user_properties)
    if system.HasField("tag"):
        properties[Property.TAGS] = system.tag
    if system.keys:
        properties[Property.KEYS] = " ".join(system.keys)
    properties[Property.UNIQUE_KEY] = system.message_id
    properties[Property.WAIT] = "true"
    if system.message_type == MessageType.TRANSACTION:
        properties[Property.TRANSACTION_PREPARED] = "true"
        properties[Property.PRODUCER_GROUP] = topic
        seconds = system.orphaned_transaction_recovery_duration.ToSeconds()
        if seconds > 0:
            properties[Property.CHECK_IMMUNITY_TIME] = str(seconds)
    if system.HasField("delivery_timestamp"):
        properties[Property.TIMER_DELIVER_MS] = str(system.delivery_timestamp.ToMilliseconds())
    if system.HasField("priority"):
        properties[PRIORITY] = str(system.priority)
    if system.HasField("message_group"):
        properties[Property.SHARDING_KEY] = system.message_group
    if system.HasField("trace_context"):
        properties[TRACE_CONTEXT] = system.trace_context
    properties[BORN_HOST] = system.born_host or peer_host
    properties[BORN_TIMESTAMP] = str(system.born_timestamp.ToMilliseconds())
    return properties


def _check_properties(message: Any) -> None:
    properties = message.user_properties
    if len(properties) > MOST_PROPERTIES:
        what = f"{len(properties)} properties; at most {MOST_PROPERTIES} are taken"
        raise CallFailed(Code.MESSAGE_PROPERTIES_TOO_LARGE, what)
    texts = [*properties.keys(), *properties.values(), message.system_properties.tag, *message.system_properties.keys]
    size = sum(len(text.encode()) for text in texts)
    if size > MOST_PROPERTY_BYTES:
        what = f"properties, tag and keys of {size} bytes; at most {MOST_PROPERTY_BYTES} are taken"
        raise CallFailed(Code.MESSAGE_PROPERTIES_TOO_LARGE, what)
    for name, value in properties.items():
        if not name.strip() or is_reserved(name) or _CONTROL.search(name) or _CONTROL.search(value):
            what = f"property {name[:100]!r}: the name is RocketMQ's own, or it or the value has a control character"
            raise CallFailed(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, what)


def _check_texts(system: Any) -> None:
    if system.HasField("tag") and (not system.tag.strip() or "|" in system.tag or _CONTROL.search(system.tag)):
        raise CallFailed(
            Code.ILLEGAL_MESSAGE_TAG, f"tag {system.tag[:100]!r} is blank, or has '|' or a control character"
        )
    for key in system.keys:
        if not key.strip() or _CONTROL.search(key):
            raise CallFailed(Code.ILLEGAL_MESSAGE_KEY, f"key {key[:100]!r} is blank, or has a control character")
    if system.HasField("message_group"):
        group = system.message_group
        if not group.strip() or len(group.encode()) >= LONGEST_MESSAGE_GROUP or _CONTROL.search(group):
            limit = LONGEST_MESSAGE_GROUP
            what = f"message group {group[:100]!r} is blank, has {limit} bytes or more, or a control character"
            raise CallFailed(Code.ILLEGAL_MESSAGE_GROUP, what)
    if _CONTROL.search(system.trace_context) or _CONTROL.search(system.born_host):
        raise CallFailed(Code.BAD_REQUEST, "trace_context or born_host has a control character")
    if system.message_type == MessageType.FIFO and not system.message_group:
        raise CallFailed(Code.ILLEGAL_MESSAGE_GROUP, "a FIFO message needs a message group")


def _name_of(kind: int) -> str:
    return MessageType(kind).name if kind in MessageType._value2member_map_ else str(kind)
