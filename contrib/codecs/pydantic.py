"""Bodies that pydantic checks: models, and whatever else it has an adapter for."""

from __future__ import annotations

from typing import ClassVar, TypeVar

from pydantic import TypeAdapter

from verniermq.contrib.codecs.codec import Codec

T = TypeVar("T")


class Json(Codec[T]):
    """JSON."""

    content_type: ClassVar = "application/json"

    def __init__(self, type: type[T]) -> None:
        super().__init__(type)
        self._adapter: TypeAdapter[T] = TypeAdapter(type)

    def encode(self, value: T) -> bytes:
        return self._adapter.dump_json(value)

    def decode_body(self, body: bytes) -> T:
        return self._adapter.validate_json(body)
