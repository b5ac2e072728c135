"""The body of REGISTER_BROKER (RocketMQ: ``RegisterBrokerBody``): a broker's topics, plain or compressed.

Compressed, it is one zlib stream over::

    i32 length, data version as JSON
    i32 number of topics, then per topic: i32 length, "name readQueues writeQueues perm filterType attributes"
    i32 length, filter servers as JSON; newer brokers add static-topic mappings, which we have no use for
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

import orjson

from verniermq.kernel import InvalidParameter, TopicConfig, parse_fastjson

LARGEST_BODY: Final = 64 * 1024 * 1024
"""After decompression: room for a few hundred thousand topics, and no more than a machine can bear."""

_LENGTH: Final = struct.Struct(">i")


def encode(version: Mapping[str, int], topics: Iterable[TopicConfig]) -> bytes:
    """What our own brokers send: the plain form."""
    table = {topic.name: topic.as_json() for topic in topics}
    return orjson.dumps(
        {
            "filterServerList": [],
            "topicConfigSerializeWrapper": {
                "dataVersion": version,
                "mappingDataVersion": version,
                "topicConfigTable": table,
                "topicQueueMappingDetailMap": {},
                "topicQueueMappingInfoMap": {},
            },
        }
    )


def decode(body: bytes, *, compressed: bool, crc: int) -> tuple[dict[str, int], list[TopicConfig] | None]:
    """The data version and the topics; ``None`` when the broker sent none.

    Raises:
        InvalidParameter: the checksum is wrong, or the body is not what it should be.
    """
    if crc and crc != zlib.crc32(body) & 0x7FFFFFFF:
        raise InvalidParameter(f"the registration of {len(body)} bytes does not have the checksum {crc}; send it again")
    if not body:
        return {}, None
    try:
        version, topics = _decode_compressed(body) if compressed else _decode_plain(body)
        orjson.dumps([version, *(topic.as_json() for topic in topics)])  # what we could not pass on, we do not take
        if not isinstance(version, dict):
            raise TypeError(f"the data version is {version!r}")
    except (ValueError, KeyError, TypeError, AttributeError, struct.error, zlib.error) as error:
        raise InvalidParameter(f"the registration is malformed: {type(error).__name__}: {error}") from error
    for topic in topics:
        topic.check_numbers()
    return version, topics


def _decode_plain(body: bytes) -> tuple[dict[str, int], list[TopicConfig]]:
    wrapper = parse_fastjson(body).get("topicConfigSerializeWrapper") or {}
    table: Mapping[str, Any] = wrapper.get("topicConfigTable") or {}
    topics = [TopicConfig.from_json({"topicName": name, **config}) for name, config in table.items()]
    return wrapper.get("dataVersion") or {}, topics


def _decode_compressed(body: bytes) -> tuple[dict[str, int], list[TopicConfig]]:
    inflater = zlib.decompressobj()
    data = inflater.decompress(body, LARGEST_BODY)
    if inflater.unconsumed_tail:
        raise ValueError(f"it is larger than {LARGEST_BODY} bytes")
    position = 0

    def take() -> bytes:
        nonlocal position
        (length,) = _LENGTH.unpack_from(data, position)
        start, position = position + 4, position + 4 + length
        if length < 0 or position > len(data):
            raise ValueError(f"a part of {length} bytes at byte {start} of {len(data)}")
        return data[start:position]

    version = orjson.loads(take())
    (count,) = _LENGTH.unpack_from(data, position)
    position += 4
    return version, [_topic(take().decode()) for _ in range(count)]


def _topic(text: str) -> TopicConfig:
    name, read, write, perm, *rest = text.split(" ", 5)
    return TopicConfig(
        name, int(read), int(write), int(perm),
        filter_type=rest[0] if rest else "SINGLE_TAG",
        attributes=orjson.loads(rest[1]) if len(rest) > 1 else {},
    )  # fmt: skip
