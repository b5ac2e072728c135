"""What brokers say of themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from verniermq.contrib.console.inquiry import BrokerPlace, Inquiry
from verniermq.kernel import Command, RemotingError, RequestCode

SECRET: Final = ("secret", "password", "token", "key")
"""A setting whose name has one of these in it is not shown."""


async def broker_figures(ask: Inquiry) -> list[dict[str, Any]]:
    """Every broker with its figures; one that does not answer says why."""

    async def one(place: BrokerPlace) -> dict[str, Any]:
        figures: Mapping[str, str] = {}
        trouble = ""
        try:
            figures = (await ask.json(place.address, RequestCode.GET_BROKER_RUNTIME_INFO)).get("table") or {}
        except RemotingError as error:
            trouble = str(error)
            ask.troubles[place.name] = trouble
        return {
            "cluster": place.cluster,
            "name": place.name,
            "id": place.broker_id,
            "role": "slave" if place.broker_id else "master",
            "address": place.address,
            "trouble": trouble,
            "version": figures.get("brokerVersionDesc", ""),
            "started_ms": number(figures.get("bootTimestamp")),
            "in_per_second": first(figures.get("putTps")),
            "out_per_second": first(figures.get("getTransferredTps") or figures.get("getTransferedTps")),
            "in_today": number(figures.get("msgPutTotalTodayNow")) - number(figures.get("msgPutTotalTodayMorning")),
            "out_today": number(figures.get("msgGetTotalTodayNow")) - number(figures.get("msgGetTotalTodayMorning")),
            "put_p99_ms": _float(figures.get("putLatency99")),
            "disk_ratio": _float(figures.get("commitLogDiskRatio")),
            "flush_behind_bytes": number(figures.get("remainHowManyDataToFlush")),
            "dispatch_behind_bytes": number(figures.get("dispatchBehindBytes")),
            "connections": number(figures.get("connections")) if "connections" in figures else None,
            "oldest_ms": max(0, number(figures.get("earliestMessageTimeStamp"))),
        }

    return list(await asyncio.gather(*map(one, await ask.brokers())))


async def broker_settings(ask: Inquiry, address: str) -> dict[str, str]:
    """A broker's settings by RocketMQ's names; secrets are not shown.

    Raises:
        RemotingError: it does not say.
    """
    answer = await ask.ask(address, Command.request(RequestCode.GET_BROKER_CONFIG))
    found = {}
    for line in answer.body.decode("utf-8", "replace").splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found[name.strip()] = "••••" if is_secret(name) and value.strip() else value.strip()
    return dict(sorted(found.items()))


def is_secret(name: str) -> bool:
    lowered = name.lower()
    return any(word in lowered for word in SECRET)


def number(text: str | None) -> int:
    """The whole number that a figure begins with: ``"12 B"`` is 12; 0 if it is none."""
    word = (text or "").split(" ")[0]
    return int(word) if word.removeprefix("-").isdecimal() else 0


def first(text: str | None) -> float:
    """The first of the rates that such a figure has, of about 10 seconds."""
    return _float((text or "").split(" ")[0])


def _float(text: str | None) -> float:
    try:
        return float(text or 0)
    except ValueError:
        return 0.0
