"""``/topics`` and ``/topics/{name}``."""

from __future__ import annotations

import asyncio
import shlex
import time
from functools import partial
from typing import Any, Final

from verniermq.contrib.console.chart import chart
from verniermq.contrib.console.groups import behind_ms, group_members, group_queues
from verniermq.contrib.console.listing import listing
from verniermq.contrib.console.topics import groups_of, topic_figures, topic_list, topic_queues, with_first_times
from verniermq.contrib.console.view import Look, NoSuchPage, Shown, View

SORTS: Final = {"name": False, "messages": True, "per_second": True, "last_ms": True, "write_queues": True}
MOST_GROUPS: Final = 50
"""Of one topic, with figures; the names of all are shown."""


async def topics(look: Look) -> Shown:
    found = await topic_list(look.ask)
    show_all = look.query.get("all") == "1"
    rows = [row for row in found.values() if show_all or row["kind"] == "normal"]
    data = await listing(rows, look.query, partial(topic_figures, look.ask), sorts=SORTS, usual="name")
    hidden = len(found) - len(rows)
    return Shown("Topics", {**data, "all": show_all, "hidden": hidden}, "verniermq topic list")


async def topic(look: Look) -> Shown:
    name = look.path["name"]
    about = (await topic_list(look.ask)).get(name)
    if about is None:
        raise NoSuchPage(f"there is no topic {name!r}; the page Topics lists them")
    (queues, rate), names = await asyncio.gather(
        topic_queues(look.ask, name, about["brokers"]), groups_of(look.ask, name, about["brokers"])
    )
    queues = await with_first_times(look.ask, name, queues)
    groups = await asyncio.gather(*(_group(look, group, name) for group in names[:MOST_GROUPS]))
    data = {
        **about,
        "queues": queues,
        "messages": sum(row["messages"] for row in queues),
        "most_messages": max((row["messages"] for row in queues), default=0),
        "per_second": rate,
        "chart": chart(look.console.history, {"in": ("topic", name)}, look.query.get("span", "15m"), time.time()),
        "groups": sorted(groups, key=lambda row: (-row["lag"], row["name"])),
        "more_groups": names[MOST_GROUPS:],
    }
    return Shown(f"Topic {name}", data, f"verniermq topic show {shlex.quote(name)}")


async def _group(look: Look, group: str, topic: str) -> dict[str, Any]:
    (queues, _), live = await asyncio.gather(group_queues(look.ask, group, topic), group_members(look.ask, group))
    return {
        "name": group,
        "members": len(live["members"]),
        "lag": sum(row["lag"] for row in queues),
        "behind_ms": behind_ms(queues),
        "filter": live["subscriptions"].get(topic, ""),
    }


VIEWS: Final = (
    View("/topics", "topics.html", topics, "Topics"),
    View("/topics/{name}", "topic.html", topic),
)
