"""The pages of the console, in the order of its menu."""

from __future__ import annotations

from typing import Final

from verniermq.contrib.console.pages import cluster, groups, overview, topics
from verniermq.contrib.console.view import View

VIEWS: Final[tuple[View, ...]] = (*overview.VIEWS, *cluster.VIEWS, *topics.VIEWS, *groups.VIEWS)
