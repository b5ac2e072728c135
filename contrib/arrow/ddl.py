"""Types as Spark writes them, ``id long, who struct<name: string>, price decimal(9,2)``, and as Arrow has them.

A schema can be the JSON of a DataFrame's as well, which is what ``df.schema.json()`` gives.
"""

from __future__ import annotations

import re
from typing import Any, Final

import orjson
import pyarrow as pa

PLAIN: Final = {
    "boolean": pa.bool_(), "byte": pa.int8(), "tinyint": pa.int8(), "short": pa.int16(), "smallint": pa.int16(),
    "int": pa.int32(), "integer": pa.int32(), "long": pa.int64(), "bigint": pa.int64(), "float": pa.float32(),
    "real": pa.float32(), "double": pa.float64(), "string": pa.string(), "binary": pa.binary(), "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}  # fmt: skip
NAMES: Final = {kind: name for name, kind in PLAIN.items() if name not in ("byte", "short", "integer", "long", "real")}
TOKEN: Final = re.compile(r"\s*(`(?:[^`]|``)+`|[\w.-]+|[<>,:()])")
DEEPEST: Final = 64


class BadType(ValueError):
    """A text is no schema."""


def parse_fields(text: str) -> pa.StructType:
    """
    Raises:
        BadType: it is something else; where is said.
    """
    if text.lstrip().startswith("{"):
        try:
            found = _of_json(orjson.loads(text), 0)
        except orjson.JSONDecodeError as error:
            raise BadType(f"this is no JSON: {error}") from None
        fields = list(found) if pa.types.is_struct(found) else []
    else:
        fields = _Parser(text).fields("")
    if not fields:
        raise BadType("expected columns such as 'id long, name string', found nothing")
    return pa.struct(fields)


def _of_json(kind: Any, depth: int) -> pa.DataType:
    """A type in a schema's JSON: a word, or an object where it has types in it."""
    if depth > DEEPEST:
        raise BadType(f"types are nested more than {DEEPEST} deep")
    match kind:
        case str():
            return _Parser(kind).only_type()
        case {"type": "array", "elementType": element}:
            return pa.list_(_of_json(element, depth + 1))
        case {"type": "map", "keyType": key, "valueType": value}:
            return pa.map_(_of_json(key, depth + 1), _of_json(value, depth + 1))
        case {"type": "struct", "fields": [*members]}:
            return pa.struct(_unlike([_field_of_json(member, depth + 1) for member in members]))
    raise BadType(f"{_short(kind)} is no type of a DataFrame's schema")


def _field_of_json(member: Any, depth: int) -> pa.Field:
    match member:
        case {"name": str(name), "type": kind}:
            return pa.field(name, _of_json(kind, depth))
    raise BadType(f"{_short(member)} is no column of a DataFrame's schema")


def _short(found: Any) -> str:
    return orjson.dumps(found).decode()[:60]


def _unlike(fields: list[pa.Field]) -> list[pa.Field]:
    names = [field.name for field in fields]
    if len(set(names)) < len(names):
        raise BadType(f"a name comes twice among {', '.join(names)}")
    return fields


def type_text(kind: pa.DataType) -> str:
    """The same type for Spark.

    Raises:
        BadType: Spark has none.
    """
    if kind in NAMES:
        return NAMES[kind]
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{_quoted(field.name)}: {type_text(field.type)}' for field in kind)}>"
    if pa.types.is_map(kind):
        return f"map<{type_text(kind.key_type)}, {type_text(kind.item_type)}>"
    if pa.types.is_list(kind):
        return f"array<{type_text(kind.value_type)}>"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    raise BadType(f"{kind} has no counterpart in Spark")


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


class _Parser:
    def __init__(self, text: str) -> None:
        self._words: list[str] = []
        self._depth = 0
        position = 0
        text = text.rstrip()
        while position < len(text):
            found = TOKEN.match(text, position)
            if found is None:
                raise BadType(f"{text[position : position + 20]!r} at character {position} is no name and no type")
            self._words.append(found[1])
            position = found.end()

    def fields(self, end: str) -> list[pa.Field]:
        """``name type, name: type`` up to ``end``, which stays."""
        fields: list[pa.Field] = []
        while self._next() != end:
            if fields:
                self._expect(",")
            name = self._take("a column's name")
            if self._next() == ":":
                self._take(":")
            kind = self._type()
            if self._next().upper() == "NOT":
                self._take("NOT"), self._take("NULL")
            plain = name[1:-1].replace("``", "`") if name.startswith("`") else name
            fields.append(pa.field(plain, kind))
        return _unlike(fields)

    def only_type(self) -> pa.DataType:
        """The type that the whole text is."""
        kind = self._type()
        if self._next():
            raise BadType(f"expected the end, found {self._next()!r}")
        return kind

    def _type(self) -> pa.DataType:
        self._depth += 1
        if self._depth > DEEPEST:
            raise BadType(f"types are nested more than {DEEPEST} deep")
        try:
            return self._any_type()
        finally:
            self._depth -= 1

    def _any_type(self) -> pa.DataType:
        word = self._take("a type").lower()
        if word in PLAIN:
            return PLAIN[word]
        if word in ("decimal", "numeric", "dec"):
            return self._decimal()
        if word not in ("array", "map", "struct"):
            raise BadType(
                f"{word!r} is no type; there are {', '.join(PLAIN)}, decimal(p,s), array<…>, map<…>, struct<…>"
            )
        self._expect("<")
        if word == "array":
            kind: pa.DataType = pa.list_(self._type())
        elif word == "map":
            key = self._type()
            self._expect(",")
            kind = pa.map_(key, self._type())
        else:
            kind = pa.struct(self.fields(">"))
        self._expect(">")
        return kind

    def _decimal(self) -> pa.DataType:
        if self._next() != "(":
            return pa.decimal128(10, 0)
        self._expect("(")
        precision = self._take("a precision")
        scale = "0"
        if self._next() == ",":
            self._expect(",")
            scale = self._take("a scale")
        self._expect(")")
        try:
            return pa.decimal128(int(precision), int(scale))
        except ValueError as error:
            raise BadType(f"decimal({precision},{scale}): {error}") from None

    def _next(self) -> str:
        return self._words[0] if self._words else ""

    def _take(self, what: str) -> str:
        if not self._words:
            raise BadType(f"the text ends where {what} is expected")
        return self._words.pop(0)

    def _expect(self, word: str) -> None:
        found = self._take(repr(word))
        if found != word:
            raise BadType(f"expected {word!r}, found {found!r}")
