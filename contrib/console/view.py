"""An address and what it shows: the same data for a browser, as JSON, and live."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from verniermq.contrib.console.inquiry import Inquiry

if TYPE_CHECKING:
    from verniermq.contrib.console.console import Console


class BadAddress(Exception):
    """An address that asks for what cannot be; the text says why."""

    status = 400


class NoSuchPage(BadAddress):
    """There is no such topic, group, message or page."""

    status = 404


@attrs.frozen
class Look:
    """Somebody looks at a page."""

    console: Console
    ask: Inquiry
    path: Mapping[str, str]
    """The parts of the address that differ from page to page, such as the name of a topic."""
    query: Mapping[str, str]


@attrs.frozen
class Shown:
    """What a page shows."""

    title: str
    data: Mapping[str, Any]
    command: str
    """The ``verniermq`` command that says the same, or the one nearest to it; empty where something is wrong."""
    is_same: bool = True


@attrs.frozen
class View:
    """One address of the console."""

    path: str
    """As Starlette writes it, with names in braces."""
    template: str
    show: Callable[[Look], Awaitable[Shown]]
    menu: str = ""
    """How the menu calls it; a page without is reached by links."""
    live: bool = True
    follow: Callable[[Look], AsyncIterator[Mapping[str, Any]]] | None = None
    """What comes anew while somebody looks, as rows on top of a table, instead of the whole page again."""
