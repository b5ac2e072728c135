"""The kernel's public surface: all that a plugin, the client or an embedding program may import.

A plugin says ``from verniermq.kernel import hookimpl, Declaration, PendingMessage``; what is not listed here
may change without notice.
"""

from verniermq.kernel.broker import Broker
from verniermq.kernel.clients import ClientRegistry, ConsumerGroup, LiveSubscription, Member
from verniermq.kernel.clock import Clock, ManualClock, SystemClock
from verniermq.kernel.codes import Perm, RequestCode, ResponseCode
from verniermq.kernel.commitlog.encode import encode as encode_record
from verniermq.kernel.commitlog.mapped import MappedFile, file_name, file_starts, sync_data, sync_directory
from verniermq.kernel.commitlog.record import decode as decode_record
from verniermq.kernel.commitlog.record import decode_all as decode_records
from verniermq.kernel.commitlog.record import properties_of as record_properties
from verniermq.kernel.config import Configuration, Duration, Size, format_duration, parse_duration, setting
from verniermq.kernel.dispatch.consumequeue import ConsumeQueue
from verniermq.kernel.dispatch.offsets import ConsumerOffsets
from verniermq.kernel.errors import (
    BadField,
    BadName,
    Busy,
    ConfigError,
    ConnectionLost,
    CorruptRecord,
    GroupNotFound,
    InvalidParameter,
    MessageIllegal,
    MissingField,
    NoPermission,
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
from verniermq.kernel.fault import FaultStrategy
from verniermq.kernel.groups import GroupConfig, GroupTable
from verniermq.kernel.host import PluginHost
from verniermq.kernel.jsonfile import JsonFile, object_keyed_map, parse_fastjson
from verniermq.kernel.loop import backend_options
from verniermq.kernel.message import (
    AUTO_CREATE_TOPIC,
    DEAD_LETTER_PREFIX,
    MATCH_ALL,
    RETRY_PREFIX,
    Message,
    MessageFilter,
    MessageQueue,
    PendingMessage,
    Property,
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
from verniermq.kernel.persist import Document
from verniermq.kernel.plugin import API_VERSION, Declaration, NoConfig, Service, concerns, hookimpl
from verniermq.kernel.remoting import Command, Connection, Handler, RemotingServer, connect
from verniermq.kernel.store import Appended, DispatchEvent, Store, TagsCoder
from verniermq.kernel.topics import TopicConfig, TopicTable, check_group_name, check_topic_name
from verniermq.kernel.traffic import Consuming, Sending
from verniermq.kernel.versions import DataVersion

__all__ = [
    "API_VERSION",
    "AUTO_CREATE_TOPIC",
    "DEAD_LETTER_PREFIX",
    "MATCH_ALL",
    "RETRY_PREFIX",
    "Appended",
    "BadField",
    "BadName",
    "Broker",
    "Busy",
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
    "CorruptRecord",
    "DataVersion",
    "Declaration",
    "DispatchEvent",
    "Document",
    "Duration",
    "FaultStrategy",
    "GroupConfig",
    "GroupNotFound",
    "GroupTable",
    "Handler",
    "InvalidParameter",
    "JsonFile",
    "LiveSubscription",
    "ManualClock",
    "MappedFile",
    "Member",
    "Message",
    "MessageFilter",
    "MessageIllegal",
    "MessageQueue",
    "MissingField",
    "NoConfig",
    "NoPermission",
    "PeerUnreachable",
    "PendingMessage",
    "Perm",
    "PluginError",
    "PluginHost",
    "PluginMissing",
    "Property",
    "ProtocolError",
    "RemotingError",
    "RemotingServer",
    "RequestCode",
    "RequestRefused",
    "RequestTimeout",
    "ResponseCode",
    "Sending",
    "Service",
    "Size",
    "Store",
    "StoreError",
    "StoreNotWritable",
    "StoredMessage",
    "Subscription",
    "SubscriptionParseFailed",
    "SysFlag",
    "SystemClock",
    "TagsCoder",
    "TopicConfig",
    "TopicNotFound",
    "TopicTable",
    "UnexpectedAnswer",
    "VernierMQError",
    "backend_options",
    "check_group_name",
    "check_topic_name",
    "concerns",
    "connect",
    "decode_record",
    "decode_records",
    "encode_record",
    "file_name",
    "file_starts",
    "format_duration",
    "format_properties",
    "hookimpl",
    "java_hash",
    "nearest",
    "object_keyed_map",
    "offset_message_id",
    "pack_host",
    "parse_duration",
    "parse_fastjson",
    "parse_offset_message_id",
    "parse_properties",
    "record_properties",
    "setting",
    "sync_data",
    "sync_directory",
    "tags_code",
    "unpack_host",
]
