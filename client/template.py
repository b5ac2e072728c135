"""The frame of a plain send, from a text that is made once per queue.

Of a send's header only the opaque, the time, the message's flag and its properties change from one message to the
next::

    …,"f":"0","g":"1700000000000","h":"0","i":"UNIQ_KEY\\u0001…","j":"0",…,"flag":0,…,"opaque":7,…

So the header is encoded once with marks in their places, and each message fills the gaps: a third of the time that
encoding all fields takes.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from itertools import chain
from typing import Final, Protocol

import orjson

from verniermq.client.record import WIRE
from verniermq.kernel import Command, RequestCode
from verniermq.kernel.requests import SHORT_NAMES

_pack_words = struct.Struct(">II").pack
_OPAQUE: Final = 1_234_567_890
_MARKS: Final = {"bornTimestamp": "<born>", "flag": "<flag>", "properties": "<properties>"}
_GAPS: Final = (
    ('"<born>"', '"', "%d", '"'),
    ('"<flag>"', '"', "%d", '"'),
    ('"<properties>"', "", "%s", ""),
    (f'"opaque":{_OPAQUE}', '"opaque":', "%d", ""),
)
"""What stands in a gap while the header is encoded; then what is before it, in it and behind it. In their order."""


class Template(Protocol):
    """Makes the frames of plain sends to one queue."""

    def frame(self, born_ms: int, flag: int, properties: str, opaque: int, body: bytes) -> bytes: ...


class SendTemplate:
    """The one in Python; ``parts`` are what stands before, between and behind the gaps."""

    __slots__ = ("_text",)

    def __init__(self, *parts: bytes) -> None:
        texts = [part.decode().replace("%", "%%") for part in parts]
        gaps = [gap for _, _, gap, _ in _GAPS]
        self._text = "".join(chain.from_iterable(zip(texts, [*gaps, ""], strict=True)))

    def frame(self, born_ms: int, flag: int, properties: str, opaque: int, body: bytes) -> bytes:
        header = (self._text % (born_ms, flag, orjson.dumps(properties).decode(), opaque)).encode()
        size = len(header)
        return b"".join((_pack_words(4 + size + len(body), size), header, body))


def header_parts(ext: Mapping[str, str]) -> list[bytes]:
    """The header of a send to one queue, cut at its gaps.

    ``ext`` are all fields of such a send; the time, the flag and the properties in it do not count.
    """
    marked = {**ext, **{SHORT_NAMES[name]: mark for name, mark in _MARKS.items()}}
    rest = Command(RequestCode.SEND_MESSAGE_V2, _OPAQUE, ext=marked).encode()[8:].decode()
    parts, begun = [], ""
    for mark, before, _, behind in _GAPS:
        part, found, rest = rest.partition(mark)
        assert found, mark
        parts.append(f"{begun}{part}{before}".encode())
        begun = behind
    return [*parts, f"{begun}{rest}".encode()]


def send_template(ext: Mapping[str, str]) -> Template:
    """A template for the queue that ``ext`` has; compiled, if that is there."""
    kind = SendTemplate if WIRE is None else WIRE.FilledTemplate
    template: Template = kind(*header_parts(ext))
    return template
