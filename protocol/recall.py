"""Taking a timed message back before its time: the handle that names it, and the request.

The answer to the send carries a handle (RocketMQ: ``RecallMessageHandle``), URL-safe base64 of five words::

    v1 orders broker-a 1700000029001 C0A8010A00010B2C3D4E000000000000
       topic  broker   slot's begin  unique key
                       in ms, plus 1
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from typing import Final, NamedTuple

from verniermq.kernel import RequestCode
from verniermq.kernel.requests import PUB, Access, Finder, Request, request, text, topic_access

VERSION: Final = "v1"


class RecallHandle(NamedTuple):
    topic: str
    broker: str
    time_ms: int
    unique_key: str

    def encode(self) -> str:
        words = f"{VERSION} {self.topic} {self.broker} {self.time_ms} {self.unique_key}"
        return base64.urlsafe_b64encode(words.encode()).decode()

    @classmethod
    def decode(cls, handle: str) -> RecallHandle:
        """
        Raises:
            ValueError: it is no handle.
        """
        try:
            version, topic, broker, time_ms, key = base64.b64decode(handle, b"-_", validate=True).decode().split(" ")
            if version == VERSION and time_ms.isdecimal():
                return cls(topic, broker, int(time_ms), key)
        except (binascii.Error, ValueError):
            pass  # said below
        raise ValueError(f"{handle[:200]!r} is no recall handle")


@request
class RecallMessage(Request):
    """A producer takes a message with a delivery time back."""

    code = RequestCode.RECALL_MESSAGE
    group: str = text("producerGroup", default="")
    topic: str = text("topic")
    """The handle has to be for the same one."""
    handle: str = text("recallHandle")
    broker_name: str | None = text("bname", default=None)

    def touches(self, finder: Finder) -> Iterator[Access]:
        yield topic_access(self.topic, PUB)
