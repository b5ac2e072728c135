"""``/dlq`` and ``/dlq/{name}``: messages that a group failed on too often, and why."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections import Counter
from typing import Any, Final

from verniermq.client.message import ReceivedMessage
from verniermq.contrib.console.bodies import summary
from verniermq.contrib.console.messages import everything, read_backward, real_topic
from verniermq.contrib.console.topics import topic_figures, topic_list, topic_queues
from verniermq.contrib.console.view import Look, NoSuchPage, Shown, View
from verniermq.kernel import DEAD_LETTER_PREFIX

REASON: Final = "RETRY_REASON_"
"""Before the number of an attempt: the property that says why it failed."""
MOST: Final = 100
AGES: Final = (("10 minutes", 600), ("1 hour", 3600), ("1 day", 86400), ("1 week", 7 * 86400), ("longer", None))


async def dead_letters(look: Look) -> Shown:
    topics = [row for row in (await topic_list(look.ask)).values() if row["kind"] == "dead letters"]
    rows = await asyncio.gather(*(topic_figures(look.ask, row) for row in topics))
    listed = [{**row, "group": row["name"].removeprefix(DEAD_LETTER_PREFIX)} for row in rows]
    data = {"rows": sorted(listed, key=lambda row: (-row["last_ms"], row["group"])),
            "total": sum(row["messages"] for row in listed)}  # fmt: skip
    return Shown("Dead letters", data, "verniermq dlq list")


async def letters(look: Look) -> Shown:
    group = look.path["name"]
    topic = DEAD_LETTER_PREFIX + group
    about = (await topic_list(look.ask)).get(topic)
    if about is None:
        raise NoSuchPage(f"there is no dead letter of group {group!r}")
    queues, _ = await topic_queues(look.ask, topic, about["brokers"])
    parts = await asyncio.gather(*(
        read_backward(look.ask, row["broker"], topic, row["queue"], row["first"], row["end"],
                      wanted=everything, most=MOST, budget=MOST)
        for row in queues
    ))  # fmt: skip
    found = sorted((one for part in parts for one in part.messages), key=lambda one: -one.store_timestamp)[:MOST]
    mask = look.console.config.mask
    rows = [{**summary(one, mask), "origin": real_topic(one), "reasons": reasons_of(one)} for one in found]
    last = Counter(row["reasons"][-1]["why"] if row["reasons"] else "not said" for row in rows)
    now = time.time() * 1000
    data = {
        "name": group,
        "rows": rows,
        "total": sum(row["messages"] for row in queues),
        "shown": len(rows),
        "why": [{"why": why, "count": count} for why, count in last.most_common(10)],
        "origins": [{"topic": topic, "count": count} for topic, count in Counter(
            row["origin"] for row in rows).most_common(10)],
        "ages": ages([now - row["stored_ms"] for row in rows]),
    }  # fmt: skip
    return Shown(f"Dead letters of {group}", data, f"verniermq dlq show {shlex.quote(group)}")


def ages(milliseconds: list[float]) -> list[dict[str, Any]]:
    """How many are how old, each counted once, in the first span that it fits into."""
    counts = []
    below = 0.0
    for label, seconds in AGES:
        limit = float("inf") if seconds is None else seconds * 1000.0
        counts.append({"age": label, "count": sum(below <= max(0.0, one) < limit for one in milliseconds)})
        below = limit
    return counts


def reasons_of(message: ReceivedMessage) -> list[dict[str, Any]]:
    numbers = [name.removeprefix(REASON) for name in message.properties if name.startswith(REASON)]
    return [
        {"attempt": number, "why": message.properties[f"{REASON}{number}"]}
        for number in sorted(int(text) for text in numbers if text.isascii() and text.isdecimal())
    ]


VIEWS: Final = (
    View("/dlq", "deadletters.html", dead_letters, "Dead letters"),
    View("/dlq/{name}", "letters.html", letters),
)
