"""Bodies that are JSON, from somebody else: bounded, and of the shape that is expected."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from verniermq.kernel.errors import InvalidParameter
from verniermq.kernel.jsonlimits import parse_json

LARGEST_JSON: Final = 1024 * 1024
"""Bytes of a request's body that is JSON: more would keep the parser, and everybody who waits, busy for too long."""


def check_json_size(body: bytes) -> None:
    """Refuse a body that is too large.

    Raises:
        InvalidParameter: it is too large to be read in one go.
    """
    if len(body) > LARGEST_JSON:
        raise InvalidParameter(f"the body has {len(body)} bytes of JSON, the limit is {LARGEST_JSON}; send it in parts")


def json_object(body: bytes) -> dict[str, Any]:
    """The object in a body of JSON.

    Raises:
        InvalidParameter: the body is no JSON object, or too large.
    """
    check_json_size(body)
    try:
        data = parse_json(body)
    except ValueError as error:
        raise InvalidParameter(f"the body is no JSON that can be used: {error}") from error
    if not isinstance(data, dict):
        raise InvalidParameter(f"the body is a JSON {type(data).__name__}, expected an object")
    return data


def objects(data: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """A member that is a list of objects; missing and null count as empty."""
    members = data.get(name) or []
    if not isinstance(members, list) or not all(isinstance(member, dict) for member in members):
        raise InvalidParameter(f"{name} is {members!r:.200}, expected a list of objects")
    return members
