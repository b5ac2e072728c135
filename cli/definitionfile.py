"""Definitions: the topics and groups of a cluster in a TOML file, compared with what the brokers have.

::

    [[topics]]
    name = "orders"
    queues = 8
    attributes = { "message.type" = "FIFO" }

    [[groups]]
    name = "billing"
    max_reconsume_times = 5
    brokers = ["broker-a"]      # without it, all brokers

What has its default is not written. Brokers that differ about a topic have an entry each.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import attrs

from verniermq.client.admin.definitions import Tables
from verniermq.client.admin.groups import GROUP_DEFAULTS
from verniermq.kernel import VernierMQError
from verniermq.kernel.config.toml import toml_key, toml_text

Kind = Literal["topic", "group"]

MEMBERS: Final[dict[Kind, dict[str, tuple[str, Any]]]] = {
    "topic": {
        "queues": ("readQueueNums", 8),
        "write_queues": ("writeQueueNums", 8),
        "perm": ("perm", 6),
        "order": ("order", False),
        "attributes": ("attributes", {}),
    },
    "group": {
        "consume": ("consumeEnable", True),
        "consume_from_min": ("consumeFromMinEnable", True),
        "broadcast": ("consumeBroadcastEnable", True),
        "orderly": ("consumeMessageOrderly", False),
        "retry_queues": ("retryQueueNums", 1),
        "max_reconsume_times": ("retryMaxTimes", 16),
        "consume_timeout_minutes": ("consumeTimeoutMinute", 15),
        "attributes": ("attributes", {}),
    },
}
"""Setting → RocketMQ's name of it, and its default. A topic has as many write queues as queues, unless it is said."""


class DefinitionError(VernierMQError):
    """A file of definitions that cannot be used."""


Definitions = dict[tuple[Kind, str, str], dict[str, Any]]
"""Kind, name and broker → settings, all of them."""


def from_tables(kind: Kind, tables: Tables) -> Definitions:
    """What brokers say."""
    found: Definitions = {}
    for broker, table in tables.items():
        for name, members in table.items():
            settings = {}
            for key, (member, default) in MEMBERS[kind].items():
                value = members.get(member)
                settings[key] = default if value is None else dict(value) if isinstance(default, dict) else value
            found[kind, name, broker] = settings
    return found


# --- the file --------------------------------------------------------------------------------


def write(definitions: Definitions, brokers: Sequence[str]) -> str:
    """The text of a file; the same definitions give the same text."""
    lines: list[str] = []
    for kind in MEMBERS:
        names = sorted({name for one, name, _ in definitions if one == kind})
        for name in names:
            for settings, where in _alike(kind, name, definitions):
                lines += ["", f"[[{kind}s]]", f"name = {toml_text(name)}"]
                lines += [f"{key} = {_toml(value)}" for key, value in _said(kind, settings).items()]
                if sorted(where) != sorted(brokers):
                    lines.append(f"brokers = {_toml(sorted(where))}")
    return "\n".join(lines).lstrip("\n") + "\n"


def _alike(kind: Kind, name: str, definitions: Definitions) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """The different settings that brokers have for one name, each with its brokers."""
    found: list[tuple[dict[str, Any], list[str]]] = []
    for (one, other, broker), settings in sorted(definitions.items(), key=lambda item: item[0]):
        if (one, other) == (kind, name):
            for known, where in found:
                if known == settings:
                    where.append(broker)
                    break
            else:
                found.append((settings, [broker]))
    return iter(found)


