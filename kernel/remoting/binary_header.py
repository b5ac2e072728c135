"""The binary form of a header (RocketMQ: ``SerializeType.ROCKETMQ``), big-endian throughout.

::

    code i16 | language i8 | version i16 | opaque i32 | flag i32 | remark length i32 | remark
    ext length i32 | entries, each: key length i16, key, value length i32, value

GET_MAX_OFFSET (30) of a Java client of version 479, opaque 7, with ``topic`` = ``T``::

    00 1e  00  01 df  00 00 00 07  00 00 00 00  00 00 00 00
    00 00 00 0c  00 05 74 6f 70 69 63  00 00 00 01 54

There is no count of entries: they end where the ext length says. When a key comes twice the last one
counts (Java writes a signed header twice). A code has 16 bits only, so the pop requests, whose numbers are
above 200,000, arrive cut off; they are put right again here, since nothing else uses those numbers.
"""

from __future__ import annotations

import struct
from typing import Final

from verniermq.kernel.errors import ProtocolError
from verniermq.kernel.remoting.json_header import UNKNOWN_LANGUAGE, Header, values_as_text

LANGUAGES: Final = (
    "JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER",
    "HTTP", "GO", "PHP", "OMS", "RUST", "NODE_JS",
)  # fmt: skip
"""The name of each language number (RocketMQ: ``LanguageCode``)."""

_LANGUAGE_NUMBERS: Final = {name: number for number, name in enumerate(LANGUAGES)}
_LANGUAGE_NAMES: Final = dict(enumerate(LANGUAGES))

RESTORED_CODES: Final = {code & 0xFFFF: code for code in (200050, 200051, 200053, 200151)}
"""What the cut-off numbers of POP_MESSAGE, ACK_MESSAGE, CHANGE_MESSAGE_INVISIBLETIME and BATCH_ACK_MESSAGE mean."""

_unpack_bare = struct.Struct(">hBhiiii").unpack_from  # all of a header that has no remark and no ext fields
_pack_fixed = struct.Struct(">HBHiii").pack
_unpack_int = struct.Struct(">i").unpack_from
_unpack_unsigned = struct.Struct(">I").unpack_from
_pack_unsigned = struct.Struct(">I").pack

# A few dozen names come over and over, in both directions; whoever makes names up does not fill the memory.
_KNOWN_KEYS_MAX: Final = 1024
_framed_keys: dict[str, str] = {}
"""A key by its bytes with their length in front, as the latin-1 text that they are read as."""
_key_bytes: dict[str, bytes] = {}
"""The same bytes by the key, for writing."""


def language_number(language: str) -> int:
    """What a header has for a language; that of ``OTHER`` for one without a number."""
    return _LANGUAGE_NUMBERS.get(language, 7)


def decode_binary_header(raw: bytes) -> Header:
    """Read a header.

    Raises:
        ProtocolError: a length inside the header does not fit, or a text is no UTF-8.
    """
    size = len(raw)
    try:
        code, language, version, opaque, flag, remark_length, ext_length = _unpack_bare(raw)
        if remark_length > 0:
            (ext_length,) = _unpack_int(raw, 17 + remark_length)
    except struct.error:
        raise ProtocolError(f"binary header of {size} bytes is too short for what it says it holds") from None
    if remark_length < 0 or ext_length < 0 or 21 + remark_length + ext_length != size:
        raise ProtocolError(
            f"binary header of {size} bytes says its remark has {remark_length} and its ext fields {ext_length} bytes"
        )
    try:
        remark = raw[17 : 17 + remark_length].decode() if remark_length else ""
        ext = _decode_entries(raw[-ext_length:]) if ext_length else {}
    except UnicodeDecodeError as error:
        raise ProtocolError(f"text in a binary header is no UTF-8: {error}") from None
    if code in RESTORED_CODES and not flag & 1:
        code = RESTORED_CODES[code]
    return code, opaque, flag, ext, remark, _LANGUAGE_NAMES.get(language, UNKNOWN_LANGUAGE), version


def _decode_entries(raw: bytes) -> dict[str, str]:
    # One decoding for all of them, then cheap slices: latin-1 keeps each position what it is in bytes.
    text = raw.decode("latin-1")
    ext = _split_entries(text)
    if ext is None:
        ext = _walk_entries(raw, text)
    if text.isascii():
        return ext
    return {_utf8(key): _utf8(value) for key, value in ext.items()}


def _split_entries(text: str) -> dict[str, str] | None:
    """Read entries with known keys and values below 256 bytes, which nearly all are; ``None`` for any other.

    The three zeros that such a value's length begins with cut the text into ``length value 00 key-length key``,
    so one split replaces most of the walk. Whatever does not fit (a value with three zeros in it, a wrong length)
    leaves a piece whose end is no known key, so a result is never a guess.
    """
    first, *others = text.split("\0\0\0")
    if not others:
        return None
    last = others.pop()
    ext: dict[str, str] = {}
    try:
        key = _framed_keys[first]
        for piece in others:
            end = ord(piece[0]) + 1
            ext[key] = piece[1:end]
            key = _framed_keys[piece[end:]]
        if ord(last[0]) + 1 != len(last):
            return None
    except (KeyError, IndexError):
        return None
    ext[key] = last[1:]
    return ext


def _walk_entries(raw: bytes, text: str) -> dict[str, str]:
    """Read any entries, one length after the other, and remember their keys for :func:`_split_entries`."""
    ext: dict[str, str] = {}
    position, end = 0, len(raw)
    try:
        while position < end:
            key_end = position + 2 + (raw[position] << 8 | raw[position + 1])
            value_start = key_end + 4
            value_end = value_start + _unpack_unsigned(raw, key_end)[0]
            key = text[position + 2 : key_end]
            ext[key] = text[value_start:value_end]
            if len(_framed_keys) < _KNOWN_KEYS_MAX and len(key) < 64:
                _framed_keys[text[position:key_end]] = key
            position = value_end
    except (IndexError, struct.error):
        position = -1
    # Lengths are read as unsigned, so that a negative one points past the end instead of backwards.
    if position != end:
        raise ProtocolError("the lengths of the ext fields in a binary header do not add up")
    return ext


def _utf8(text: str) -> str:
    return text if text.isascii() else text.encode("latin-1").decode()


def encode_binary_header(
    code: int, opaque: int, flag: int, ext: dict[str, str], remark: str, language: str, version: int
) -> bytes:
    """Write a header."""
    try:
        "".join(ext.values())
    except TypeError:
        ext = values_as_text(ext)
    remark_bytes = remark.encode()
    entries: list[bytes] = []
    for key, value in ext.items():
        value_bytes = value.encode()
        entries.append(_key_bytes.get(key) or _encode_key(key))
        entries.append(_pack_unsigned(len(value_bytes)))
        entries.append(value_bytes)
    ext_bytes = b"".join(entries)
    fixed = _pack_fixed(
        code & 0xFFFF,
        language_number(language),
        version & 0xFFFF,
        opaque,
        flag,
        len(remark_bytes),
    )
    return b"".join((fixed, remark_bytes, _pack_unsigned(len(ext_bytes)), ext_bytes))


def _encode_key(key: str) -> bytes:
    encoded = key.encode()
    framed = len(encoded).to_bytes(2, "big") + encoded
    if len(_key_bytes) < _KNOWN_KEYS_MAX:
        _key_bytes[key] = framed
    return framed
