"""``/groups`` and ``/groups/{name}``."""

from __future__ import annotations

import asyncio
import shlex
import time
from functools import partial
from typing import Final

from verniermq.contrib.console.chart import chart
from verniermq.contrib.console.groups import behind_ms, group_figures, group_list, group_members, group_queues, pace
from verniermq.contrib.console.listing import listing
from verniermq.contrib.console.view import Look, NoSuchPage, Shown, View

SORTS: Final = {"name": False, "lag": True, "behind_ms": True, "members": True, "per_second": True, "retrying": True}


async def groups(look: Look) -> Shown:
    found = await group_list(look.ask)
    show_all = look.query.get("all") == "1"
    rows = [row for row in found.values() if show_all or not row["system"]]
    data = await listing(rows, look.query, partial(group_figures, look.ask), sorts=SORTS, usual="lag",
                         known=lambda row: {**row, "lag": look.console.history.last(("lag", row["name"]))})  # fmt: skip
    return Shown("Groups", {**data, "all": show_all, "hidden": len(found) - len(rows)}, "verniermq group list")


async def group(look: Look) -> Shown:
    name = look.path["name"]
    about = (await group_list(look.ask)).get(name)
    (queues, rate), live = await asyncio.gather(group_queues(look.ask, name), group_members(look.ask, name))
    if about is None and not queues and not live["members"]:
        raise NoSuchPage(f"there is no group {name!r}; the page Groups lists them")
    lag = sum(row["lag"] for row in queues)
    only_waiting = look.query.get("waiting") == "1"
    data = {
        **(about or {"name": name}),
        **live,
        "queues": [row for row in queues if row["lag"] or not only_waiting],
        "only_waiting": only_waiting,
        "most_lag": max((row["lag"] for row in queues), default=0),
        "lag": lag,
        "chart": chart(
            look.console.history,
            {"waiting": ("lag", name)},
            look.query.get("span", "15m"),
            time.time(),
            newest={"waiting": lag},
        ),
        "behind_ms": behind_ms(queues),
        **pace(lag, rate, len(live["members"])),
    }
    return Shown(f"Group {name}", data, f"verniermq group show {shlex.quote(name)}")


VIEWS: Final = (
    View("/groups", "groups.html", groups, "Groups"),
    View("/groups/{name}", "group.html", group),
)
