"""Which broker the clients talk to: VernierMQ, or Apache's to prove that the suite itself is right."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import pytest

from .apache import ApacheBroker
from .verniermq_process import VernierMQBroker

VARIABLE = "VERNIERMQ_INTEROP_TARGET"


class Target(Protocol):
    """A running broker and the name server that knows it."""

    broker: str
    namesrv: str
    store: Path

    def restart(self) -> None: ...

    def stop(self) -> None: ...

    def kill(self) -> None: ...


KINDS: dict[str, Callable[[Path], AbstractContextManager[Target]]] = {
    "verniermq": VernierMQBroker,
    "apache": ApacheBroker,
}


def fresh_target(folder: Path) -> AbstractContextManager[Target]:
    """A broker with an empty store in ``folder``, of the kind that the environment variable names."""
    kind = os.environ.get(VARIABLE, "verniermq")
    if kind not in KINDS:
        pytest.fail(f"{VARIABLE} is {kind!r}; it can be {' or '.join(KINDS)}", pytrace=False)
    return KINDS[kind](folder)
