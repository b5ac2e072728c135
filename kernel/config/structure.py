"""From a table of ``broker.toml`` to a configuration class, with one exact line for the first mistake.

The lines say where the value came from, which table and key it has, what it is, and what would be right::

    broker.toml: [store] flush = "fast" is not one of "async", "sync"
    broker.toml: [plugins.filter] has no setting 'max_tag'; did you mean 'max_tags'?
    broker.toml: [broker] port = "x": expected a whole number from 0 to 65535
    VERNIERMQ_STORE_SEGMENT_SIZE: [store] segment_size = "1XiB": expected a size such as "4MiB" from 4KiB to 2047MiB

cattrs would structure the same classes, but its errors name the path of types, not the words of the file; and a
whole number must not be accepted from ``true``, nor a text from ``5``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

import attrs

from verniermq.kernel.config.fields import SECRET, Setting, settings_of
from verniermq.kernel.config.kinds import (
    alternatives,
    choices,
    collected,
    described,
    is_table,
    item_kind,
    listed,
    unwrapped,
    value_kind,
)
from verniermq.kernel.config.text import PlainText, read_text
from verniermq.kernel.config.toml import shortened, toml_key, toml_value
from verniermq.kernel.config.units import Duration, Size, parse_duration, parse_size
from verniermq.kernel.errors import ConfigError, UnknownSetting, close_match, nearest

T = TypeVar("T")


def structure(
    cls: type[T],
    table: object,
    where: str,
    source: str = "broker.toml",
    sources: Mapping[str, str] | None = None,
) -> T:
    """Make a ``cls`` from a table, strictly.

    Args:
        where: the table's dotted name, ``"plugins.filter"``; empty for the root
        source: the file, as the user called it
        sources: for values that came from elsewhere, dotted key → where from

    Raises:
        ConfigError: with one line about the first thing that is wrong
    """
    return _Reader(source, sources or {}).table(cls, table, where)


class _Misfit(Exception):
    """A value that is not of its kind; the text goes after the value."""


@attrs.frozen
class _Reader:
    source: str
    sources: Mapping[str, str]

    def table(self, cls: type[T], table: object, where: str, base: object = None) -> T:
        """A class from a table; what the table leaves out is as in ``base``, if there is one."""
        if not isinstance(table, Mapping):
            self.refuse(where, f"{where} = {_shown(table)}: expected a table, [{where}]")
        settings = settings_of(cls)
        self.refuse_unknown(settings, table, where)
        values = {}
        for key, setting in settings.items():
            if key in table:
                values[setting.argument] = self.setting(setting, table[key], where)
            elif base is not None:
                values[setting.argument] = getattr(base, setting.attribute.name)
            elif setting.required:
                expected = described(setting.kind, setting)
                self.refuse(where, f"[{where}] lacks the setting {key!r}: expected {expected}")
        return self.built(cls, values, where)

    def refuse_unknown(self, settings: Mapping[str, Setting], table: Mapping[str, object], where: str) -> None:
        for key in table:
            if key in settings:
                continue
            dotted = f"{where}.{key}" if where else key
            # The value stays out of it: a misspelt key may hold a secret.
            what = f"[{where}] has no setting {key!r}" if where else f"there is no section [{toml_key(key)}]"
            raise UnknownSetting(f"{self.source_of(dotted)}: {what}", key, nearest(key, settings))

    def setting(self, setting: Setting, value: object, where: str) -> object:
        if setting.attribute.converter is not None:
            return value  # its own converter knows the kinds that it takes; a failure is reported by built()
        return self.value(setting.kind, setting, value, where, setting.key)

    def value(self, kind: Any, setting: Setting, value: object, where: str, key: str) -> object:
        """One value of a kind, or the line that says why it is none."""
        kind = unwrapped(kind)
        members = alternatives(kind)
        if len(members) > 1:
            return self.one_of(members, setting, value, where, key)
        raw = read_text(value, kind) if isinstance(value, PlainText) else value
        dotted = f"{where}.{key}" if where else key
        if is_table(kind) and isinstance(raw, Mapping):
            base = setting.default if isinstance(setting.default, kind) else None
            return self.checked(kind, setting, self.table(kind, raw, dotted, base), value, where, key)
        if (each := item_kind(kind)) is not None and isinstance(raw, list | tuple | set | frozenset):
            part = setting.of_an_item()
            items = [self.value(each, part, item, where, f"{key}[{n}]") for n, item in enumerate(raw)]
            return self.checked(kind, setting, collected(kind, items), value, where, key)
        if (each := value_kind(kind)) is not None and isinstance(raw, Mapping):
            part = setting.of_an_item()
            values = {name: self.value(each, part, item, dotted, toml_key(name)) for name, item in raw.items()}
            return self.checked(kind, setting, values, value, where, key)
        try:
            single = _single(kind, setting, raw)
        except _Misfit as misfit:
            self.refuse_value(setting, value, where, key, str(misfit))
        return self.checked(kind, setting, single, value, where, key)

    def one_of(self, members: tuple[Any, ...], setting: Setting, value: object, where: str, key: str) -> object:
        for member in members:
            try:
                return self.value(member, setting, value, where, key)
            except ConfigError:
                continue  # perhaps it is one of the others
        return self.refuse_value(setting, value, where, key, f": expected {described(setting.kind, setting)}")

    def checked(self, kind: Any, setting: Setting, result: object, value: object, where: str, key: str) -> object:
        """The result, if it keeps the setting's limits and passes its check; ``value`` is how it was written."""
        if not setting.in_range(result):
            self.refuse_value(setting, value, where, key, f": expected {described(kind, setting)}")
        if setting.rules.check is not None:
            expected = setting.rules.check(result)
            if expected is not None:
                self.refuse_value(setting, value, where, key, f": expected {expected}")
        return result

    def built(self, cls: type[T], values: dict[str, object], where: str) -> T:
        try:
            return cls(**values)
        except ConfigError:
            raise
        except Exception as error:  # converters and validators are other people's code
            for key, setting in settings_of(cls).items():
                if setting.argument in values and (why := _complaint(cls, setting, values)) is not None:
                    self.refuse_value(setting, values[setting.argument], where, key, f": {why}")
            self.refuse(where, f"[{where}] {_one_line(error)}" if where else _one_line(error))

    def refuse_value(self, setting: Setting, value: object, where: str, key: str, why: str) -> NoReturn:
        shown = f'"{SECRET}"' if setting.secret else _shown(value)
        dotted = f"{where}.{key}" if where else key
        self.refuse(dotted, f"[{where}] {key} = {shown}{why}" if where else f"{key} = {shown}{why}")

    def refuse(self, dotted: str, what: str) -> NoReturn:
        raise ConfigError(f"{self.source_of(dotted)}: {what}")

    def source_of(self, dotted: str) -> str:
        # An item of a list, or a key inside a table from a flag, has the source of the whole.
        name = dotted.partition("[")[0]
        while name and name not in self.sources:
            name = name.rpartition(".")[0]
        return self.sources.get(name, self.source)


