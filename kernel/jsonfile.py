"""RocketMQ's JSON: its files with their ``.bak``, and the dialect its writer (fastjson) speaks.

The dialect differs from JSON in two ways: a map's key may be a bare integer, and it may be an object::

    {"offsetTable":{"T1@CG_demo":{0:12,1:7}}}
    {"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T1"}:42}}

Here an integer key becomes its digits, ``"0"``, as if it had been quoted, and an object key becomes a tuple
of its members in the order of their names: ``(("brokerName", "broker-a"), ("queueId", 0), ("topic", "T1"))``,
so that ``dict(key)`` gives the object back. An object that occurs twice may be written as
``{"$ref":"$.path.to[0].it"}``; the reference is resolved.

A file is never half written: the new content is complete beside it before the names change. At every moment
either the file or its ``.bak`` is whole, and RocketMQ's rule for loading finds it::

    write name.tmp, sync it;  name -> name.bak;  name.tmp -> name;  sync the directory
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson

from verniermq.kernel.commitlog.mapped import sync_directory
from verniermq.kernel.errors import StoreError

logger = logging.getLogger(__name__)

ObjectKey = tuple[tuple[str, Any], ...]

_SPACE = re.compile(r"[ \t\r\n]*")
_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][-+]?\d+)?")
_WORDS = {"true": True, "false": False, "null": None}
_WORD = re.compile(r"true|false|null")
_PATH_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")
_STRINGS = json.JSONDecoder(strict=False)
_DEEPEST = 200


class DamagedJson(StoreError):
    """A file of the config directory, and its ``.bak``, are not readable."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path} cannot be read: {why}; repair the file, or move it away to start with an empty table")
        self.path = path


def parse_fastjson(text: bytes | bytearray | memoryview | str) -> Any:
    """Read JSON or fastjson's dialect of it. Plain JSON costs nothing extra.

    Raises:
        ValueError: it is neither.
    """
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        plain = text if isinstance(text, str) else str(text, "utf-8")
        value = _Parser(plain).document()
    return _resolve(value, value, 0) if _has_reference(text) else value


def object_keyed_map(items: Iterable[tuple[Mapping[str, Any], Any]]) -> bytes:
    """A map whose keys are objects, as RocketMQ's clients expect it, for example a queue's."""
    return b"{%s}" % b",".join([b"%s:%s" % (compact(key), compact(value)) for key, value in items])


def compact(value: Any) -> bytes:
    """JSON without white space, members in the order of their names; integer keys are quoted."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)


class JsonFile:
    """One file of RocketMQ's config directory and the ``.bak`` beside it (RocketMQ: ``ConfigManager``)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.backup = path.with_name(path.name + ".bak")

    def save(self, data: Mapping[str, Any]) -> None:
        """Replace the content. Blocks until it is on the disk.

        Raises:
            OSError: the disk refused; the old content is still there.
        """
        new = self.path.with_name(self.path.name + ".tmp")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(new, "wb") as file:
            file.write(encode(data))
            file.flush()
            os.fsync(file.fileno())
        try:
            os.replace(self.path, self.backup)
        except FileNotFoundError:
            pass  # the first save has nothing to keep
        os.replace(new, self.path)
        sync_directory(self.path.parent)

    def load(self) -> Any | None:
        """The content, or that of the ``.bak`` when the file is missing, empty or broken; ``None`` without both.

        Raises:
            DamagedJson: the file and its ``.bak`` are both there and both broken, or the ``.bak`` alone is.
        """
        try:
            return self._read(self.path)
        except FileNotFoundError:
            pass
        except ValueError as error:
            logger.warning("reading the backup of a broken file path=%s why=%s", self.path, error)
            # The next save would make this the backup: keep it out of the way of the good one.
            os.replace(self.path, self.path.with_name(self.path.name + ".broken"))
        try:
            return self._read(self.backup)
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise DamagedJson(self.backup, str(error)) from error

    def _read(self, path: Path) -> Any:
        content = path.read_bytes()
        if not content.strip():
            raise ValueError("it is empty")
        return parse_fastjson(content)


