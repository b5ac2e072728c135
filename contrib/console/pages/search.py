"""``/search``: topics and groups by a part of their names, and where to look for a message; ``/keys``: the keyboard."""

from __future__ import annotations

import asyncio
import re
from typing import Final

from verniermq.contrib.console.groups import group_list
from verniermq.contrib.console.topics import topic_list
from verniermq.contrib.console.view import Look, Shown, View

MOST: Final = 50
MESSAGE_ID: Final = re.compile(r"[0-9A-Fa-f]{32,56}")


async def search(look: Look) -> Shown:
    text = look.query.get("q", "").strip()
    wanted = text.lower()
    known, others = await asyncio.gather(topic_list(look.ask), group_list(look.ask)) if wanted else ({}, {})
    topics = sorted(name for name in known if wanted in name.lower())
    groups = sorted(name for name in others if wanted in name.lower())
    data = {
        "q": text,
        "topics": sorted(topics[:MOST], key=lambda name: name.lower() != wanted),
        "groups": sorted(groups[:MOST], key=lambda name: name.lower() != wanted),
        "more": max(0, len(topics) - MOST) + max(0, len(groups) - MOST),
        "is_id": MESSAGE_ID.fullmatch(text) is not None,
    }
    return Shown("Search", data, "verniermq topic list", is_same=False)


async def keys(look: Look) -> Shown:
    return Shown("Keys", {}, "verniermq --help", is_same=False)


VIEWS: Final = (
    View("/search", "search.html", search, live=False),
    View("/keys", "keys.html", keys, live=False),
)
