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
import math
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson

from verniermq.kernel.commitlog.mapped import sync_directory
from verniermq.kernel.errors import MalformedAnswer, StoreError
from verniermq.kernel.jsonlimits import (
    FROM_FILE,
    FROM_PEER,
    FROM_SERVER,
    JsonLimits,
    Text,
    check_count,
    check_depth,
)

logger = logging.getLogger(__name__)

ObjectKey = tuple[tuple[str, Any], ...]

_SPACE = re.compile(r"[ \t\r\n]*")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_WORDS = {"true": True, "false": False, "null": None}
_WORD = re.compile(r"true|false|null")
_PATH_STEP = re.compile(r"\.([^.\[\]]+)|\[([0-9]{1,9})\]")
_STRINGS = json.JSONDecoder(strict=False)
_LONGEST_NUMBER = 400
"""Characters: more than any number of 64 bits or any double is written with."""


class DamagedJson(StoreError):
    """A file of the config directory, and its ``.bak``, are not readable."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path} cannot be read: {why}; repair the file, or move it away to start with an empty table")
        self.path = path


def parse_fastjson(text: Text, limits: JsonLimits = FROM_PEER) -> Any:
    """Read JSON or fastjson's dialect of it. Plain JSON costs nothing extra.

    Raises:
        ValueError: it is neither, or more than the limits allow.
    """
    check_count(text, limits)
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        plain = text if isinstance(text, str) else str(text, "utf-8")
        value = _Parser(plain, limits).document()
    else:
        check_depth(value, text, limits)
    return _References(value, limits).resolved() if _has_reference(text) else value


def parse_answer(body: bytes, address: str, request: str) -> dict[Any, Any]:
    """The object in the body of a server's answer; an empty body is an empty one.

    Raises:
        MalformedAnswer: there is something else in it.
    """
    try:
        data = parse_fastjson(body, FROM_SERVER) if body else {}
    except ValueError as error:
        raise MalformedAnswer(address, request, str(error)) from error
    if not isinstance(data, dict):
        raise MalformedAnswer(address, request, f"it is a JSON {type(data).__name__}, expected an object")
    return data


def object_keyed_map(items: Iterable[tuple[Mapping[str, Any], Any]]) -> bytes:
    """A map whose keys are objects, as RocketMQ's clients expect it, for example a queue's."""
    return b"{%s}" % b",".join([b"%s:%s" % (compact(key), compact(value)) for key, value in items])


def compact(value: Any) -> bytes:
    """JSON without white space, members in the order of their names; integer keys are quoted."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)


def encoded(value: Any) -> orjson.Fragment:
    """A value that is encoded once and then part of other values many times."""
    # Copied, since the encoder's own bytes keep the four kilobytes that it began with.
    return orjson.Fragment(bytes(memoryview(orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS))))


class JsonFile:
    """One file of RocketMQ's config directory and the ``.bak`` beside it (RocketMQ: ``ConfigManager``)."""

    def __init__(self, path: Path, *, private: bool = False) -> None:
        """``private``: there are secrets in it, so only its owner may read it."""
        self.path = path
        self._mode = 0o600 if private else 0o666
        self.backup = path.with_name(path.name + ".bak")

    def _open(self, path: str, flags: int) -> int:
        descriptor = os.open(path, flags, self._mode)
        if self._mode == 0o600:
            os.fchmod(descriptor, self._mode)  # one that a crash left behind may have another
        return descriptor

    def save(self, data: Mapping[str, Any]) -> None:
        """Replace the content. Blocks until it is on the disk.

        Raises:
            OSError: the disk refused; the old content is still there.
            TypeError: there is something in it that JSON cannot hold; the same.
        """
        content = encode(data)
        new = self.path.with_name(self.path.name + ".tmp")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(new, "wb", opener=self._open) as file:
            file.write(content)
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
        return parse_fastjson(content, FROM_FILE)


def encode(data: Mapping[str, Any]) -> bytes:
    """The file's content: JSON that people can read. RocketMQ takes quoted integer keys as well as bare ones."""
    return orjson.dumps(data, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)


