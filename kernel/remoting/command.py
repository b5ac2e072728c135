"""One request or one answer (RocketMQ: ``RemotingCommand``), whatever form its header has on the wire.

A frame is ``length i32 | header word i32 | header | body``: the length counts what follows it, the top byte
of the header word is the form of the header (0 JSON, 1 binary), its low 24 bits the header's length.
Both forms hold the same things: a code, an opaque that ties an answer to its request, a flag, and the
header fields as texts. This module knows no sockets.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias, TypeVar, overload

from verniermq.kernel.codes import PROTOCOL_LANGUAGE, PROTOCOL_VERSION, RequestCode
from verniermq.kernel.errors import BadField, FrameTooLarge, MissingField
from verniermq.kernel.remoting.binary_header import encode_binary_header
from verniermq.kernel.remoting.json_header import encode_json_header

RESPONSE_FLAG: Final = 1
ONEWAY_FLAG: Final = 2
BINARY_WORD: Final = 1 << 24

Piece: TypeAlias = bytes | bytearray | memoryview
Default = TypeVar("Default")

_pack_words = struct.Struct(">II").pack
_REQUIRED: Final = object()
_TOO_LARGE: Final = 2**63
_LONGEST: Final = 1000
"""Digits that are worth turning into a number, leading zeros included."""


def request_name(code: int) -> str:
    """How a request code is called in messages: ``PULL_MESSAGE (11)``."""
    try:
        return f"{RequestCode(code).name} ({int(code)})"
    except ValueError:
        return f"code {code}"


def read_integer(name: str, value: str) -> int:
    """The number in a field that is not empty.

    Raises:
        BadField: it is no decimal number of at most 64 bits.
    """
    # Python would also take "1_000" and " 7"; Java takes neither.
    if value.isdecimal() or (value[0] in "+-" and value[1:].isdecimal()):
        number = int(value) if len(value) <= _LONGEST else _TOO_LARGE
        if -_TOO_LARGE <= number < _TOO_LARGE:
            return number
    raise BadField(name, value[:80], "a decimal number of at most 64 bits")


class Command:
    """A request or an answer. Made for every message, hence small and with no check of its own.

    Attributes:
        ext: The fields of the header, by their wire names, always as text.
        remark: In an answer: the text for a human.
        binary: The form of the header; an answer takes that of its request.
        pieces: More of the body, when it is sent in pieces that are not worth putting together first.
        decoded: The request that it carries, once somebody has asked for it; see ``Request.of``.
        frame: The command as it goes onto the wire, where whoever made it had a quicker way to write it.
    """

    __slots__ = (
        "binary", "body", "code", "decoded", "ext", "flag", "frame", "language", "opaque", "pieces", "remark",
        "version",
    )  # fmt: skip

    def __init__(
        self,
        code: int,
        opaque: int = 0,
        flag: int = 0,
        ext: dict[str, str] | None = None,
        remark: str = "",
        language: str = PROTOCOL_LANGUAGE,
        version: int = PROTOCOL_VERSION,
        body: bytes = b"",
        binary: bool = False,
        pieces: Sequence[Piece] = (),
    ) -> None:
        self.code = code
        self.opaque = opaque
        self.flag = flag
        self.ext: dict[str, str] = {} if ext is None else ext
        self.remark = remark
        self.language = language
        self.version = version
        self.body = body
        self.binary = binary
        self.pieces = pieces
        self.frame = b""
        self.decoded: object = None

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self.ext.items())
        return (
            f"<Command {request_name(self.code)} opaque={self.opaque} flag={self.flag} remark={self.remark!r}"
            f" {{{fields}}} body of {len(self.body) + sum(map(len, self.pieces))} bytes>"
        )

    @classmethod
    def request(
        cls,
        code: int,
        ext: dict[str, str] | None = None,
        body: bytes = b"",
        *,
        remark: str = "",
        binary: bool = False,
        oneway: bool = False,
    ) -> Command:
        """A request of ours; the connection gives it its opaque."""
        return cls(
            code,
            flag=ONEWAY_FLAG if oneway else 0,
            ext=ext,
            remark=remark,
            body=body,
            binary=binary,
        )

    def reply(
        self,
        code: int = 0,
        ext: dict[str, str] | None = None,
        body: bytes | Sequence[Piece] = b"",
        remark: str = "",
    ) -> Command:
        """The answer to this request. A body that is given in pieces is copied once only, on its way to the socket."""
        if body.__class__ is bytes:
            return Command(
                code,
                self.opaque,
                RESPONSE_FLAG,
                ext if ext is not None else {},
                remark,
                PROTOCOL_LANGUAGE,
                PROTOCOL_VERSION,
                body,
                self.binary,
            )
        pieces = (body,) if isinstance(body, bytearray | memoryview) else body
        return Command(
            code, self.opaque, RESPONSE_FLAG, ext if ext is not None else {}, remark,
            binary=self.binary, pieces=pieces,  # type: ignore[arg-type]  # bytes went the other way
        )  # fmt: skip

    @property
    def is_response(self) -> bool:
        return self.flag & RESPONSE_FLAG != 0

    @property
    def is_oneway(self) -> bool:
        return self.flag & ONEWAY_FLAG != 0

    # --- the fields of a request -----------------------------------------------------------

    def rewrite(self, fields: Mapping[str, str]) -> None:
        """Have other values in some fields, from now on: what was decoded before does not count any more."""
        self.ext = {**self.ext, **fields}
        self.decoded = None

    @overload
    def text(self, name: str) -> str: ...
    @overload
    def text(self, name: str, default: Default) -> str | Default: ...
    def text(self, name: str, default: object = _REQUIRED) -> object:
        """A field as it came.

        Raises:
            MissingField: it is not there and no default was given.
        """
        value = self.ext.get(name)
        if value is not None:
            return value
        return self._absent(name, default)

    @overload
    def integer(self, name: str) -> int: ...
    @overload
    def integer(self, name: str, default: Default) -> int | Default: ...
    def integer(self, name: str, default: object = _REQUIRED) -> object:
        """A field as a number of at most 64 bits; an empty text is the same as none, as it is for Java.

        Raises:
            MissingField: it is not there and no default was given.
            BadField: it is no decimal number, or a larger one.
        """
        value = self.ext.get(name)
        if not value:
            return self._absent(name, default)
        return read_integer(name, value)

    @overload
    def boolean(self, name: str) -> bool: ...
    @overload
    def boolean(self, name: str, default: Default) -> bool | Default: ...
    def boolean(self, name: str, default: object = _REQUIRED) -> object:
        """A field as a truth value: ``true`` in any case is true, any other text is false, as Java reads it.

        Raises:
            MissingField: it is not there and no default was given.
        """
        value = self.ext.get(name)
        if value is not None:
            return value.lower() == "true"
        return self._absent(name, default)

    def _absent(self, name: str, default: object) -> object:
        if default is _REQUIRED:
            raise MissingField(name, request_name(self.code))
        return default

    # --- onto the wire ---------------------------------------------------------------------

    def encode(self) -> bytes:
        """The whole frame."""
        parts: list[Piece] = []
        self.encode_onto(parts)
        return b"".join(parts)

    def encode_onto(self, parts: list[Piece], max_frame_size: int = _TOO_LARGE) -> int:
        """Append the frame to ``parts``, to be joined later; say how many bytes it has.

        Nothing is appended when the command cannot be encoded.

        Raises:
            FrameTooLarge: it would have more than ``max_frame_size`` bytes.
        """
        if self.frame:
            parts.append(self.frame)
            return len(self.frame)
        encode = encode_binary_header if self.binary else encode_json_header
        header = encode(self.code, self.opaque, self.flag, self.ext, self.remark, self.language, self.version)
        header_size = len(header)
        body = self.body
        pieces = self.pieces
        size = 4 + header_size + len(body)
        if pieces:
            size += sum(map(len, pieces))
        if size + 4 > max_frame_size:
            raise FrameTooLarge(size + 4, max_frame_size)
        parts.append(_pack_words(size, header_size | BINARY_WORD if self.binary else header_size))
        parts.append(header)
        if body:
            parts.append(body)
        if pieces:
            parts.extend(pieces)
        return size + 4
