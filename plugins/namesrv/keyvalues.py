"""The key-value table of a name server: orders of topics, what operators keep there (RocketMQ: ``KVConfigManager``).

It is in memory, and without accounts anybody may write to it, so that it has room for so much and no more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from verniermq.kernel import NoPermission

MOST_ENTRIES: Final = 10_000
MOST_CHARACTERS: Final = 4 * 1024 * 1024
"""Of all keys, values and names of namespaces together."""


class KeyValueTable:
    def __init__(self) -> None:
        self._namespaces: dict[str, dict[str, str]] = {}
        self._entries = 0
        self._characters = 0

    def namespace(self, name: str) -> Mapping[str, str] | None:
        """All of a namespace, if there is one."""
        return self._namespaces.get(name)

    def get(self, namespace: str, key: str) -> str | None:
        return self._namespaces.get(namespace, {}).get(key)

    def put(self, namespace: str, key: str, value: str) -> None:
        """
        Raises:
            NoPermission: there is no room for it.
        """
        old = self.get(namespace, key)
        entries = self._entries + (old is None)
        characters = self._characters - _size(namespace, key, old) + _size(namespace, key, value)
        if entries > MOST_ENTRIES or characters > MOST_CHARACTERS:
            raise NoPermission(
                f"the key-value table has no room for {key!r:.80} in namespace {namespace!r:.80}: it holds "
                f"{MOST_ENTRIES} entries of {MOST_CHARACTERS} characters in all; delete some first"
            )
        self._namespaces.setdefault(namespace, {})[key] = value
        self._entries, self._characters = entries, characters

    def delete(self, namespace: str, key: str) -> None:
        entries = self._namespaces.get(namespace, {})
        if key in entries:
            self._entries -= 1
            self._characters -= _size(namespace, key, entries.pop(key))
        if not entries:
            self._namespaces.pop(namespace, None)


def _size(namespace: str, key: str, value: str | None) -> int:
    return 0 if value is None else len(namespace) + len(key) + len(value)
