"""Consumer groups: the list, how far one is, and who its members are."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from verniermq.contrib.console.inquiry import Inquiry, rows_by_queue
from verniermq.kernel import RETRY_PREFIX, RequestCode, ResponseCode
from verniermq.protocol.figures import GetConsumerConnections, GetConsumeStats

NO_OFFSETS: Final = (ResponseCode.SYSTEM_ERROR, ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.TOPIC_NOT_EXIST)
"""How brokers say that a group has no offsets or no members; Apache's say it with SYSTEM_ERROR."""

BROKERS_OWN: Final = ("CID_RMQ_SYS_", "CID_ONS", "TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_", "CLIENT_INNER_")


def is_brokers_own(name: str) -> bool:
    return name.startswith(BROKERS_OWN) or name in ("SCHEDULE_CONSUMER", "__MONITOR_CONSUMER", "%DLQ%")


async def group_list(ask: Inquiry) -> dict[str, dict[str, Any]]:
    """All groups by name, with what their brokers were told of them."""
    return await ask.kept("groups", _groups)


async def _groups(ask: Inquiry) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for broker, answer in (await ask.each(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)).items():
        for name, config in (answer.get("subscriptionGroupTable") or {}).items():
            row = found.get(name)
            if row is None:
                row = found[name] = {
                    "name": name,
                    "system": is_brokers_own(name),
                    "brokers": [],
                    "may_consume": bool(config.get("consumeEnable", True)),
                    "in_order": bool(config.get("consumeMessageOrderly", False)),
                    "most_retries": int(config.get("retryMaxTimes", 16)),
                }
            row["brokers"].append(broker)
    return found


async def group_queues(ask: Inquiry, group: str, topic: str = "") -> tuple[list[dict[str, Any]], float]:
    """Where a group is in each queue, of all topics or of one, and the messages that it takes a second."""
    answers = await ask.each(GetConsumeStats(group=group, topic=topic), fine=NO_OFFSETS)
    queues = []
    for broker, body in answers.items():
        for queue, row in rows_by_queue(body.get("offsetTable")):
            committed, end = int(row.get("consumerOffset") or 0), int(row.get("brokerOffset") or 0)
            queues.append({
                "topic": str(queue["topic"]), "broker": broker, "queue": int(queue["queueId"]), "committed": committed,
                "end": end, "lag": max(0, end - committed), "consumed_ms": max(0, int(row.get("lastTimestamp") or 0)),
            })  # fmt: skip
    rate = sum(float(body.get("consumeTps") or 0) for body in answers.values())
    return sorted(queues, key=lambda row: (row["topic"], row["broker"], row["queue"])), rate


def behind_ms(queues: list[dict[str, Any]]) -> int:
    """How long ago the last consumed message was stored, where something waits and that is longest ago."""
    waiting = [row["consumed_ms"] for row in queues if row["lag"] and row["consumed_ms"]]
    return max(0, round(time.time() * 1000) - min(waiting)) if waiting else 0


async def group_members(ask: Inquiry, group: str) -> dict[str, Any]:
    """The live members of a group with what they subscribe to; a client that is connected to several brokers is one."""
    answers = await ask.each(GetConsumerConnections(group=group), fine=NO_OFFSETS)
    members: dict[str, dict[str, Any]] = {}
    subscriptions: dict[str, str] = {}
    about: dict[str, Any] = {}
    for body in answers.values():
        about = {"mode": body.get("messageModel") or "", "from": body.get("consumeFromWhere") or "",
                 "type": body.get("consumeType") or ""}  # fmt: skip
        for one in body.get("connectionSet") or ():
            members.setdefault(str(one.get("clientId")), {
                "client": str(one.get("clientId")), "address": str(one.get("clientAddr") or ""),
                "language": str(one.get("language") or ""), "version": one.get("version"),
            })  # fmt: skip
        for topic, subscription in (body.get("subscriptionTable") or {}).items():
            subscriptions[topic] = str(subscription.get("subString") or "*")
    return {**about, "members": sorted(members.values(), key=lambda one: one["client"]), "subscriptions": subscriptions}


async def group_figures(ask: Inquiry, group: dict[str, Any]) -> dict[str, Any]:
    """A row of the list with how far the group is."""
    name = group["name"]
    (queues, rate), live = await asyncio.gather(group_queues(ask, name), group_members(ask, name))
    lag = sum(row["lag"] for row in queues)
    return {
        **group,
        "members": len(live["members"]),
        "mode": live.get("mode") or "",
        "topics": sorted({row["topic"] for row in queues if not row["topic"].startswith(RETRY_PREFIX)}),
        "lag": lag,
        "retrying": sum(row["lag"] for row in queues if row["topic"].startswith(RETRY_PREFIX)),
        "behind_ms": behind_ms(queues),
        **pace(lag, rate, len(live["members"])),
    }


def pace(lag: int, rate: float, members: int) -> dict[str, Any]:
    """How fast a group takes messages, and when it has them all. A broker tells an average, which goes on for a while
    when the last member has left.
    """
    return {
        "per_second": rate if members else None,
        "caught_up_in_seconds": round(lag / rate) if members and lag and rate > 0 else None,
    }
