"""What a hook is, said on its specification: its shape, and how it is called.

Three shapes, and the name tells which:

- **A question** (``compile_filter``): the first plugin with an answer decides, ``None`` means "not mine".
- **An announcement** (``messages_dispatched``, past tense): all plugins are called, in order.
- **A change** (``before_append``): a chance to edit the object in place, or to refuse by raising ``RequestRefused``.

The host, the reference in ``docs/hooks.md`` and the tests read these facts from here and from nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar

import pluggy

PROJECT: Final = "verniermq"

Shape: TypeAlias = Literal["question", "announcement", "change"]
_Function = TypeVar("_Function", bound=Callable[..., Any])

_KIND: Final = "verniermq_kind"
_pluggy_spec = pluggy.HookspecMarker(PROJECT)


class HookKind(NamedTuple):
    """The facts about one hook."""

    shape: Shape
    may_wait: bool = False
    """An implementation may be ``async def``; each hook says when it is awaited. Otherwise it is a plain ``def``."""
    hot: bool = False
    """It lies on the path of every message."""
    at_start: bool = False
    """It belongs to the start of a broker; a plugin that fails closed there keeps the broker from starting."""
    guards: bool = False
    """A plugin that fails closed goes on refusing here after it was switched off."""

    @property
    def answered(self) -> bool:
        """Whether somebody waits for the answer, and is told of a refusal."""
        return self.shape != "announcement"


def hookspec(
    shape: Shape, *, may_wait: bool = False, hot: bool = False, at_start: bool = False
) -> Callable[[_Function], _Function]:
    """Mark a function as the specification of a hook. Its docstring says when it is called and what an answer means.

    A plugin that brings hooks of its own lists their specifications in its ``Declaration``, and calls them through
    ``broker.hooks``::

        @hookspec("announcement")
        def log_trimmed(min_offset: int) -> None:
            \"""The log now begins at ``min_offset``.\"""

        broker.hooks.announce(log_trimmed, 4096)
    """
    kind = HookKind(shape, may_wait, hot, at_start, guards=shape == "change")

    def mark(function: _Function) -> _Function:
        setattr(function, _KIND, kind)
        _pluggy_spec(function, firstresult=shape == "question")
        return function

    return mark


def kind_of(specification: Callable[..., Any]) -> HookKind | None:
    """What a specification says of itself; ``None`` for a function that is none."""
    return getattr(specification, _KIND, None)


def specifications_in(namespace: Any) -> dict[str, Callable[..., Any]]:
    """The hooks that a module specifies, by name, in the order of its page."""
    return {name: value for name, value in vars(namespace).items() if kind_of(value) is not None}
