"""Rights as RocketMQ 5 writes them down, and what they decide (RocketMQ: ``AclAuthorizationHandler``).

An entry allows or denies some actions on a resource, perhaps from some addresses only::

    Topic:orders      Pub, Sub     Allow
    Group:billing-*   Sub          Allow   from 10.0.0.0/8
    *                 All          Deny

Of the entries that fit a request, one decides: an entry for a kind of resource goes before one for all kinds (``*``), a
whole name before a prefix, a longer prefix before a shorter one, a prefix before all names (``Topic:*``); of equals
the one that denies. The entries of the policy ``Default`` are looked at only when none of ``Custom`` fits. When no
entry fits, the request is denied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

import attrs

from verniermq.kernel import InvalidParameter
from verniermq.plugins.acl.accounts import any_of

CUSTOM: Final = "Custom"
DEFAULT: Final = "Default"
ALLOW: Final = "Allow"
DENY: Final = "Deny"
ALL: Final = "All"
KINDS: Final = ("Cluster", "Namespace", "Topic", "Group")
ACTIONS: Final = (ALL, "Pub", "Sub", "Create", "Update", "Delete", "Get", "List")
MOST_ENTRIES: Final = 1000
"""Of one user: they are looked through for each request that is not known yet."""


def _one_of(what: str, text: object, known: Iterable[str]) -> str:
    """The known word that was written, in whichever case."""
    words = {word.lower(): word for word in known}
    found = words.get(text.lower()) if isinstance(text, str) else None
    if found is None:
        raise InvalidParameter(f"{what} {text!r:.80}; expected one of {', '.join(words.values())}")
    return found


class Resource(NamedTuple):
    """What an entry is about; the order of the fields is the order in which entries decide."""

    is_everything: bool
    """``*``: all kinds."""
    rank: int
    """0: a whole name, 1: a prefix, 2: all names."""
    length: int
    """Of a prefix, negative: the longer one comes first."""
    kind: str
    name: str

    @classmethod
    def parse(cls, text: object) -> Resource:
        """
        Raises:
            InvalidParameter: it is no resource.
        """
        if text == "*":
            return cls(True, 2, 0, "", "")
        kind, colon, name = text.partition(":") if isinstance(text, str) else ("", "", "")
        if not colon or not name or "*" in name[:-1]:
            raise InvalidParameter(f"resource {text!r:.140}; expected such as Topic:orders, Group:billing-* or *")
        kind = _one_of("resource of kind", kind, KINDS)
        if name == "*":
            return cls(False, 2, 0, kind, "")
        if name.endswith("*"):
            return cls(False, 1, 1 - len(name), kind, name[:-1])
        return cls(False, 0, 0, kind, name)

    def __str__(self) -> str:
        return "*" if self.is_everything else f"{self.kind}:{self.name}{'*' if self.rank else ''}"

    def fits(self, kind: str, name: str) -> bool:
        if self.is_everything:
            return True
        if kind != self.kind:
            return False
        return name == self.name if not self.rank else name.startswith(self.name)


@attrs.frozen
class Entry:
    """One line of a policy."""

    resource: Resource
    actions: frozenset[str]
    decision: str
    source_ips: tuple[str, ...] = ()
    _comes_from: Callable[[str], bool] = attrs.field(init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "_comes_from", any_of(self.source_ips) if self.source_ips else lambda address: True)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Entry:
        """
        Raises:
            InvalidParameter: a member is missing or wrong.
        """
        resource = Resource.parse(data.get("resource"))
        actions, addresses = data.get("actions"), data.get("sourceIps")
        if not isinstance(actions, list) or not actions:
            raise InvalidParameter(
                f"resource {resource}: actions {actions!r:.80}; expected some of {', '.join(ACTIONS)}"
            )
        if not isinstance(addresses or [], list) or not all(isinstance(one, str) for one in addresses or ()):
            raise InvalidParameter(f"resource {resource}: sourceIps {addresses!r:.80}; expected a list of addresses")
        decision = _one_of(f"resource {resource}: decision", data.get("decision"), (ALLOW, DENY))
        try:
            known = frozenset(_one_of(f"resource {resource}: action", action, ACTIONS) for action in actions)
            return cls(resource, known, decision, tuple(addresses or ()))
        except ValueError as error:
            raise InvalidParameter(f"resource {resource}: {error} is no address to allow or deny") from error

    def as_json(self) -> dict[str, Any]:
        return {
            "actions": sorted(self.actions),
            "decision": self.decision,
            "resource": str(self.resource),
            "sourceIps": list(self.source_ips),
        }

    @property
    def order(self) -> tuple[Resource, bool]:
        return self.resource, self.decision == ALLOW

    def fits(self, kind: str, name: str, actions: frozenset[str], address: str) -> bool:
        wanted = ALL in self.actions or not actions.isdisjoint(self.actions)
        return wanted and self.resource.fits(kind, name) and self._comes_from(address)


@attrs.frozen
class Policies:
    """What one user may do: entries by policy, each resource once."""

    entries: Mapping[str, Mapping[Resource, Entry]] = attrs.field(factory=dict)

    @classmethod
    def from_json(cls, policies: object) -> Policies:
        """
        Raises:
            InvalidParameter: there is none, or one of them is none.
        """
        if not isinstance(policies, list) or not policies:
            raise InvalidParameter(f"policies {policies!r:.80}; expected a list of policies with entries")
        table: dict[str, dict[Resource, Entry]] = {}
        for policy in policies:
            entries = policy.get("entries") if isinstance(policy, dict) else None
            if not isinstance(entries, list) or not entries or not all(isinstance(one, dict) for one in entries):
                raise InvalidParameter(f"a policy without entries: {policy!r:.80}")
            kind = _one_of("policyType", policy.get("policyType") or CUSTOM, (CUSTOM, DEFAULT))
            parsed = [Entry.from_json(entry) for entry in entries]
            table.setdefault(kind, {}).update({entry.resource: entry for entry in parsed})
        return cls(table)

    def as_json(self, resource_filter: str = "") -> list[dict[str, Any]]:
        listed = []
        for kind, table in self.entries.items():
            entries = [entry.as_json() for resource, entry in table.items() if resource_filter in str(resource)]
            if entries:
                listed.append({"entries": entries, "policyType": kind})
        return listed

    def changed(self, changes: Policies) -> Policies:
        """With entries added, or put in the place of those for the same resource.

        Raises:
            InvalidParameter: there would be too many.
        """
        table = {kind: dict(entries) for kind, entries in self.entries.items()}
        for kind, entries in changes.entries.items():
            table.setdefault(kind, {}).update(entries)
        if sum(map(len, table.values())) > MOST_ENTRIES:
            raise InvalidParameter(
                f"a user with more than {MOST_ENTRIES} entries; use prefixes, such as Topic:orders-*"
            )
        return Policies(table)

    def without(self, kind: str, resource: Resource) -> Policies:
        table = {name: dict(entries) for name, entries in self.entries.items()}
        table.get(kind, {}).pop(resource, None)
        return Policies({name: entries for name, entries in table.items() if entries})

    def decide(self, kind: str, name: str, actions: frozenset[str], address: str) -> Entry | None:
        """The entry that decides; ``None``: none fits, so it is denied."""
        for policy in (CUSTOM, DEFAULT):
            fitting = [one for one in self.entries.get(policy, {}).values() if one.fits(kind, name, actions, address)]
            if fitting:
                return min(fitting, key=lambda entry: entry.order)
        return None
