"""The few requests that the suite itself sends, over RocketMQ's protocol and independent of our own code."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

UPDATE_AND_CREATE_TOPIC = 17
GET_ROUTEINFO_BY_TOPIC = 105
GET_BROKER_CLUSTER_INFO = 106
SUCCESS = 0


class Answer(NamedTuple):
    code: int
    remark: str | None
    body: bytes
    """Left as bytes: Apache's JSON has bare numbers as keys, which Python's reader refuses."""


def request(address: str, code: int, fields: Mapping[str, object] | None = None, body: bytes = b"") -> Answer:
    """Send one request on a connection of its own. Raises :class:`OSError` if nobody answers."""
    host, port = address.split(":")
    texts = {name: str(value) for name, value in (fields or {}).items()}
    command = {"code": code, "language": "OTHER", "version": 0, "opaque": 1, "flag": 0, "extFields": texts}
    header = json.dumps(command).encode()
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.sendall(struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body)
        with connection.makefile("rb") as stream:
            frame = stream.read(_length(stream.read(4)))
    # The top byte of the header's length tells the encoding; whoever asks in JSON is answered in JSON.
    header_end = 4 + (_length(frame[:4]) & 0xFFFFFF)
    answer: dict[str, Any] = json.loads(frame[4:header_end])
    return Answer(answer["code"], answer.get("remark"), frame[header_end:])


def registered_brokers(namesrv: str) -> bytes | None:
    """What a name server says about its brokers, or ``None`` while it does not answer."""
    try:
        return request(namesrv, GET_BROKER_CLUSTER_INFO).body
    except OSError:
        return None


def create_topic(broker: str, namesrv: str, topic: str, queues: int = 4) -> None:
    """Create a topic on the broker and return when the name server hands out its route."""
    fields = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": queues,
        "writeQueueNums": queues,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": "false",
    }
    answer = request(broker, UPDATE_AND_CREATE_TOPIC, fields)
    assert answer.code == SUCCESS, f"{topic} was not created: {answer.code} {answer.remark}"
    deadline = time.monotonic() + 15
    while request(namesrv, GET_ROUTEINFO_BY_TOPIC, {"topic": topic}).code != SUCCESS:
        assert time.monotonic() < deadline, f"the name server has no route of {topic}"
        time.sleep(0.1)


def _length(four_bytes: bytes) -> int:
    if len(four_bytes) < 4:
        raise ConnectionError("the connection was closed without an answer")
    length: int = struct.unpack(">I", four_bytes)[0]
    return length
