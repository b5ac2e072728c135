"""The JSON form of a header: one object, the form that nearly every client uses.

::

    {"code":30,"extFields":{"queueId":"0","topic":"T"},"flag":0,"language":"JAVA","opaque":7,
     "serializeTypeCurrentRPC":"JSON","version":479}

Members may come in any order, unknown ones are ignored, ``extFields`` and ``remark`` may be missing or
null. Some clients write numbers and booleans inside ``extFields``; the others write strings, and strings
are all that anybody may be sent, since Go's client refuses anything else.
"""

from __future__ import annotations

import json
from typing import Any, Final, TypeAlias

import orjson

from verniermq.kernel.errors import ProtocolError
from verniermq.kernel.jsonlimits import FROM_PEER, check_count, check_depth

Header: TypeAlias = tuple[int, int, int, dict[str, str], str, str, int]
"""Code, opaque, flag, ext fields, remark, language, version: what both forms of a header hold."""

UNKNOWN_LANGUAGE: Final = "OTHER"
_LONG: Final = 100_000
"""Bytes; a shorter header cannot have more values than are read."""
_MEMBERS: Final[dict[str, type]] = {
    "code": int, "opaque": int, "flag": int, "version": int, "language": str, "remark": str, "extFields": dict,
}  # fmt: skip


def decode_json_header(raw: bytes) -> Header:
    """Read a header.

    Raises:
        ProtocolError: the bytes are no JSON object, or a member has the wrong type.
    """
    try:
        if len(raw) > _LONG:
            check_count(raw, FROM_PEER)
        header = orjson.loads(raw)
    except ValueError as error:
        raise ProtocolError(f"header of {len(raw)} bytes is no JSON that can be used: {error}") from None
    if type(header) is not dict:
        raise ProtocolError(f"header is a JSON {_kind(header)}, expected an object")
    get = header.get
    code, opaque, flag, version = get("code"), get("opaque"), get("flag", 0), get("version", 0)
    ext, remark, language = get("extFields"), get("remark") or "", get("language") or UNKNOWN_LANGUAGE
    if ext is None:
        ext = {}
    if not (
        type(code) is int and type(opaque) is int and type(flag) is int and type(version) is int
        and type(ext) is dict and type(remark) is str and type(language) is str
    ):  # fmt: skip
        _ensure_shallow(header, raw)
        raise _wrong_type(header)
    try:
        # The quickest way to see that every value is a string: join raises for anything else.
        "".join(ext.values())
    except TypeError:
        _ensure_shallow(header, raw)
        ext = _as_text(ext, raw)
    return code, opaque, flag, ext, remark, language, version


def _ensure_shallow(header: Any, raw: bytes) -> None:
    """What lies in strings only is never looked into; the rest is shown in an error, or written again as a text."""
    try:
        check_depth(header, raw, FROM_PEER)
    except ValueError as error:
        raise ProtocolError(f"header of {len(raw)} bytes cannot be used: {error}") from None


def encode_json_header(
    code: int, opaque: int, flag: int, ext: dict[str, str], remark: str, language: str, version: int
) -> bytes:
    """Write a header, with the members that RocketMQ writes, in its order."""
    try:
        "".join(ext.values())
    except TypeError:
        ext = values_as_text(ext)
    if remark:
        return orjson.dumps(
            {
                "code": code,
                "extFields": ext,
                "flag": flag,
                "language": language,
                "opaque": opaque,
                "remark": remark,
                "serializeTypeCurrentRPC": "JSON",
                "version": version,
            }
        )
    return orjson.dumps(
        {
            "code": code,
            "extFields": ext,
            "flag": flag,
            "language": language,
            "opaque": opaque,
            "serializeTypeCurrentRPC": "JSON",
            "version": version,
        }
    )


def values_as_text(ext: dict[str, Any]) -> dict[str, str]:
    """The same fields with every value as a text; a field without a value is no field."""
    return {name: _text(value) for name, value in ext.items() if value is not None}


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(int(value))
    return orjson.dumps(value).decode()


def _as_text(ext: dict[str, Any], raw: bytes) -> dict[str, str]:
    if float in map(type, ext.values()):
        # An integer past 64 bits arrives as a float and has lost digits: take its text from the source.
        ext = json.loads(raw, parse_int=str, parse_float=str)["extFields"]
    return values_as_text(ext)


def _kind(value: object) -> str:
    if value is None:
        return "null"
    return {dict: "object", list: "array", str: "string", bool: "boolean"}.get(type(value), "number")


def _wrong_type(header: dict[str, Any]) -> ProtocolError:
    for name, kind in _MEMBERS.items():
        value = header.get(name)
        optional = name not in header and name not in ("code", "opaque")
        if type(value) is not kind and not optional and (kind is int or value):
            break
    wanted = {int: "an integer", str: "a string", dict: "an object"}[kind]
    return ProtocolError(f"member {name!r} of the header is {value!r:.80}, expected {wanted}")
