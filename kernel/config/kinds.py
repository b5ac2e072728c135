"""Annotations looked at: what a kind of value is made of, and how it is called in a message.

``list[int]`` is "a list, each item a whole number"; with limits it is "…a whole number from 1 to 18".
"""

from __future__ import annotations

import types
import typing
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import attrs

from verniermq.kernel.config.fields import Setting
from verniermq.kernel.config.toml import choice_of, toml_value
from verniermq.kernel.config.units import Duration, Size, format_duration, format_size


def alternatives(kind: Any) -> tuple[Any, ...]:
    """The members of a union without ``None`` (TOML cannot write it); of anything else, itself."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return tuple(member for member in typing.get_args(kind) if member is not type(None))
    return (kind,)


def unwrapped(kind: Any) -> Any:
    """The kind inside ``Annotated``, ``Final`` and the like, and inside an optional."""
    while typing.get_origin(kind) in (typing.Annotated, typing.Final, typing.ClassVar):
        kind = typing.get_args(kind)[0]
    members = alternatives(kind)
    return unwrapped(members[0]) if len(members) == 1 and members[0] is not kind else kind


def is_table(kind: Any) -> bool:
    """Whether the kind is a configuration class of its own, with keys that are known."""
    return isinstance(kind, type) and attrs.has(kind)


def item_kind(kind: Any) -> Any:
    """What each item of a list, tuple or set is; ``None`` if the kind is none of these."""
    origin = typing.get_origin(kind) or kind
    if origin in (list, tuple, set, frozenset) or origin in _ABSTRACT_LISTS:
        arguments = typing.get_args(kind)
        return arguments[0] if arguments else Any
    return None


def collected(kind: Any, items: list[Any]) -> Any:
    """The items in the container that the annotation names."""
    origin = typing.get_origin(kind) or kind
    return origin(items) if origin in (tuple, set, frozenset) else items


def value_kind(kind: Any) -> Any:
    """What each value of a ``dict[str, …]`` is; ``None`` if the kind is no mapping."""
    origin = typing.get_origin(kind) or kind
    if origin is dict or origin in _ABSTRACT_DICTS:
        arguments = typing.get_args(kind)
        return arguments[1] if len(arguments) == 2 else Any
    return None


def choices(kind: Any) -> dict[Any, Any] | None:
    """What is written → what is meant, for ``Literal`` and enums; ``None`` if the kind is neither."""
    if typing.get_origin(kind) is Literal:
        return {choice: choice for choice in typing.get_args(kind)}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {choice_of(member): member for member in kind}
    return None


def described(kind: Any, setting: Setting) -> str:
    """What is expected, in words, for the end of "expected …"."""
    kind = unwrapped(kind)
    members = alternatives(kind)
    if len(members) > 1:
        return " or ".join(described(member, setting) for member in members)
    possible = choices(kind)
    if possible is not None:
        return "one of " + listed(possible)
    if (item := item_kind(kind)) is not None:
        return "a list" if item is Any else f"a list, each item {described(item, setting)}"
    if (value := value_kind(kind)) is not None:
        return "a table" if value is Any else f"a table, each value {described(value, setting)}"
    if is_table(kind):
        return "a table"
    return _NAMES.get(kind, getattr(kind, "__name__", str(kind))) + _limits(kind, setting)


def listed(possible: dict[Any, Any]) -> str:
    return ", ".join(toml_value(choice) for choice in possible)


def _limits(kind: Any, setting: Setting) -> str:
    if kind not in (int, float, Size, Duration):
        return ""
    write = {Size: format_size, Duration: format_duration}.get(kind, _number)
    low, high = setting.rules.at_least, setting.rules.at_most
    if low is not None and high is not None:
        return f" from {write(low)} to {write(high)}"  # type: ignore[arg-type]  # sizes are given as whole numbers
    if low is not None:
        return f" of at least {write(low)}"  # type: ignore[arg-type]
    if high is not None:
        return f" of at most {write(high)}"  # type: ignore[arg-type]
    return ""


def _number(number: float) -> str:
    return str(int(number)) if number == int(number) else repr(number)


_NAMES = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    Path: "a path",
    Size: 'a size such as "4MiB"',
    Duration: 'a duration such as "500ms" or "1h30m"',
}
_ABSTRACT_LISTS = (Sequence, Iterable, Collection)
_ABSTRACT_DICTS = (Mapping,)
