"""Bodies that msgspec checks: structs, data classes, and whatever else it knows."""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

import msgspec

from verniermq.contrib.codecs.codec import Codec

T = TypeVar("T")


class _Msgspec(Codec[T]):
    _encoder: Any
    _decoder: Any

    def encode(self, value: T) -> bytes:
        encoded: bytes = self._encoder.encode(value)
        return encoded

    def decode_body(self, body: bytes) -> T:
        decoded: T = self._decoder.decode(body)
        return decoded


class Json(_Msgspec[T]):
    """JSON."""

    content_type: ClassVar = "application/json"

    def __init__(self, type: type[T]) -> None:
        super().__init__(type)
        self._encoder, self._decoder = msgspec.json.Encoder(), msgspec.json.Decoder(type)


class MsgPack(_Msgspec[T]):
    """MessagePack: smaller, and quicker to read."""

    content_type: ClassVar = "application/msgpack"

    def __init__(self, type: type[T]) -> None:
        super().__init__(type)
        self._encoder, self._decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(type)
