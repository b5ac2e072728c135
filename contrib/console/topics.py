"""Topics: the list, and what the queues of one hold."""

from __future__ import annotations

import asyncio
from typing import Any

from verniermq.contrib.console.inquiry import Inquiry, rows_by_queue
from verniermq.kernel import (
    DEAD_LETTER_PREFIX,
    RETRY_PREFIX,
    Perm,
    RemotingError,
    RequestCode,
    ResponseCode,
    is_system_topic,
)
from verniermq.kernel.requests import GetEarliestStoreTime
from verniermq.protocol.figures import GetTopicStats, QueryGroups
from verniermq.protocol.topics import MESSAGE_TYPE

GONE = (ResponseCode.TOPIC_NOT_EXIST,)


def kind_of(name: str) -> str:
    """``normal``, ``retry``, ``dead letters`` or ``system``."""
    if name.startswith(RETRY_PREFIX):
        return "retry"
    if name.startswith(DEAD_LETTER_PREFIX):
        return "dead letters"
    return "system" if is_system_topic(name) or name.startswith("rmq_sys_") else "normal"


async def topic_list(ask: Inquiry) -> dict[str, dict[str, Any]]:
    """All topics by name, with what their brokers were told of them."""
    return await ask.kept("topics", _topics)


async def _topics(ask: Inquiry) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    places = await ask.brokers()
    clusters = {place.cluster for place in places}
    brokers_own = {*clusters, *(f"{name}_REPLY_TOPIC" for name in clusters), *(place.name for place in places)}
    for broker, answer in (await ask.each(RequestCode.GET_ALL_TOPIC_CONFIG)).items():
        for name, config in (answer.get("topicConfigTable") or {}).items():
            row = found.get(name)
            if row is None:
                attributes = config.get("attributes") or {}
                row = found[name] = {
                    "name": name,
                    "kind": "system" if name in brokers_own else kind_of(name),
                    "type": attributes.get(MESSAGE_TYPE) or "",
                    "brokers": [],
                    "read_queues": 0,
                    "write_queues": 0,
                    "permission": permission(int(config.get("perm") or 0)),
                    "attributes": attributes,
                }
            row["brokers"].append(broker)
            row["read_queues"] += int(config.get("readQueueNums") or 0)
            row["write_queues"] += int(config.get("writeQueueNums") or 0)
    return found


def permission(perm: int) -> str:
    words = [word for bit, word in ((Perm.READ, "read"), (Perm.WRITE, "write")) if perm & bit]
    return " and ".join(words) or "none"


async def topic_queues(ask: Inquiry, topic: str, brokers: list[str]) -> tuple[list[dict[str, Any]], float]:
    """The queues of a topic with their bounds, and the messages that come a second."""
    answers = await ask.each(GetTopicStats(topic=topic), brokers=brokers, fine=GONE)
    queues = []
    for broker, body in answers.items():
        for queue, row in rows_by_queue(body.get("offsetTable")):
            low, high = max(0, int(row.get("minOffset") or 0)), max(0, int(row.get("maxOffset") or 0))
            queues.append({
                "broker": broker, "queue": int(queue["queueId"]), "first": low, "end": high, "messages": high - low,
                "last_ms": int(row.get("lastUpdateTimestamp") or 0),
            })  # fmt: skip
    rate = sum(float(body.get("topicPutTps") or 0) for body in answers.values())
    return sorted(queues, key=lambda row: (row["broker"], row["queue"])), rate


async def topic_figures(ask: Inquiry, topic: dict[str, Any]) -> dict[str, Any]:
    """A row of the list with what its queues hold."""
    queues, rate = await topic_queues(ask, topic["name"], topic["brokers"])
    return {
        **topic,
        "messages": sum(row["messages"] for row in queues),
        "per_second": rate,
        "last_ms": max((row["last_ms"] for row in queues), default=0),
    }


async def with_first_times(ask: Inquiry, topic: str, queues: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """When the first message of each queue was stored."""
    masters = await ask.masters()

    async def one(row: dict[str, Any]) -> dict[str, Any]:
        if not row["messages"] or row["broker"] not in masters:
            return {**row, "first_ms": 0}
        asked = GetEarliestStoreTime(topic=topic, queue_id=row["queue"])
        try:
            answer = await ask.ask(masters[row["broker"]], asked.command())
            return {**row, "first_ms": max(0, answer.integer("timestamp"))}
        except RemotingError:
            return {**row, "first_ms": 0}  # the broker is among the troubles already, or has no such question

    return list(await asyncio.gather(*map(one, queues)))


async def groups_of(ask: Inquiry, topic: str, brokers: list[str]) -> list[str]:
    """The groups that have offsets of a topic, or members that subscribe to it."""
    answers = await ask.each(QueryGroups(topic=topic), brokers=brokers, fine=GONE)
    return sorted({name for body in answers.values() for name in body.get("groupList") or ()})