def _single(kind: Any, setting: Setting, raw: object) -> object:
    """A value that has no parts."""
    possible = choices(kind)
    if possible is not None:
        return _choice(possible, raw)
    if kind is Any or kind is object:
        return raw
    number = isinstance(raw, int | float) and not isinstance(raw, bool)
    try:
        if kind is Size and (isinstance(raw, str) or (number and isinstance(raw, int))):
            return parse_size(raw) if isinstance(raw, str) else raw
        if kind is Duration and (isinstance(raw, str) or number):
            seconds = parse_duration(raw) if isinstance(raw, str) else float(raw)  # type: ignore[arg-type]
            if math.isfinite(seconds) and seconds >= 0:
                _say_the_unit(setting, raw, seconds)
                return seconds
        if kind is float and number and not math.isnan(raw):  # type: ignore[arg-type]
            return float(raw)  # type: ignore[arg-type]
    except (ValueError, OverflowError):
        pass  # said below, with the limits
    if kind is int and number and isinstance(raw, int):
        return raw
    if kind is Path and isinstance(raw, str | Path):
        return Path(raw)
    if isinstance(kind, type) and kind not in (int, float) and isinstance(raw, kind):
        return raw
    raise _Misfit(f": expected {described(kind, setting)}{_as_list(kind, setting, raw)}")