# --- the dialect ---------------------------------------------------------------------------


class _Parser:
    """Recursive descent over one text; used only when it is not plain JSON."""

    def __init__(self, text: str, limits: JsonLimits) -> None:
        self._text = text
        self._limits = limits
        self._at = 0
        self._depth = 0
        self._values = 0

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
        self._values += 1
        if self._values > self._limits.slow_values:
            raise self._error(f"at most {self._limits.slow_values:.0f} values")
        if sign in ("{", "["):
            self._depth += 1
            if self._depth > self._limits.depth:
                raise self._error(f"at most {self._limits.depth} levels")
            value = self._object() if sign == "{" else self._array()
            self._depth -= 1
            return value
        if sign == '"':
            return self._string()
        if match := _NUMBER.match(self._text, self._at):
            return self._number(match)
        if match := _WORD.match(self._text, self._at):
            self._at = match.end()
            return _WORDS[match[0]]
        raise self._error("a value")

    def _string(self) -> str:
        text: str
        text, end = _STRINGS.raw_decode(self._text, self._at)
        try:
            text.encode()
        except UnicodeEncodeError:
            raise self._error("a text without half a surrogate pair, which nobody could be sent") from None
        self._at = end
        return text

    def _number(self, match: re.Match[str]) -> int | float:
        number: int | float = math.inf
        if len(match[0]) <= _LONGEST_NUMBER:
            number = float(match[0]) if match[1] or match[2] else int(match[0])
        if not (math.isfinite(number) if isinstance(number, float) else -(2**63) <= number < 2**64):
            raise self._error("a number of at most 64 bits")
        self._at = match.end()
        return number

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
            if any(not isinstance(name, str) or isinstance(member, dict | list) for name, member in key.items()):
                raise self._error("a flat object as a key")
            return tuple(sorted(key.items()))
        if isinstance(key, str):
            return key
        if isinstance(key, int) and not isinstance(key, bool):
            return str(key)
        raise self._error("a key")


# --- references ----------------------------------------------------------------------------


def _has_reference(text: Text) -> bool:
    if isinstance(text, str):
        return '"$ref"' in text
    return b'"$ref"' in (bytes(text) if isinstance(text, memoryview) else text)


class _References:
    """Puts what they refer to in the place of references.

    Each is a copy, and copies of copies double with every step: they are counted, and too many are refused.
    """

    def __init__(self, root: Any, limits: JsonLimits) -> None:
        self._root = root
        self._limits = limits
        self._values = 0
        self._followed: dict[str, Any] = {}
        """By path. A path may be long; it is walked once."""

    def resolved(self) -> Any:
        return self._resolve(self._root, 0)

    def _resolve(self, value: Any, depth: int) -> Any:
        self._values += 1
        if self._values > self._limits.slow_values:
            most = self._limits.slow_values
            raise ValueError(f"it has more than {most:.0f} values, with those that its references repeat")
        if not isinstance(value, dict | list):
            return value
        if depth == self._limits.depth:
            raise ValueError(f"its references run in a circle, or more than {depth} levels deep")
        if isinstance(value, list):
            return [self._resolve(item, depth + 1) for item in value]
        if len(value) == 1 and isinstance(path := value.get("$ref"), str):
            return self._resolve(self._follow(path), depth + 1)
        return {key: self._resolve(member, depth + 1) for key, member in value.items()}

    def _follow(self, path: str) -> Any:
        if path not in self._followed:
            self._followed[path] = _walk(path, self._root)
        return self._followed[path]


def _walk(path: str, root: Any) -> Any:
    at = 1
    value = root
    if not path.startswith("$"):
        raise ValueError(f"the reference {path!r:.80} does not begin at the root")
    while at < len(path):
        step = _PATH_STEP.match(path, at)
        try:
            if step is None:
                raise KeyError(path)
            value = value[step[1]] if step[1] is not None else value[int(step[2])]
        except (KeyError, IndexError, TypeError):
            raise ValueError(f"the reference {path!r:.80} leads nowhere") from None
        at = step.end()
    return value
