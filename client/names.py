"""Namespaces: ``namespace%name`` on the wire, plain names in the program (RocketMQ: ``NamespaceUtil``)."""

from __future__ import annotations

from verniermq.kernel import DEAD_LETTER_PREFIX, RETRY_PREFIX


def with_namespace(namespace: str, name: str) -> str:
    """A topic or group as brokers know it; prefixes of retry topics and dead letters stay in front."""
    if not namespace:
        return name
    for prefix in (RETRY_PREFIX, DEAD_LETTER_PREFIX):
        if name.startswith(prefix):
            return prefix + with_namespace(namespace, name.removeprefix(prefix))
    return name if name.startswith(f"{namespace}%") else f"{namespace}%{name}"


def without_namespace(namespace: str, name: str) -> str:
    """The same as the program knows it."""
    if not namespace:
        return name
    for prefix in (RETRY_PREFIX, DEAD_LETTER_PREFIX):
        if name.startswith(prefix):
            return prefix + without_namespace(namespace, name.removeprefix(prefix))
    return name.removeprefix(f"{namespace}%")
