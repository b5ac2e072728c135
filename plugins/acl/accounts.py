"""Who may do what: accounts as ``broker.toml`` has them, made ready to be asked (RocketMQ: ``plain_acl.yml``).

A permission is ``"PUB"``, ``"SUB"``, ``"PUB|SUB"`` or ``"DENY"``. Of several names that fit, the whole name goes before
one with a star at its end, and a longer one of those before a shorter one.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Final

import attrs

from verniermq.kernel import setting
from verniermq.kernel.requests import EITHER, PUB, SUB, Action

PERMISSIONS: Final[Mapping[str, frozenset[Action]]] = {
    "DENY": frozenset(),
    "PUB": PUB,
    "SUB": SUB,
    "PUB|SUB": EITHER,
    "SUB|PUB": EITHER,
}
SHORTEST_SECRET: Final = 7
"""Characters; RocketMQ refuses shorter ones too."""


def _permissions(table: Mapping[str, str]) -> str | None:
    fits = all(value in PERMISSIONS for value in table.values()) and all("*" not in name[:-1] for name in table)
    return None if fits else 'names, with a star at the end at most, each with "PUB", "SUB", "PUB|SUB" or "DENY"'


def _permission(text: str) -> str | None:
    return None if text in PERMISSIONS else '"PUB", "SUB", "PUB|SUB" or "DENY"'


def _secret(text: str) -> str | None:
    return None if len(text) >= SHORTEST_SECRET else f"{SHORTEST_SECRET} characters or more"


def are_addresses(texts: Iterable[str]) -> str | None:
    try:
        any_of(texts)
    except ValueError:
        return 'addresses, such as "10.0.0.5", "10.0.0.0/8", "192.168.*.*" or "*"'
    return None


@attrs.frozen
class Account:
    """``[plugins.acl.accounts.<access key>]``"""

    secret: str = setting(attrs.NOTHING, "What its requests are signed with.", secret=True, check=_secret)
    admin: bool = setting(False, "Whether it may do everything: topics, groups, offsets of others, settings.")
    whitelist: tuple[str, ...] = setting((), "Addresses from which it need not sign.", check=are_addresses)
    topics: dict[str, str] = setting({}, 'What it may do with which topics: orders = "PUB|SUB".', check=_permissions)
    groups: dict[str, str] = setting(
        {}, 'Which groups it may be, as a producer or a consumer: billing = "PUB|SUB".', check=_permissions
    )
    default_topic: str = setting("DENY", "What it may do with all other topics.", check=_permission)
    default_group: str = setting("DENY", "What it may do as all other groups.", check=_permission)


class Rights:
    """What one account may do with topics, or as groups."""

    def __init__(self, table: Mapping[str, str], default: str) -> None:
        self._exact = {name: PERMISSIONS[text] for name, text in table.items() if not name.endswith("*")}
        starred = [(name[:-1], PERMISSIONS[text]) for name, text in table.items() if name.endswith("*")]
        self._starred = sorted(starred, key=lambda pair: -len(pair[0]))
        self._default = PERMISSIONS[default]

    def of(self, name: str) -> frozenset[Action]:
        exact = self._exact.get(name)
        if exact is not None:
            return exact
        return next((rights for prefix, rights in self._starred if name.startswith(prefix)), self._default)


class Principal:
    """An account, ready to be asked."""

    def __init__(self, key: str, account: Account) -> None:
        self.key = key
        self.secret = account.secret.encode()
        self.is_admin = account.admin
        self.trusts = any_of(account.whitelist)
        self.rights = {
            "topic": Rights(account.topics, account.default_topic),
            "group": Rights(account.groups, account.default_group),
        }
        self.how_to_administer = f"set admin = true in [plugins.acl.accounts.{key}]"

    def decides_about(self, kind: str, actions: frozenset[Action]) -> bool:
        """Whether its table has a word for any of these; it has none for an operator's."""
        return kind in self.rights and not actions.isdisjoint(EITHER)

    def refusal(self, kind: str, name: str, actions: frozenset[Action], address: str) -> str | None:
        """Why it may not do any of these with a topic or a group, and what to do; ``None`` if it may."""
        if self.rights[kind].of(name) & actions:
            return None
        rights = " or ".join(sorted(action.name for action in actions & EITHER))
        return (
            f"account {self.key!r} may not {rights} with {kind} {name!r:.140}; allow it under "
            f"{kind}s in [plugins.acl.accounts.{self.key}]"
        )


def any_of(patterns: Iterable[str]) -> Callable[[str], bool]:
    """A test for addresses.

    Raises:
        ValueError: a pattern is none.
    """
    tests = [_address_test(pattern.strip()) for pattern in patterns]
    if not tests:
        return lambda address: False
    return lambda address: any(test(address) for test in tests)


def _address_test(pattern: str) -> Callable[[str], bool]:
    if pattern == "*":
        return lambda address: True
    if "*" in pattern:
        if not re.fullmatch(r"(\d{1,3}|\*)(\.(\d{1,3}|\*)){3}", pattern):
            raise ValueError(pattern)
        shape = re.compile(pattern.replace(".", r"\.").replace("*", r"\d{1,3}"))
        return lambda address: shape.fullmatch(address) is not None
    network = ipaddress.ip_network(pattern, strict=False)

    def is_inside(address: str) -> bool:
        parsed = _parsed(address)
        return parsed is not None and parsed in network

    return is_inside


@lru_cache(maxsize=1024)
def _parsed(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(address)
    except ValueError:
        return None
