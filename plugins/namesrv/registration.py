"""The body of REGISTER_BROKER (RocketMQ: ``RegisterBrokerBody``): a broker's topics, plain or compressed.

Compressed, it is one zlib stream over::

    i32 length, data version as JSON
    i32 number of topics, then per topic: i32 length, "name readQueues writeQueues perm filterType attributes"
    i32 length, filter servers as JSON
    i32 number of static topics, then per topic: i32 length, its queue mapping as JSON; older brokers end before it
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

import orjson

from verniermq.kernel import FROM_SERVER, InvalidParameter, TopicConfig, parse_fastjson, parse_json

LARGEST_BODY: Final = 64 * 1024 * 1024
"""After decompression: room for a few hundred thousand topics, and no more than a machine can bear."""

_LENGTH: Final = struct.Struct(">i")


Mappings = Mapping[str, Mapping[str, Any]]
"""Static topic → the queues that a broker leads (RocketMQ: ``TopicQueueMappingInfo``)."""


def encode(version: Mapping[str, int], topics: Iterable[TopicConfig], mappings: Mappings) -> bytes:
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
                "topicQueueMappingInfoMap": {name: mapping for name, mapping in mappings.items() if name in table},
            },
        }
    )


def decode(body: bytes, *, compressed: bool, crc: int) -> tuple[dict[str, int], list[TopicConfig] | None, Mappings]:
    """The data version, the topics, ``None`` when the broker sent none, and the mappings of static ones.

    Raises:
        InvalidParameter: the checksum is wrong, or the body is not what it should be.
    """
    if crc and crc != zlib.crc32(body) & 0x7FFFFFFF:
        raise InvalidParameter(f"the registration of {len(body)} bytes does not have the checksum {crc}; send it again")
    if not body:
        return {}, None, {}
    try:
        version, topics, mappings = _decode_compressed(body) if compressed else _decode_plain(body)
        # What we could not pass on, we do not take.
        orjson.dumps([version, mappings, *(topic.as_json() for topic in topics)])
        if not isinstance(version, dict):
            raise TypeError(f"the data version is {version!r}")
        if not all(isinstance(mapping, dict) for mapping in mappings.values()):
            raise TypeError("a queue mapping is no object")
    except (ValueError, KeyError, TypeError, AttributeError, struct.error, zlib.error) as error:
        raise InvalidParameter(f"the registration is malformed: {type(error).__name__}: {error}") from error
    for topic in topics:
        topic.check_numbers()
    return version, topics, mappings


def _decode_plain(body: bytes) -> tuple[dict[str, int], list[TopicConfig], Mappings]:
    wrapper = parse_fastjson(body, FROM_SERVER).get("topicConfigSerializeWrapper") or {}
    table: Mapping[str, Any] = wrapper.get("topicConfigTable") or {}
    topics = [TopicConfig.from_json({"topicName": name, **config}) for name, config in table.items()]
    return wrapper.get("dataVersion") or {}, topics, dict(wrapper.get("topicQueueMappingInfoMap") or {})


def _decode_compressed(body: bytes) -> tuple[dict[str, int], list[TopicConfig], Mappings]:
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

    def number() -> int:
        nonlocal position
        (found,) = _LENGTH.unpack_from(data, position)
        position += 4
        return int(found)

    version = parse_json(take())
    topics = [_topic(take().decode()) for _ in range(number())]
    mappings: list[Any] = []
    if position < len(data):
        take()  # filter servers: nobody has them any more
        if position < len(data):
            mappings = [parse_fastjson(take(), FROM_SERVER) for _ in range(number())]
    return version, topics, {str(mapping["topic"]): mapping for mapping in mappings}


def _topic(text: str) -> TopicConfig:
    name, read, write, perm, *rest = text.split(" ", 5)
    return TopicConfig(
        name, int(read), int(write), int(perm),
        filter_type=rest[0] if rest else "SINGLE_TAG",
        attributes=parse_json(rest[1]) if len(rest) > 1 else {},
    )  # fmt: skip