def encode(data: Mapping[str, Any]) -> bytes:
    """The file's content: JSON that people can read. RocketMQ takes quoted integer keys as well as bare ones."""
    return orjson.dumps(data, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)


# --- the dialect ---------------------------------------------------------------------------


class _Parser:
    """Recursive descent over one text; used only when it is not plain JSON."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def document(self) -> Any:
        value = self._value()
        self._skip()
        if self._at != len(self._text):
            raise self._error("the end")
        return value

    def _error(self, expected: str) -> ValueError:
        found = self._text[self._at : self._at + 20] or "the end"
        return ValueError(f"expected {expected} at character {self._at}, found {found!r}")

    def _skip(self) -> str:
        match = _SPACE.match(self._text, self._at)
        assert match is not None
        self._at = match.end()
        return self._text[self._at : self._at + 1]

    def _take(self, sign: str) -> None:
        if self._skip() != sign:
            raise self._error(repr(sign))
        self._at += 1

    def _value(self) -> Any:
        sign = self._skip()
        if sign in ("{", "["):
            self._depth += 1
            if self._depth > _DEEPEST:
                raise self._error(f"at most {_DEEPEST} levels")
            value = self._object() if sign == "{" else self._array()
            self._depth -= 1
            return value
        if sign == '"':
            text, self._at = _STRINGS.raw_decode(self._text, self._at)
            return text
        if match := _NUMBER.match(self._text, self._at):
            self._at = match.end()
            return float(match[0]) if match[1] or match[2] else int(match[0])
        if match := _WORD.match(self._text, self._at):
            self._at = match.end()
            return _WORDS[match[0]]
        raise self._error("a value")

    def _array(self) -> list[Any]:
        self._take("[")
        values: list[Any] = []
        if self._skip() == "]":
            self._at += 1
            return values
        while True:
            values.append(self._value())
            if self._skip() == "]":
                self._at += 1
                return values
            self._take(",")

    def _object(self) -> dict[Any, Any]:
        self._take("{")
        members: dict[Any, Any] = {}
        if self._skip() == "}":
            self._at += 1
            return members
        while True:
            key = self._key()
            self._take(":")
            members[key] = self._value()
            if self._skip() == "}":
                self._at += 1
                return members
            self._take(",")

    def _key(self) -> str | ObjectKey:
        key = self._value()
        if isinstance(key, dict):
            try:
                hash(frozen := tuple(sorted(key.items())))
            except TypeError:
                raise self._error("a flat object as a key") from None
            return frozen
        if isinstance(key, str):
            return key
        if isinstance(key, int) and not isinstance(key, bool):
            return str(key)
        raise self._error("a key")


# --- references ----------------------------------------------------------------------------


def _has_reference(text: bytes | bytearray | memoryview | str) -> bool:
    if isinstance(text, str):
        return '"$ref"' in text
    return b'"$ref"' in (bytes(text) if isinstance(text, memoryview) else text)


def _resolve(value: Any, root: Any, depth: int) -> Any:
    if depth > _DEEPEST:
        raise ValueError("its references run in a circle")
    if isinstance(value, dict):
        if len(value) == 1 and isinstance(path := value.get("$ref"), str):
            return _resolve(_follow(path, root), root, depth + 1)
        return {key: _resolve(member, root, depth + 1) for key, member in value.items()}
    if isinstance(value, list):
        return [_resolve(item, root, depth + 1) for item in value]
    return value


def _follow(path: str, root: Any) -> Any:
    at = 1
    value = root
    if not path.startswith("$"):
        raise ValueError(f"the reference {path!r} does not begin at the root")
    while at < len(path):
        step = _PATH_STEP.match(path, at)
        try:
            if step is None:
                raise KeyError(path)
            value = value[step[1]] if step[1] is not None else value[int(step[2])]
        except (KeyError, IndexError, TypeError):
            raise ValueError(f"the reference {path!r} leads nowhere") from None
        at = step.end()
    return value
