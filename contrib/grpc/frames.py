"""HTTP/2's frames, as far as gRPC needs them (RFC 9113), and gRPC's own frames inside them.

::

    9 bytes, then the payload                        a message of gRPC, inside DATA
    length 3 · kind 1 · flags 1 · stream id 4        compressed 1 · length 4 · message

    client: HEADERS (path, metadata) · DATA … END_STREAM
    server: HEADERS (200) · DATA … · HEADERS (grpc-status) END_STREAM

Our own headers are written without the table that both sides of a connection may share: they are the same few bytes
each time. Those of clients are read by ``headers.py``.
"""

from __future__ import annotations

import re
import struct
from enum import IntEnum
from typing import Final
from urllib.parse import quote

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADER_SIZE: Final = 9
PREFIX_SIZE: Final = 5
DEFAULT_WINDOW: Final = 65_535
LARGEST_WINDOW: Final = 2**31 - 1
LARGEST_FRAME: Final = 16_384
"""Of a payload; what nobody may be surprised by."""

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED, WITH_PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20

MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_HEADER_LIST_SIZE = 0x3, 0x4, 0x6


class Http2Error(IntEnum):
    """Why a stream or a connection ends."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    COMPRESSION_ERROR = 0x9
    ENHANCE_YOUR_CALM = 0xB


class GrpcStatus(IntEnum):
    """How a call ends for gRPC itself. What RocketMQ has to say is in the answer."""

    OK = 0
    INVALID_ARGUMENT = 3
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


_HEAD: Final = struct.Struct(">BHBBL")
_PREFIX: Final = struct.Struct(">BL")
_SETTING: Final = struct.Struct(">HL")
_TIMEOUT: Final = re.compile(r"(\d{1,8})([HMSmun])")
_SECONDS: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    size = len(payload)
    return _HEAD.pack(size >> 16, size & 0xFFFF, kind, flags, stream_id) + payload


def reset_frame(stream_id: int, error: Http2Error) -> bytes:
    return frame(RST_STREAM, 0, stream_id, error.to_bytes(4, "big"))


def window_frame(stream_id: int, size: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream_id, size.to_bytes(4, "big"))


def goaway_frame(last_stream_id: int, error: Http2Error, reason: str = "") -> bytes:
    return frame(GOAWAY, 0, 0, struct.pack(">LL", last_stream_id, error) + reason.encode())


def settings_frame(settings: dict[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(*pair) for pair in settings.items()))


def read_settings(payload: bytes) -> list[tuple[int, int]]:
    """
    Raises:
        struct.error: it is no whole number of settings.
    """
    return list(_SETTING.iter_unpack(payload))


# --- gRPC inside ---------------------------------------------------------------------------


def _field(name: bytes, value: bytes) -> bytes:
    """A header that no table keeps."""
    assert len(name) < 127
    size = bytes([len(value)]) if len(value) < 127 else b"\x7f" + _varint(len(value) - 127)
    return b"\x00" + bytes([len(name)]) + name + size + value


def _varint(number: int) -> bytes:
    parts = bytearray()
    while number >= 128:
        parts.append(number % 128 | 128)
        number //= 128
    parts.append(number)
    return bytes(parts)


_OK: Final = b"\x88"  # ":status 200", by its number
RESPONSE: Final = _OK + _field(b"content-type", b"application/grpc")
TRAILERS: Final = _field(b"grpc-status", b"0")
NOT_GRPC: Final = _field(b":status", b"415")


def trailers(status: GrpcStatus, text: str) -> bytes:
    message = quote(text, safe=" !\"#$&'()*+,-./:;<=>?@[]^_`{|}~", errors="replace")
    return _field(b"grpc-status", b"%d" % status) + _field(b"grpc-message", message.encode()[:4096])


def message_frame(message: bytes) -> bytes:
    """A message of gRPC with its prefix."""
    return _PREFIX.pack(0, len(message)) + message


def message_prefix(data: bytes | bytearray) -> tuple[int, int]:
    """Whether a message is compressed, and how long it is."""
    compressed, size = _PREFIX.unpack_from(data)
    return compressed, size


def timeout_seconds(text: str) -> float | None:
    """How long a client waits: ``2999m``; ``None`` for ever, or for what is no time."""
    match = _TIMEOUT.fullmatch(text)
    return int(match[1]) * _SECONDS[match[2]] if match else None
