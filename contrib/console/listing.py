"""Long lists, cut on the server: filtered, sorted and divided into pages, so that a browser gets a screenful."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final

import anyio

from verniermq.contrib.console.view import BadAddress

PER_PAGE: Final = 50
SORTED_BY_FIGURES: Final = 200
"""Of longer lists only what is shown is asked for, so they can be sorted by what the list itself says."""

Row = dict[str, Any]


async def listing(
    rows: Iterable[Row], query: Mapping[str, str], figures: Callable[[Row], Awaitable[Row]], *,
    sorts: Mapping[str, bool], usual: str, known: Callable[[Row], Row] = lambda row: row,
) -> dict[str, Any]:  # fmt: skip
    """One page of a list.

    Args:
        figures: completes a row, by asking the brokers
        sorts: what it may be sorted by → whether the largest come first
        known: completes a row by what was seen of it last, for lists that are too long to ask about each row

    Raises:
        BadAddress: the query asks for an order or a page that there is none of.
    """
    wanted = query.get("q", "").strip()
    sort = query.get("sort") or usual
    if sort not in sorts:
        raise BadAddress(f"sort={sort!r}: expected one of {', '.join(sorts)}")
    found = [row for row in rows if wanted.lower() in row["name"].lower()]
    page = _page(query)
    pages = max(1, -(-len(found) // PER_PAGE))
    page = min(page, pages)
    is_short = len(found) <= SORTED_BY_FIGURES and sort != "name"
    found = await _each(figures, found) if is_short else [known(row) for row in found]
    found.sort(key=lambda row: row["name"])
    found.sort(key=lambda row: row.get(sort) or (0 if sorts[sort] else ""), reverse=sorts[sort])
    shown = found[(page - 1) * PER_PAGE : page * PER_PAGE]
    if not is_short:
        shown = await _each(figures, shown)
    return {"rows": shown, "total": len(found), "page": page, "pages": pages, "sort": sort, "q": wanted}


def _page(query: Mapping[str, str]) -> int:
    text = query.get("page", "1")
    if not text.isascii() or not text.isdecimal() or len(text) > 6:
        raise BadAddress(f"page={text[:20]!r}: expected a number")
    return max(1, int(text))


async def _each(figures: Callable[[Row], Awaitable[Row]], rows: list[Row]) -> list[Row]:
    done: list[Row] = list(rows)

    async def one(number: int) -> None:
        done[number] = await figures(rows[number])

    async with anyio.create_task_group() as tasks:
        for number in range(len(rows)):
            tasks.start_soon(one, number)
    return done
