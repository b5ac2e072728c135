"""``version.json``: which VernierMQ wrote a store last, and the least one that reads it.

::

    {"writtenBy": "0.2.0", "readableFrom": "0.1.0"}

An Apache broker passes over the file. A store without it is of VernierMQ 0.1, or of an Apache broker: both are read.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final

import attrs
import orjson

from verniermq.kernel.commitlog.mapped import sync_directory, write_all
from verniermq.kernel.errors import StoreError

logger = logging.getLogger(__name__)

VERSION: Final = "0.2.0"
"""Ours; as in ``pyproject.toml``, which a running broker need not have."""

READABLE_FROM: Final = "0.1.0"
"""The least version that reads what this one writes. To be raised with a change that older ones would misread."""

NAME: Final = "version.json"


class NewerStore(StoreError):
    """A later version wrote the store, in a way that this one does not understand."""

    def __init__(self, path: Path, found: StoreVersion) -> None:
        super().__init__(
            f"the store {path} was written by VernierMQ {found.written_by} and can be read from version "
            f"{found.readable_from} on, but this is {VERSION}; install {found.written_by} or later"
        )
        self.written_by = found.written_by
        self.readable_from = found.readable_from


@attrs.frozen
class StoreVersion:
    written_by: str = VERSION
    readable_from: str = READABLE_FROM

    @classmethod
    def of(cls, store: Path) -> StoreVersion | None:
        """What a store says; ``None`` if it says nothing. A file that cannot be understood says nothing either.

        Raises:
            OSError: the file cannot be read.
        """
        try:
            data = orjson.loads((store / NAME).read_bytes())
            found = cls(data["writtenBy"], data["readableFrom"])
            _numbers(found.written_by)
            _numbers(found.readable_from)
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            logger.warning("%s does not say which version wrote the store: %r; it is passed over", store / NAME, error)
            return None
        return found

    def refuse_newer(self, store: Path) -> None:
        """
        Raises:
            NewerStore: this version does not read the store.
        """
        if _numbers(self.readable_from) > _numbers(VERSION):
            raise NewerStore(store, self)

    def save(self, store: Path) -> None:
        """Write the file; it is whole at every moment.

        Raises:
            OSError: the disk refused.
        """
        temporary = store / f"{NAME}.tmp"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            write_all(
                descriptor, orjson.dumps({"writtenBy": self.written_by, "readableFrom": self.readable_from}) + b"\n", 0
            )
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, store / NAME)
        sync_directory(store)


def _numbers(version: str) -> tuple[int, ...]:
    """``0.10.2`` → 0, 10, 2; what follows the numbers (``0.3.0rc1``) does not count.

    Raises:
        ValueError: it begins with no number.
    """
    numbers = []
    for part in version.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if digits:
            numbers.append(int(digits))
        if digits != part:
            break
    if not numbers:
        raise ValueError(f"{version!r:.40} is no version")
    return tuple(numbers)
