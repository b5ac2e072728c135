"""Several messages in one request, and the splitter that makes legal batches of any list.

A batch is one topic, one ``wait_store_ok``, no delays, no transactions; its body is entries back to back::

    size i32 | 0 i32 | 0 i32 | flag i32 | body length i32 | body | properties length i16 | properties
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from verniermq.client.encoder import EncodedMessage, MessageEncoder, properties_text
from verniermq.client.errors import BadBatch, BadMessage
from verniermq.client.identity import unique_ids
from verniermq.kernel import RETRY_PREFIX, Message, Property, RequestCode

_HEAD: Final = struct.Struct(">iiiii")
_SHORT: Final = struct.Struct(">h")
ENTRY_OVERHEAD: Final = 22

_ALONE: Final = (
    Property.DELAY, Property.TIMER_DELIVER_MS, Property.TIMER_DELAY_MS, Property.TIMER_DELAY_SEC,
)  # fmt: skip

DEFAULT_BATCH_BYTES: Final = 1024 * 1024
"""What one batch of the splitter has at most: well below any broker's limit, and more is not faster."""

MOST_MESSAGES: Final = 4096
"""The same as a number of messages: a broker appends a batch in one go, and others wait."""


def encode_batch(encoder: MessageEncoder, messages: Sequence[Message]) -> EncodedMessage:
    """One request with all the messages.

    Raises:
        BadMessage: there is none.
        BadBatch: one of them may not travel with the others.
        MessageTooLarge: one alone is too large.
    """
    if not messages:
        raise BadMessage("a batch without a message; give send_batch at least one")
    first = messages[0]
    topic = encoder.wire_topic(first.topic)
    if topic.startswith(RETRY_PREFIX):
        raise BadBatch(0, f"goes to the retry topic {topic!r}, which takes no batches")
    now_ms = time.time_ns() // 1_000_000
    entries: list[bytes] = []
    ids: list[str] = []
    for index, message in enumerate(messages):
        if message.topic != first.topic:
            raise BadBatch(index, f"goes to {message.topic!r} and the first one to {first.topic!r}")
        if message.wait_store_ok != first.wait_store_ok:
            raise BadBatch(index, "has another wait_store_ok than the first one")
        encoder.check_parts(message, index)
        properties = message.all_properties()
        _refuse(properties, index)
        ids.append(properties.setdefault(Property.UNIQUE_KEY, unique_ids.next(now_ms)))
        text = properties_text(properties).encode()
        size = ENTRY_OVERHEAD + len(message.body) + len(text)
        entries += (_HEAD.pack(size, 0, 0, message.flag, len(message.body)), message.body, _SHORT.pack(len(text)), text)
    own = {Property.UNIQUE_KEY: unique_ids.next(now_ms), Property.WAIT: "true" if first.wait_store_ok else "false"}
    request = encoder.request(topic, now_ms, properties_text(own), batch=True)
    return EncodedMessage(RequestCode.SEND_BATCH_MESSAGE, request, b"".join(entries), ",".join(ids))


def _refuse(properties: dict[str, str], index: int) -> None:
    for name in _ALONE:
        if properties.get(name, "0") != "0":
            raise BadBatch(index, f"is to be delayed ({name} is set)")
    if properties.get(Property.TRANSACTION_PREPARED) == "true":
        raise BadBatch(index, "belongs to a transaction")


def encoded_size(message: Message) -> int:
    """Bytes of a message inside a batch, its unique id included."""
    properties = message.all_properties()
    text = sum(len(name.encode()) + len(value.encode()) + 2 for name, value in properties.items())
    unique = 0 if Property.UNIQUE_KEY in properties else len(Property.UNIQUE_KEY) + 34
    return ENTRY_OVERHEAD + len(message.body) + text + unique


def split(messages: Iterable[Message], max_bytes: int = DEFAULT_BATCH_BYTES) -> Iterator[list[Message]]:
    """Cut a long list into legal batches, in order: by size and number, by topic and by ``wait_store_ok``.

    A message that may not be in a batch at all (delayed), or is larger than ``max_bytes``, comes alone.
    """
    batch: list[Message] = []
    room = max_bytes
    for message in messages:
        size = encoded_size(message)
        alone = size > max_bytes or any(message.all_properties().get(name, "0") != "0" for name in _ALONE)
        fits = (
            0 < len(batch) < MOST_MESSAGES and not alone and size <= room
            and batch[0].topic == message.topic and batch[0].wait_store_ok == message.wait_store_ok
        )  # fmt: skip
        if batch and not fits:
            yield batch
            batch, room = [], max_bytes
        batch.append(message)
        # Nothing joins a message that has to be alone.
        room = 0 if alone else room - size
    if batch:
        yield batch
