"""What a setting is: an attrs field with a default, one line of explanation and the values it may have.

A configuration class is a frozen attrs class, and its fields are everything there is to know about it::

    @attrs.frozen
    class Config:
        max_tags: int = setting(64, "How many tags one subscription may name.", at_least=1)
        grace: Duration = setting(parse_duration("72h"), "How long files are kept.")

The file ``broker.toml``, the environment variables, the messages about mistakes and the manual are all made from
these fields, so none of them can fall behind. A class with plain ``attrs.field`` works as well: its annotations,
defaults and validators are used, and the text under a field, if its source can be read, explains it.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

import attrs

METADATA: Final = "verniermq"
SECRET: Final = "***"
"""What is shown in place of a secret."""

Check = Callable[[Any], str | None]
"""Looks at a value and returns what was expected instead, or ``None`` if the value is right."""


@attrs.frozen
class _Rules:
    """What ``setting`` knows beyond attrs; kept in the field's metadata."""

    explanation: str = ""
    secret: bool = False
    at_least: float | None = None
    at_most: float | None = None
    check: Check | None = None


@attrs.frozen
class Setting:
    """One field of a configuration class, as the rest of this package looks at it."""

    key: str
    """Its name in the file; the field ``from_`` is the key ``from``, which Python could not have."""
    kind: Any
    """The annotation, resolved."""
    default: Any
    """``attrs.NOTHING`` when the setting has to be given."""
    rules: _Rules
    attribute: attrs.Attribute[Any]

    @property
    def argument(self) -> str:
        """Its name as an argument of the class."""
        return self.attribute.alias or self.attribute.name

    @property
    def secret(self) -> bool:
        return self.rules.secret

    @property
    def required(self) -> bool:
        return self.default is attrs.NOTHING

    def of_an_item(self) -> Setting:
        """The same for one item of its list or table: the limits hold, the check and the default are of the whole."""
        return attrs.evolve(self, default=attrs.NOTHING, rules=attrs.evolve(self.rules, check=None))

    def in_range(self, value: object) -> bool:
        """Whether a number lies between the limits. Other things have no limits."""
        return in_range(value, self.rules)


def setting(
    default: Any,
    explanation: str,
    *,
    secret: bool = False,
    at_least: float | None = None,
    at_most: float | None = None,
    check: Check | None = None,
    validator: Callable[[Any, attrs.Attribute[Any], Any], Any] | None = None,
) -> Any:
    """Declare a setting. ``attrs.NOTHING`` as the default makes it one that has to be given.

    ``at_least`` and ``at_most`` bound a number, a size or a duration, or each item of a list of them. ``check``
    gets the whole value. A ``secret`` is shown as ``***`` in messages, in ``repr`` and in ``config show``.
    """
    if not explanation or "\n" in explanation:
        raise ValueError(f"a setting is explained in one line, not {explanation!r}")
    rules = _Rules(explanation, secret, at_least, at_most, check)
    if isinstance(default, list | dict | set):
        # A fresh copy for everybody: two configurations must not share one list.
        default = attrs.Factory(default.copy)
    validators: list[Any] = [_obey_rules]
    if validator is not None:
        validators.append(validator)
    return attrs.field(
        default=default,
        validator=validators,
        metadata={METADATA: rules},
        repr=(lambda _: SECRET) if secret else True,
    )


def _obey_rules(_instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    """The same limits for whoever makes the class in Python, without a file."""
    rules: _Rules = attribute.metadata[METADATA]
    shown = SECRET if rules.secret else repr(value)
    if not in_range(value, rules):
        raise ValueError(f"{attribute.name} = {shown} is not within {rules.at_least} and {rules.at_most}")
    expected = rules.check(value) if rules.check is not None else None
    if expected is not None:
        raise ValueError(f"{attribute.name} = {shown}: expected {expected}")


def in_range(value: object, rules: _Rules) -> bool:
    if isinstance(value, list | tuple | set | frozenset):
        return all(in_range(item, rules) for item in value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return True
    # Written so that "not a number" is in no range.
    low = -math.inf if rules.at_least is None else rules.at_least
    high = math.inf if rules.at_most is None else rules.at_most
    return low <= value <= high


def settings_of(cls: type) -> Mapping[str, Setting]:
    """Every setting of a configuration class by its key, in the order in which they are declared."""
    return _settings_of(cls)


@lru_cache(maxsize=256)
def _settings_of(cls: type) -> Mapping[str, Setting]:
    kinds = _annotations(cls)
    found = {}
    for attribute in attrs.fields(cls):
        if not attribute.init:
            continue
        rules = attribute.metadata.get(METADATA)
        if rules is None:
            # Somebody else's class: `metadata={"secret": True}` is enough to keep a value from being shown.
            rules = _Rules(secret=bool(attribute.metadata.get("secret", False)))
        default = _default(attribute)
        key = (attribute.alias or attribute.name).removesuffix("_")
        found[key] = Setting(key, kinds.get(attribute.name, _guessed(default)), default, rules, attribute)
    return found


def without_secrets(value: object, setting: Setting | None = None) -> object:
    """A setting's value as it may be shown: the secrets in it masked however deep they lie, unless they are empty."""
    if setting is not None and setting.secret and value not in (None, "", (), [], {}):
        return SECRET
    if attrs.has(type(value)):
        return {
            key: without_secrets(getattr(value, inner.attribute.name), inner)
            for key, inner in settings_of(type(value)).items()
        }
    if isinstance(value, Mapping):
        return {key: without_secrets(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        items = sorted(value, key=str) if isinstance(value, set | frozenset) else value
        return [without_secrets(item) for item in items]
    return value


def _annotations(cls: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(cls)
    except Exception:
        # A name that only a type checker sees. What needs no evaluation is still good.
        return {a.name: a.type for a in attrs.fields(cls) if a.type is not None and not isinstance(a.type, str)}


def _default(attribute: attrs.Attribute[Any]) -> Any:
    default = attribute.default
    factory = getattr(default, "factory", None)
    if not isinstance(default, attrs.Factory) or factory is None:  # type: ignore[arg-type]  # a class at run time
        return default
    # A default that depends on the instance cannot be known before there is one.
    return None if getattr(default, "takes_self", False) else factory()


def _guessed(default: object) -> Any:
    """The kind of a field without annotation, from its default."""
    return type(default) if isinstance(default, bool | int | float | str | list | dict) else Any
