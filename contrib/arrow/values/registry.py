"""A schema registry, asked as Confluent's is: a body begins with a 0 and the number of its schema."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from functools import cache
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote

from verniermq.contrib.arrow.errors import TableError
from verniermq.contrib.arrow.values import BadValue

HEADER: Final = 5
SECONDS: Final = 10.0
LARGEST: Final = 8 << 20


class NoSuchSchema(BadValue):
    def __init__(self, number: int) -> None:
        super().__init__(f"the schema registry knows no schema {number}, which it names")


class RegistryFailed(TableError):
    def __init__(self, address: str, why: object) -> None:
        super().__init__(f"the schema registry at {address} did not answer with a schema: {why}")


def schema_number(body: bytes) -> int:
    """
    Raises:
        BadValue: the body has no such header.
    """
    if len(body) < HEADER or body[0] != 0:
        raise BadValue(
            f"expected a 0 and a schema's number before the value, found {body[:HEADER].hex(' ') or 'nothing'}"
        )
    return int.from_bytes(body[1:HEADER], "big")


@cache
def schema_by_number(registry: str, number: int) -> str:
    """The text of a schema, which never changes.

    Raises:
        NoSuchSchema: there is none of that number, now.
        RegistryFailed: nobody says.
    """
    try:
        return str(_asked(f"{registry}/schemas/ids/{number}")["schema"])
    except RegistryFailed as error:
        if isinstance(error.__cause__, urllib.error.HTTPError) and error.__cause__.code == HTTPStatus.NOT_FOUND:
            raise NoSuchSchema(number) from error
        raise


def newest_schema(registry: str, subject: str) -> str:
    return str(_asked(f"{registry}/subjects/{quote(subject, safe='')}/versions/latest")["schema"])


def _asked(address: str) -> dict[str, Any]:
    try:
        with urllib.request.urlopen(address, timeout=SECONDS) as answer:
            found = json.loads(answer.read(LARGEST))
    except (OSError, ValueError) as error:
        raise RegistryFailed(address, error) from error
    if not isinstance(found, dict) or "schema" not in found:
        raise RegistryFailed(address, f"no member 'schema' in {str(found)[:80]}")
    return found