def _said(kind: Kind, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What is not as it would be without a word; the number of queues always is."""
    default = _complete(kind, {"queues": settings["queues"]} if kind == "topic" else {})
    return {key: value for key, value in settings.items() if key == "queues" or value != default[key]}


def _complete(kind: Kind, said: Mapping[str, Any]) -> dict[str, Any]:
    settings = {key: said.get(key, default) for key, (_, default) in MEMBERS[kind].items()}
    if kind == "topic" and "write_queues" not in said:
        settings["write_queues"] = settings["queues"]
    return settings


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{toml_key(key)} = {_toml(item)}" for key, item in sorted(value.items())) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return toml_text(value) if isinstance(value, str) else str(value)


def read(text: str, brokers: Sequence[str], where: str) -> Definitions:
    """
    Raises:
        DefinitionError: it is no such file, or names a broker that is not there.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DefinitionError(f"{where} is no TOML: {error}") from None
    unknown = sorted(set(document) - {"topics", "groups"})
    if unknown:
        raise DefinitionError(f"{where}: {unknown[0]!r} is unknown; expected [[topics]] and [[groups]]")
    found: Definitions = {}
    for kind in MEMBERS:
        entries = document.get(f"{kind}s", [])
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise DefinitionError(f"{where}: {kind}s is no list of tables; each begins with [[{kind}s]]")
        for entry in entries:
            name, said, chosen = _entry(kind, entry, brokers, where)
            for broker in chosen:
                if (kind, name, broker) in found:
                    raise DefinitionError(f"{where}: {kind} {name!r} of broker {broker!r} is there twice")
                found[kind, name, broker] = _complete(kind, said)
    return found


def _entry(
    kind: Kind, entry: Mapping[str, Any], brokers: Sequence[str], where: str
) -> tuple[str, dict[str, Any], Sequence[str]]:
    name = entry.get("name")
    if not isinstance(name, str) or not name:
        raise DefinitionError(f"{where}: an entry of {kind}s has no name")
    chosen = entry.get("brokers", brokers)
    if not isinstance(chosen, list | tuple) or not set(chosen) <= set(brokers):
        raise DefinitionError(f"{where}: {kind} {name!r}: brokers = {chosen!r}; there are {', '.join(brokers)}")
    said = {key: value for key, value in entry.items() if key not in ("name", "brokers")}
    for key, value in said.items():
        if key not in MEMBERS[kind]:
            known = ", ".join(MEMBERS[kind])
            raise DefinitionError(f"{where}: {kind} {name!r} has no setting {key!r}; it knows {known}, brokers")
        default = MEMBERS[kind][key][1]
        if type(value) is not type(default):
            raise DefinitionError(f"{where}: {kind} {name!r}: {key} = {value!r}, expected such as {_toml(default)}")
        if isinstance(value, dict) and not all(isinstance(text, str) for text in value.values()):
            raise DefinitionError(f"{where}: {kind} {name!r}: the values of attributes are texts")
    if kind == "topic" and "queues" not in said:
        raise DefinitionError(f"{where}: topic {name!r} does not say how many queues it has: queues = 8")
    return name, said, chosen


# --- comparing -------------------------------------------------------------------------------


@attrs.frozen
class Change:
    """What makes one broker have what the file says."""

    kind: Kind
    name: str
    broker: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None

    @property
    def action(self) -> str:
        return "create" if self.before is None else "delete" if self.after is None else "change"

    @property
    def differences(self) -> dict[str, tuple[Any, Any]]:
        before, after = self.before or {}, self.after or {}
        keys = dict.fromkeys([*before, *after])
        return {key: (before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)}

    def __str__(self) -> str:
        sign = {"create": "+", "change": "~", "delete": "-"}[self.action]
        if self.before is not None and self.after is not None:
            told = ", ".join(f"{key} {_toml(old)} -> {_toml(new)}" for key, (old, new) in self.differences.items())
        else:
            said = _said(self.kind, self.after or self.before or {})
            told = ", ".join(f"{key} {_toml(value)}" for key, value in said.items())
        return f"{sign} {self.kind} {self.name} on {self.broker}{': ' if told else ''}{told}"

    def as_json(self) -> dict[str, Any]:
        return {"action": self.action, **attrs.asdict(self)}

    def attribute_changes(self) -> dict[str, str]:
        """What an update says of attributes: ``+name`` → value, or ``-name``."""
        before, after = (self.before or {}).get("attributes", {}), (self.after or {}).get("attributes", {})
        changed = {f"+{key}": value for key, value in after.items() if before.get(key) != value}
        return changed | {f"-{key}": "" for key in before if key not in after}

    def members(self, known: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """By RocketMQ's names, for an update. What a file cannot say, a retry policy for one, stays as ``known``."""
        assert self.after is not None
        found = {member: self.after[key] for key, (member, _) in MEMBERS[self.kind].items() if key != "attributes"}
        if self.kind == "topic":
            return found
        kept = {member: value for member, value in (known or {}).items() if value is not None}
        return {**GROUP_DEFAULTS, **kept, **found, "attributes": self.attribute_changes()}


def compare(there: Definitions, wanted: Definitions, *, prune: bool) -> list[Change]:
    """What has to be done, topics first; with ``prune`` what the file does not have is deleted."""
    changes = []
    for key in sorted({*there, *wanted}, key=lambda key: (list(MEMBERS).index(key[0]), key)):
        before, after = there.get(key), wanted.get(key)
        if before != after and (after is not None or prune):
            changes.append(Change(*key, before, after))
    return changes
