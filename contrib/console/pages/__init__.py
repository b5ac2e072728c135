"""The pages of the console, in the order of its menu."""

from __future__ import annotations

from typing import Final

from verniermq.contrib.console.pages import (
    audit,
    cluster,
    deadletters,
    groups,
    messages,
    overview,
    pending,
    plugins,
    search,
    topics,
    traffic,
)
from verniermq.contrib.console.view import View

VIEWS: Final[tuple[View, ...]] = (
    *overview.VIEWS, *cluster.VIEWS, *topics.VIEWS, *groups.VIEWS, *messages.VIEWS, *deadletters.VIEWS,
    *pending.VIEWS, *traffic.VIEWS, *plugins.VIEWS, *audit.VIEWS, *search.VIEWS,
)  # fmt: skip
