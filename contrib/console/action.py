"""Something that changes a cluster: first a plan, then, if it is confirmed, what the plan says and nothing else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import attrs

from verniermq.contrib.console.view import Look


class ActionRefused(Exception):
    """An action that cannot be; the text says why."""


@attrs.frozen
class ActionPlan:
    """What would happen."""

    what: str
    """In one line."""
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[Any]] = ()
    warning: str = ""
    steps: Any = None
    """What is done if it is confirmed, as JSON: it travels with the form, so that the preview is what happens."""
    typed: str = ""
    """What has to be typed to confirm it."""
    back: str = "/"


@attrs.frozen
class ConsoleAction:
    """An action by its name in ``/do/{name}``."""

    name: str
    title: str
    plan: Callable[[Look, Mapping[str, str]], Awaitable[ActionPlan]]
    run: Callable[[Look, Mapping[str, str], Any], Awaitable[str]]
    """Does the steps of a plan, and says what came of it."""