UNLIKELY: Final = 100
"""A number without a unit that is so many times the default was hardly meant in seconds."""
LONG: Final = 3600.0
"""Defaults from here on are thought of in hours."""


def _say_the_unit(setting: Setting, raw: object, seconds: float) -> None:
    """RocketMQ's settings are milliseconds, ``flushIntervalCommitLog=500``, or hours, ``fileReservedTime=72``.

    Raises:
        _Misfit: it looks like one of those, and has no unit.
    """
    default = setting.default
    if not isinstance(default, float | int) or default <= 0 or seconds == 0:
        return
    number = f"{raw}".strip()
    if not number.replace(".", "", 1).isdigit():
        return  # it has its unit
    if seconds >= UNLIKELY * default:
        perhaps = [f"{number}ms"]
    elif default >= LONG and seconds <= default / UNLIKELY and seconds.is_integer():
        perhaps = [f"{number}h", f"{number}d"]
    else:
        return
    meant = [text for text in (*perhaps, f"{number}s") if setting.in_range(parse_duration(text))]
    if meant:
        raise _Misfit(f": a number alone is seconds; say which you mean: {' or '.join(map(toml_value, meant))}")


def _as_list(kind: Any, setting: Setting, raw: object) -> str:
    """How a list is written; RocketMQ writes it as one text, its messageDelayLevel for one."""
    item = item_kind(kind)
    if item is None or not isinstance(raw, str) or setting.secret:
        return ""
    items = raw.replace(",", " ").split()
    return f"; write [{', '.join(items)}]" if item in (int, float) else f"; write {toml_value(items)}"


def _choice(possible: dict[Any, Any], raw: object) -> object:
    for written, meant in possible.items():
        if (type(raw) is type(written) and raw == written) or raw is meant:
            return meant
    texts = [choice for choice in possible if isinstance(choice, str)]
    close = close_match(raw.lower(), texts, 0.5) if isinstance(raw, str) else None  # RocketMQ says SYNC_FLUSH
    meant_perhaps = "" if close is None else f"; did you mean {toml_value(close)}?"
    raise _Misfit(f" is not one of {listed(possible)}{meant_perhaps}")


def _complaint(cls: type, setting: Setting, values: dict[str, object]) -> str | None:
    """What one field's own converter or validator says against its value; ``None`` if nothing."""
    attribute, value = setting.attribute, values[setting.argument]
    # Validators may look at their neighbours, so they get an instance with all fields, made without __init__.
    instance: Any = object.__new__(cls)
    for other in settings_of(cls).values():
        object.__setattr__(instance, other.attribute.name, values.get(other.argument, other.default))
    try:
        if attribute.converter is not None:
            convert: Any = attribute.converter
            if isinstance(convert, attrs.Converter):
                details: Any = convert  # its attributes are not in attrs' type stubs
                arguments = [instance] * details.takes_self + [attribute] * details.takes_field
                value = details.converter(value, *arguments)
            else:
                value = convert(value)
        if attribute.validator is not None:
            attribute.validator(instance, attribute, value)
    except Exception as error:
        return "refused" if setting.secret else _one_line(error)
    return None


def _one_line(error: Exception) -> str:
    # attrs' validators append the attribute, the options and the value; their first argument is the sentence.
    said = error.args[0] if error.args and isinstance(error.args[0], str) else str(error)
    return shortened(" ".join(said.split()), 300) or type(error).__name__


def _shown(value: object) -> str:
    # The inside of a table stays out of messages: it may hold a secret of a class that was not even reached.
    if isinstance(value, Mapping):
        return "{…}"
    if isinstance(value, list | tuple):
        return shortened(f"[{', '.join(_shown(item) for item in value)}]")
    return shortened(toml_value(value))
