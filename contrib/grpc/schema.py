"""The messages of RocketMQ 5's gRPC protocol, described by tables and made into classes when this is imported.

A field of a table is ``number name type``. Before the type stands what else there is to say: ``*`` for repeated,
``?`` for optional with a presence of its own, ``+choice `` for a member of the oneof ``choice``, ``{}`` for a map of
texts. A type that is none of protobuf's own is a message or an enum of this protocol, ``Duration`` and ``Timestamp``
are Google's.

The classes live in a pool of descriptors of their own. The official client registers the same names in protobuf's
default pool, which takes a name once only: a program that imports it may have a broker inside all the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import IntEnum
from types import SimpleNamespace
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, duration_pb2, message_factory, timestamp_pb2

from verniermq.contrib.grpc.enums import ENUMS, OffsetPolicy

PACKAGE: Final = "apache.rocketmq.v2"
SERVICE: Final = f"{PACKAGE}.MessagingService"
FILE: Final = "verniermq/grpc/messaging"

SHARED: Final = {
    "FilterExpression": "1 type FilterType; 2 expression string",
    "RetryPolicy": (
        "1 max_attempts int32; 2 exponential_backoff +strategy ExponentialBackoff; "
        "3 customized_backoff +strategy CustomizedBackoff"
    ),
    "ExponentialBackoff": "1 initial Duration; 2 max Duration; 3 multiplier float",
    "CustomizedBackoff": "1 next *Duration",
    "Resource": "1 resource_namespace string; 2 name string",
    "SubscriptionEntry": "1 topic Resource; 2 expression FilterExpression",
    "Address": "1 host string; 2 port int32",
    "Endpoints": "1 scheme AddressScheme; 2 addresses *Address",
    "Broker": "1 name string; 2 id int32; 3 endpoints Endpoints",
    "MessageQueue": (
        "1 topic Resource; 2 id int32; 3 permission Permission; 4 broker Broker; 5 accept_message_types *MessageType"
    ),
    "Digest": "1 type DigestType; 2 checksum string",
    "SystemProperties": (
        "1 tag ?string; 2 keys *string; 3 message_id string; 4 body_digest Digest; 5 body_encoding Encoding; "
        "6 message_type MessageType; 7 born_timestamp Timestamp; 8 born_host string; 9 store_timestamp ?Timestamp; "
        "10 store_host string; 11 delivery_timestamp ?Timestamp; 12 receipt_handle ?string; 13 queue_id int32; "
        "14 queue_offset ?int64; 15 invisible_duration ?Duration; 16 delivery_attempt ?int32; "
        "17 message_group ?string; 18 trace_context ?string; 19 orphaned_transaction_recovery_duration ?Duration; "
        "20 dead_letter_queue ?DeadLetterQueue; 21 lite_topic ?string; 22 priority ?int32"
    ),
    "DeadLetterQueue": "1 topic string; 2 message_id string",
    "Message": "1 topic Resource; 2 user_properties {}; 3 system_properties SystemProperties; 4 body bytes",
    "Assignment": "1 message_queue MessageQueue",
    "Status": "1 code Code; 2 message string",
    "UA": "1 language Language; 2 version string; 3 platform string; 4 hostname string",
    "Settings": (
        "1 client_type ?ClientType; 2 access_point ?Endpoints; 3 backoff_policy ?RetryPolicy; "
        "4 request_timeout ?Duration; 5 publishing +pub_sub Publishing; 6 subscription +pub_sub Subscription; "
        "7 user_agent UA; 8 metric Metric; 9 client_properties {}"
    ),
    "Publishing": "1 topics *Resource; 2 max_body_size int32; 3 validate_message_type bool",
    "Subscription": (
        "1 group ?Resource; 2 subscriptions *SubscriptionEntry; 3 fifo ?bool; 4 receive_batch_size ?int32; "
        "5 long_polling_timeout ?Duration; 6 lite_subscription_quota ?int32; 7 max_lite_topic_size ?int32"
    ),
    "Metric": "1 on bool; 2 endpoints ?Endpoints",
    "OffsetOption": (
        "1 policy +offset_type OffsetOption.Policy; 2 offset +offset_type int64; 3 tail_n +offset_type int64; "
        "4 timestamp +offset_type int64"
    ),
}
"""What several calls have in common."""

CALLS: Final = {
    "QueryRouteRequest": "1 topic Resource; 2 endpoints Endpoints",
    "QueryRouteResponse": "1 status Status; 2 message_queues *MessageQueue",
    "SendMessageRequest": "1 messages *Message",
    "SendResultEntry": "1 status Status; 2 message_id string; 3 transaction_id string; 4 offset int64; "
    "5 recall_handle string",
    "SendMessageResponse": "1 status Status; 2 entries *SendResultEntry",
    "QueryAssignmentRequest": "1 topic Resource; 2 group Resource; 3 endpoints Endpoints",
    "QueryAssignmentResponse": "1 status Status; 2 assignments *Assignment",
    "ReceiveMessageRequest": (
        "1 group Resource; 2 message_queue MessageQueue; 3 filter_expression FilterExpression; 4 batch_size int32; "
        "5 invisible_duration ?Duration; 6 auto_renew bool; 7 long_polling_timeout ?Duration; 8 attempt_id ?string"
    ),
    "ReceiveMessageResponse": "1 status +content Status; 2 message +content Message; "
    "3 delivery_timestamp +content Timestamp",
    "AckMessageEntry": "1 message_id string; 2 receipt_handle string; 3 lite_topic ?string",
    "AckMessageRequest": "1 group Resource; 2 topic Resource; 3 entries *AckMessageEntry",
    "AckMessageResultEntry": "1 message_id string; 2 receipt_handle string; 3 status Status",
    "AckMessageResponse": "1 status Status; 2 entries *AckMessageResultEntry",
    "ForwardMessageToDeadLetterQueueRequest": (
        "1 group Resource; 2 topic Resource; 3 receipt_handle string; 4 message_id string; 5 delivery_attempt int32; "
        "6 max_delivery_attempts int32; 7 lite_topic ?string"
    ),
    "ForwardMessageToDeadLetterQueueResponse": "1 status Status",
    "HeartbeatRequest": "1 group ?Resource; 2 client_type ClientType",
    "HeartbeatResponse": "1 status Status",
    "EndTransactionRequest": (
        "1 topic Resource; 2 message_id string; 3 transaction_id string; 4 resolution TransactionResolution; "
        "5 source TransactionSource; 6 trace_context string"
    ),
    "EndTransactionResponse": "1 status Status",
    "PrintThreadStackTraceCommand": "1 nonce string",
    "ReconnectEndpointsCommand": "1 nonce string",
    "ThreadStackTrace": "1 nonce string; 2 thread_stack_trace ?string",
    "VerifyMessageCommand": "1 nonce string; 2 message Message",
    "VerifyMessageResult": "1 nonce string",
    "RecoverOrphanedTransactionCommand": "1 message Message; 2 transaction_id string",
    "NotifyUnsubscribeLiteCommand": "1 lite_topic string",
    "TelemetryCommand": (
        "1 status ?Status; 2 settings +command Settings; 3 thread_stack_trace +command ThreadStackTrace; "
        "4 verify_message_result +command VerifyMessageResult; "
        "5 recover_orphaned_transaction_command +command RecoverOrphanedTransactionCommand; "
        "6 print_thread_stack_trace_command +command PrintThreadStackTraceCommand; "
        "7 verify_message_command +command VerifyMessageCommand; "
        "8 reconnect_endpoints_command +command ReconnectEndpointsCommand; "
        "9 notify_unsubscribe_lite_command +command NotifyUnsubscribeLiteCommand"
    ),
    "NotifyClientTerminationRequest": "1 group ?Resource",
    "NotifyClientTerminationResponse": "1 status Status",
    "ChangeInvisibleDurationRequest": (
        "1 group Resource; 2 topic Resource; 3 receipt_handle string; 4 invisible_duration Duration; "
        "5 message_id string; 6 lite_topic ?string; 7 suspend ?bool"
    ),
    "ChangeInvisibleDurationResponse": "1 status Status; 2 receipt_handle string",
    "RecallMessageRequest": "1 topic Resource; 2 recall_handle string",
    "RecallMessageResponse": "1 status Status; 2 message_id string",
    "SyncLiteSubscriptionRequest": (
        "1 action LiteSubscriptionAction; 2 topic Resource; 3 group Resource; 4 lite_topic_set *string; "
        "5 version ?int64; 6 offset_option ?OffsetOption"
    ),
    "SyncLiteSubscriptionResponse": "1 status Status",
}
"""What the calls that clients make take and answer. Those that no client makes are not served: pulls and offsets."""

RPCS: Final = {
    "QueryRoute": "QueryRouteRequest QueryRouteResponse",
    "Heartbeat": "HeartbeatRequest HeartbeatResponse",
    "SendMessage": "SendMessageRequest SendMessageResponse",
    "QueryAssignment": "QueryAssignmentRequest QueryAssignmentResponse",
    "ReceiveMessage": "ReceiveMessageRequest *ReceiveMessageResponse",
    "AckMessage": "AckMessageRequest AckMessageResponse",
    "ForwardMessageToDeadLetterQueue": (
        "ForwardMessageToDeadLetterQueueRequest ForwardMessageToDeadLetterQueueResponse"
    ),
    "EndTransaction": "EndTransactionRequest EndTransactionResponse",
    "Telemetry": "*TelemetryCommand *TelemetryCommand",
    "NotifyClientTermination": "NotifyClientTerminationRequest NotifyClientTerminationResponse",
    "ChangeInvisibleDuration": "ChangeInvisibleDurationRequest ChangeInvisibleDurationResponse",
    "RecallMessage": "RecallMessageRequest RecallMessageResponse",
    "SyncLiteSubscription": "SyncLiteSubscriptionRequest SyncLiteSubscriptionResponse",
}
"""The calls: what each takes and what it answers, with ``*`` before a stream."""

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS: Final = {
    "string": _Field.TYPE_STRING,
    "bytes": _Field.TYPE_BYTES,
    "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
    "bool": _Field.TYPE_BOOL,
    "float": _Field.TYPE_FLOAT,
}
_FIELD: Final = re.compile(r"(\d+) (\w+) (?:\+(\w+) )?([*?]?)([\w.]+|\{\})")
_ENUM_NAMES: Final = {*(kind.__name__ for kind in ENUMS), "OffsetOption.Policy"}


def _add_enum(kind: type[IntEnum], target: Any, name: str) -> None:
    target.name = name
    for member in kind:
        target.value.add(name=member.name, number=member.value)


def _add_message(name: str, table: str, target: Any) -> None:
    target.name = name
    optional: list[Any] = []
    choices: dict[str, int] = {}
    for part in table.split("; "):
        found = _FIELD.fullmatch(part)
        assert found is not None, f"{name}: {part}"
        number, field_name, choice, mark, kind = found.groups()
        field = target.field.add(name=field_name, number=int(number), label=_Field.LABEL_OPTIONAL)
        if kind == "{}":
            _add_map(name, field, target)
        elif kind in _SCALARS:
            field.type = _SCALARS[kind]
        elif kind in ("Duration", "Timestamp"):
            field.type, field.type_name = _Field.TYPE_MESSAGE, f".google.protobuf.{kind}"
        else:
            field.type = _Field.TYPE_ENUM if kind in _ENUM_NAMES else _Field.TYPE_MESSAGE
            field.type_name = f".{PACKAGE}.{kind}"
        if mark == "*":
            field.label = _Field.LABEL_REPEATED
        elif mark == "?":
            optional.append(field)
        elif choice:
            if choice not in choices:
                choices[choice] = len(target.oneof_decl)
                target.oneof_decl.add(name=choice)
            field.oneof_index = choices[choice]
    for field in optional:  # protobuf wants the oneofs that stand for "optional" behind the others
        field.proto3_optional = True
        field.oneof_index = len(target.oneof_decl)
        target.oneof_decl.add(name=f"_{field.name}")


def _add_map(message: str, field: Any, target: Any) -> None:
    entry = target.nested_type.add(name="".join(map(str.capitalize, field.name.split("_"))) + "Entry")
    entry.options.map_entry = True
    for number, name in enumerate(("key", "value"), start=1):
        entry.field.add(name=name, number=number, label=_Field.LABEL_OPTIONAL, type=_Field.TYPE_STRING)
    field.label, field.type = _Field.LABEL_REPEATED, _Field.TYPE_MESSAGE
    field.type_name = f".{PACKAGE}.{message}.{entry.name}"


def _build() -> tuple[Any, Any]:
    file = descriptor_pb2.FileDescriptorProto(name=FILE, package=PACKAGE, syntax="proto3")
    pool = descriptor_pool.DescriptorPool()
    for known in (duration_pb2, timestamp_pb2):
        description = descriptor_pb2.FileDescriptorProto()
        known.DESCRIPTOR.CopyToProto(description)
        pool.Add(description)
        file.dependency.append(description.name)
    for kind in ENUMS:
        _add_enum(kind, file.enum_type.add(), kind.__name__)
    for name, table in (SHARED | CALLS).items():
        _add_message(name, table, file.message_type.add())
        if name == "OffsetOption":
            _add_enum(OffsetPolicy, file.message_type[-1].enum_type.add(), "Policy")
    pool.Add(file)
    names: Iterable[str] = [*SHARED, *CALLS]
    classes = {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in names}
    for name in ("Duration", "Timestamp"):
        classes[name] = message_factory.GetMessageClass(pool.FindMessageTypeByName(f"google.protobuf.{name}"))
    return SimpleNamespace(**classes), file


proto: Any
"""The classes of the messages by their names: ``proto.SendMessageRequest``."""
proto, DESCRIPTION = _build()
