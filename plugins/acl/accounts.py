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

PUB: Final = "PUB"
SUB: Final = "SUB"
PERMISSIONS: Final[Mapping[str, frozenset[str]]] = {
    "DENY": frozenset(),
    PUB: frozenset({PUB}),
    SUB: frozenset({SUB}),
    "PUB|SUB": frozenset({PUB, SUB}),
    "SUB|PUB": frozenset({PUB, SUB}),
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
    groups: dict[str, str] = setting({}, 'Which consumer groups it may be: billing = "SUB".', check=_permissions)
    default_topic: str = setting("DENY", "What it may do with all other topics.", check=_permission)
    default_group: str = setting("DENY", "What it may do as all other groups.", check=_permission)


class Rights:
    """What one account may do with topics, or as groups."""

    def __init__(self, table: Mapping[str, str], default: str) -> None:
        self._exact = {name: PERMISSIONS[text] for name, text in table.items() if not name.endswith("*")}
        starred = [(name[:-1], PERMISSIONS[text]) for name, text in table.items() if name.endswith("*")]
        self._starred = sorted(starred, key=lambda pair: -len(pair[0]))
        self._default = PERMISSIONS[default]

    def of(self, name: str) -> frozenset[str]:
        exact = self._exact.get(name)
        if exact is not None:
            return exact
        return next((rights for prefix, rights in self._starred if name.startswith(prefix)), self._default)


class Member:
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
