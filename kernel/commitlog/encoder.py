"""A message as record bytes again: for a peer that is to see another topic, queue or property than the log has.

What goes out unchanged is cut out of the log as it is; this is for the few that are not (a message popped
from a retry topic, a half message shown to its producer).
"""

from __future__ import annotations

from verniermq.kernel.commitlog.record import pack_record, topic_field
from verniermq.kernel.message import StoredMessage, format_properties


def encode(message: StoredMessage) -> bytes:
    """The record of a message; its size is worked out anew, everything else is as the message says.

    Raises:
        struct.error: a number or the properties do not fit into their field.
    """
    magic, topic = topic_field(message.topic)
    return pack_record(
        magic,
        topic,
        message.body,
        format_properties(message.properties).encode(),
        queue_id=message.queue_id,
        queue_offset=message.queue_offset,
        commit_log_offset=message.commit_log_offset,
        store_timestamp=message.store_timestamp,
        store_host=message.store_host,
        flag=message.flag,
        sys_flag=message.sys_flag,
        born_timestamp=message.born_timestamp,
        born_host=message.born_host,
        reconsume_times=message.reconsume_times,
        prepared_transaction_offset=message.prepared_transaction_offset,
    )
