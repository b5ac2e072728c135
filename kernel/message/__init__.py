"""Messages, what names them, and their properties: the types that every part of VernierMQ shares."""

from verniermq.kernel.message.message import (
    LONGEST_TAG,
    MATCH_ALL,
    MAX_TOPIC_LENGTH,
    Message,
    MessageFilter,
    MessageQueue,
    StoredMessage,
    Subscription,
    SysFlag,
    java_hash,
    offset_message_id,
    pack_host,
    parse_offset_message_id,
    tags_code,
    unpack_host,
)
from verniermq.kernel.message.pending import NO_FIELDS, PendingMessage
from verniermq.kernel.message.properties import NAME_END, VALUE_END, format_properties, parse_properties

__all__ = [
    "LONGEST_TAG",
    "MATCH_ALL",
    "MAX_TOPIC_LENGTH",
    "NAME_END",
    "NO_FIELDS",
    "VALUE_END",
    "Message",
    "MessageFilter",
    "MessageQueue",
    "PendingMessage",
    "StoredMessage",
    "Subscription",
    "SysFlag",
    "format_properties",
    "java_hash",
    "offset_message_id",
    "pack_host",
    "parse_offset_message_id",
    "parse_properties",
    "tags_code",
    "unpack_host",
]
