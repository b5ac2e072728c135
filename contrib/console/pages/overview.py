"""``/``: is everything well, and if not, where to look."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from verniermq.contrib.console.brokers import broker_figures
from verniermq.contrib.console.chart import chart
from verniermq.contrib.console.groups import group_figures, group_list
from verniermq.contrib.console.topics import topic_list
from verniermq.contrib.console.view import Look, Shown, View

WORST: Final = 5
LOOKED_AT: Final = 100
"""Groups that are asked about; of more, those that were furthest behind when the history was last told of them. Of the
others, what the history was told counts."""


async def overview(look: Look) -> Shown:
    brokers, topics, known = await asyncio.gather(broker_figures(look.ask), topic_list(look.ask), group_list(look.ask))
    groups = [row for row in known.values() if not row["system"]]
    history = look.console.history
    if len(groups) > LOOKED_AT:
        groups.sort(key=lambda row: -history.last(("lag", row["name"])))
    asked = await asyncio.gather(*(group_figures(look.ask, row) for row in groups[:LOOKED_AT]))
    others = groups[LOOKED_AT:]
    behind = sorted((row for row in asked if row["lag"]), key=lambda row: (-row["behind_ms"], -row["lag"]))
    rates = {label: sum(row[f"{label}_per_second"] for row in brokers) for label in ("in", "out")}
    data = {
        "brokers": brokers,
        "in_per_second": rates["in"],
        "out_per_second": rates["out"],
        "in_today": sum(row["in_today"] for row in brokers),
        "out_today": sum(row["out_today"] for row in brokers),
        "topics": sum(row["kind"] == "normal" for row in topics.values()),
        "dead_letter_topics": sum(row["kind"] == "dead letters" for row in topics.values()),
        "groups": len(groups),
        "looked_at": len(asked),
        "online": sum(bool(row["members"]) for row in asked),
        "lag": sum(row["lag"] for row in asked) + round(sum(history.last(("lag", row["name"])) for row in others)),
        "worst": behind[:WORST],
        "chart": chart(
            history, {"in": ("in", ""), "out": ("out", "")}, look.query.get("span", "15m"), time.time(), newest=rates
        ),
    }
    return Shown("Overview", data, "verniermq cluster")


VIEWS: Final = (View("/", "overview.html", overview, "Overview"),)
