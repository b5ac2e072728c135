"""The kernel's public surface: all that a plugin, the client or an embedding program may import.

A plugin says ``from verniermq.kernel import hookimpl, Declaration, PendingMessage``; what is not listed here
may change without notice.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from verniermq.kernel import hookspecs, requests
from verniermq.kernel.broker import Broker, Context
from verniermq.kernel.clock import SAME_MOMENT, Clock, SystemClock
from verniermq.kernel.codes import PRODUCT, PRODUCT_FIELD, Perm, RequestCode, ResponseCode
from verniermq.kernel.commitlog.encoder import encode as encode_record
from verniermq.kernel.commitlog.lock import StoreLock
from verniermq.kernel.commitlog.mapped import (
    LARGEST_FOLIO,
    file_name,
    file_starts,
    let_go_of_pages,
    stores_are_safe,
    sync_data,
    sync_directory,
    write_all,
)
from verniermq.kernel.commitlog.record import decode as decode_record
from verniermq.kernel.commitlog.record import decode_all as decode_records
from verniermq.kernel.compiled import compiled
from verniermq.kernel.config import Configuration, Duration, Size, format_duration, parse_duration, setting
from verniermq.kernel.config.filestamps import FileStamps, watch_files
from verniermq.kernel.deadlines import Deadlines
from verniermq.kernel.dispatch.consumequeue import ConsumeQueue
from verniermq.kernel.dispatch.run import Run, parts_of, sizes_of
from verniermq.kernel.errors import (
    BadField,
    BadName,
    Busy,
    ConfigError,
    ConnectionLost,
    CorruptRecord,
    GroupNotFound,
    InvalidParameter,
    LimitReached,
    MalformedAnswer,
    MessageIllegal,
    MissingField,
    NoPermission,
    NotACopy,
    PeerUnreachable,
    PluginError,
    PluginMissing,
    ProtocolError,
    RemotingError,
    RequestRefused,
    RequestTimeout,
    StoreError,
    StoreNotWritable,
    SubscriptionParseFailed,
    TopicNotFound,
    UnexpectedAnswer,
    VernierMQError,
    nearest,
)
from verniermq.kernel.hookspec import hookspec
from verniermq.kernel.host.builtin import Catalogue
from verniermq.kernel.host.host import PluginHost
from verniermq.kernel.host.offers import Check, Histogram, Metric, Page, PageAnswer, PageContent, Sample
from verniermq.kernel.host.plugin import API_VERSION, Attribute, Declaration, NoConfig, concerns, gathered, hookimpl
from verniermq.kernel.host.registry import Registry
from verniermq.kernel.jsonlimits import FROM_FILE, FROM_PEER, FROM_SERVER, parse_json
from verniermq.kernel.loop import ITEMS_PER_STEP, Steps, backend_options, in_steps
from verniermq.kernel.maybe import Withheld, then
from verniermq.kernel.message import (
    MATCH_ALL,
    Message,
    MessageFilter,
    MessageQueue,
    PendingMessage,
    StoredMessage,
    Subscription,
    SysFlag,
    format_properties,
    java_hash,
    offset_message_id,
    pack_host,
    parse_offset_message_id,
    parse_properties,
    tags_code,
    unpack_host,
)
from verniermq.kernel.names import (
    AUTO_CREATE_TOPIC,
    BROKERS_OWN_TOPICS,
    DEAD_LETTER_PREFIX,
    GIVEN_UP_TOPIC,
    HALF_TOPIC,
    OFFSET_MOVED_TOPIC,
    OPERATION_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    TRACE_TOPIC,
    Property,
    is_system_topic,
)
from verniermq.kernel.refusals import LITE_TOPICS
from verniermq.kernel.remoting import (
    Answer,
    Command,
    Connection,
    FrameDecoder,
    Guard,
    Handler,
    Listener,
    RemotingLimits,
    RemotingServer,
    Work,
    connect,
    parse_address,
    request_name,
)
from verniermq.kernel.role import Role
from verniermq.kernel.store import Appended, DispatchEvent, Store, TagsCoder
from verniermq.kernel.tables.clients import ClientRegistry, ConsumerGroup, LiveSubscription, Member
from verniermq.kernel.tables.document import Document
from verniermq.kernel.tables.groups import GroupConfig, GroupTable
from verniermq.kernel.tables.jsonfile import JsonFile, object_keyed_map, parse_answer, parse_fastjson
from verniermq.kernel.tables.offsets import ConsumerOffsets
from verniermq.kernel.tables.topics import MAX_QUEUES, TopicConfig, TopicTable, check_group_name, check_topic_name
from verniermq.kernel.tables.version import DataVersion

if TYPE_CHECKING:
    from verniermq.kernel.remoting.tls import SharedPort, Tls, load_tls
    from verniermq.kernel.traffic import ClientContext, Consuming, EndedTransaction, FaultStrategy, Sending

__all__ = [
    "API_VERSION",
    "AUTO_CREATE_TOPIC",
    "BROKERS_OWN_TOPICS",
    "DEAD_LETTER_PREFIX",
    "FROM_FILE",
    "FROM_PEER",
    "FROM_SERVER",
    "GIVEN_UP_TOPIC",
    "HALF_TOPIC",
    "ITEMS_PER_STEP",
    "LARGEST_FOLIO",
    "LITE_TOPICS",
    "MATCH_ALL",
    "MAX_QUEUES",
    "OFFSET_MOVED_TOPIC",
    "OPERATION_TOPIC",
    "PRODUCT",
    "PRODUCT_FIELD",
    "RETRY_PREFIX",
    "SAME_MOMENT",
    "SCHEDULE_TOPIC",
    "TIMER_TOPIC",
    "TRACE_TOPIC",
    "Answer",
    "Appended",
    "Attribute",
    "BadField",
    "BadName",
    "Broker",
    "Busy",
    "Catalogue",
    "Check",
    "ClientContext",
    "ClientRegistry",
    "Clock",
    "Command",
    "ConfigError",
    "Configuration",
    "Connection",
    "ConnectionLost",
    "ConsumeQueue",
    "ConsumerGroup",
    "ConsumerOffsets",
    "Consuming",
    "Context",
    "CorruptRecord",
    "DataVersion",
    "Deadlines",
    "Declaration",
    "DispatchEvent",
    "Document",
    "Duration",
    "EndedTransaction",
    "FaultStrategy",
    "FileStamps",
    "FrameDecoder",
    "GroupConfig",
    "GroupNotFound",
    "GroupTable",
    "Guard",
    "Handler",
    "Histogram",
    "InvalidParameter",
    "JsonFile",
    "LimitReached",
    "Listener",
    "LiveSubscription",
    "MalformedAnswer",
    "Member",
    "Message",
    "MessageFilter",
    "MessageIllegal",
    "MessageQueue",
    "Metric",
    "MissingField",
    "NoConfig",
    "NoPermission",
    "NotACopy",
    "Page",
    "PageAnswer",
    "PageContent",
    "PeerUnreachable",
    "PendingMessage",
    "Perm",
    "PluginError",
    "PluginHost",
    "PluginMissing",
    "Property",
    "ProtocolError",
    "Registry",
    "RemotingError",
    "RemotingLimits",
    "RemotingServer",
    "RequestCode",
    "RequestRefused",
    "RequestTimeout",
    "ResponseCode",
    "Role",
    "Run",
    "Sample",
    "Sending",
    "SharedPort",
    "Size",
    "Steps",
    "Store",
    "StoreError",
    "StoreLock",
    "StoreNotWritable",
    "StoredMessage",
    "Subscription",
    "SubscriptionParseFailed",
    "SysFlag",
    "SystemClock",
    "TagsCoder",
    "Tls",
    "TopicConfig",
    "TopicNotFound",
    "TopicTable",
    "UnexpectedAnswer",
    "VernierMQError",
    "Withheld",
    "Work",
    "backend_options",
    "check_group_name",
    "check_topic_name",
    "compiled",
    "concerns",
    "connect",
    "decode_record",
    "decode_records",
    "encode_record",
    "file_name",
    "file_starts",
    "format_duration",
    "format_properties",
    "gathered",
    "hookimpl",
    "hookspec",
    "hookspecs",
    "in_steps",
    "is_system_topic",
    "java_hash",
    "let_go_of_pages",
    "load_tls",
    "nearest",
    "object_keyed_map",
    "offset_message_id",
    "pack_host",
    "parse_address",
    "parse_answer",
    "parse_duration",
    "parse_fastjson",
    "parse_json",
    "parse_offset_message_id",
    "parse_properties",
    "parts_of",
    "request_name",
    "requests",
    "setting",
    "sizes_of",
    "stores_are_safe",
    "sync_data",
    "sync_directory",
    "tags_code",
    "then",
    "unpack_host",
    "watch_files",
    "write_all",
]


def __getattr__(name: str) -> Any:
    """What a broker does not need by default is imported where it is asked for: types of clients' hooks, and TLS."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    where = "remoting.tls" if name in ("SharedPort", "Tls", "load_tls") else "traffic"
    return getattr(import_module(f"{__name__}.{where}"), name)
