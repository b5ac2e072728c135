"""``/cluster``: name servers, brokers, and what a broker is set to."""

from __future__ import annotations

from typing import Final

from verniermq.contrib.console.brokers import broker_figures, broker_settings
from verniermq.contrib.console.view import Look, NoSuchPage, Shown, View


async def cluster(look: Look) -> Shown:
    brokers = await broker_figures(look.ask)
    return Shown("Cluster", {"brokers": brokers, "clusters": sorted({row["cluster"] for row in brokers})},
                 "verniermq cluster")  # fmt: skip


async def broker(look: Look) -> Shown:
    name = look.path["name"]
    wanted = [row for row in await broker_figures(look.ask) if row["name"] == name]
    if not wanted:
        raise NoSuchPage(f"there is no broker {name!r}; the page Cluster lists them")
    settings = {} if wanted[0]["trouble"] else await broker_settings(look.ask, wanted[0]["address"])
    return Shown(f"Broker {name}", {"broker": wanted[0], "copies": wanted[1:], "settings": settings},
                 "verniermq cluster", is_same=False)  # fmt: skip


VIEWS: Final = (
    View("/cluster", "cluster.html", cluster, "Cluster"),
    View("/cluster/{name}", "broker.html", broker),
)
