"""``/topics/{name}/messages``, live too, and ``/messages`` for one message and who has consumed it."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from verniermq.client.message import ReceivedMessage
from verniermq.contrib.console.bodies import body_text, summary, whole
from verniermq.contrib.console.groups import group_members, group_queues
from verniermq.contrib.console.inquiry import Inquiry
from verniermq.contrib.console.messages import (
    BUDGET,
    Part,
    Wanted,
    everything,
    message_by_id,
    messages_by_key,
    read_backward,
    read_forward,
)
from verniermq.contrib.console.topics import groups_of, topic_list, topic_queues
from verniermq.contrib.console.view import BadAddress, Look, NoSuchPage, Shown, View
from verniermq.kernel import RemotingError
from verniermq.kernel.requests import SearchOffset

MOST: Final = 50
TAIL_SECONDS: Final = 1.0
STARTS: Final = ("newest", "oldest", "time", "offset")


async def messages(look: Look) -> Shown:
    name, query = look.path["name"], look.query
    about = await _about(look, name)
    queues, _ = await topic_queues(look.ask, name, about["brokers"])
    chosen = _chosen(queues, query.get("queue", ""))
    start = query.get("start") or "newest"
    if start not in STARTS:
        raise BadAddress(f"start={start!r}: expected one of {', '.join(STARTS)}")
    mask = look.console.config.mask
    wanted = _wanted(query, mask)
    share = max(1, BUDGET // max(1, len(chosen)))
    parts = await asyncio.gather(*(_part(look.ask, name, row, start, query, wanted, share) for row in chosen))
    found = [message for part in parts for message in part.messages]
    found.sort(key=lambda message: message.store_timestamp, reverse=start == "newest")
    data = {
        "name": name,
        "queues": [f"{row['broker']}/{row['queue']}" for row in queues],
        "rows": [summary(message, mask) for message in found[:MOST]],
        "looked_at": sum(part.looked_at for part in parts),
        "start": start,
        "budget_spent": any(part.further is not None and len(part.messages) < MOST for part in parts),
        "further": parts[0].further if len(parts) == 1 else None,
        "why": next((part.why for part in parts if part.why), ""),
    }
    return Shown(f"Messages of {name}", data, f"verniermq tail {shlex.quote(name)} --from-start --no-wait")


async def _about(look: Look, name: str) -> dict[str, Any]:
    about = (await topic_list(look.ask)).get(name)
    if about is None:
        raise NoSuchPage(f"there is no topic {name!r}; the page Topics lists them")
    return about


def _chosen(queues: list[dict[str, Any]], wanted: str) -> list[dict[str, Any]]:
    chosen = [row for row in queues if not wanted or f"{row['broker']}/{row['queue']}" == wanted]
    if wanted and not chosen:
        raise NoSuchPage(f"there is no queue {wanted!r} of this topic")
    return chosen


def _wanted(query: Mapping[str, str], mask: Sequence[str]) -> Wanted:
    tag, key, text = (query.get(name, "").strip() for name in ("tag", "key", "text"))
    if not (tag or key or text):
        return everything

    def wanted(message: ReceivedMessage) -> bool:
        if tag and message.tags != tag:
            return False
        if key and key not in (*message.keys, message.message_id):
            return False
        return not text or text in body_text(message, mask)[1]

    return wanted


async def _part(
    ask: Inquiry, topic: str, row: dict[str, Any], start: str, query: Mapping[str, str], wanted: Wanted, budget: int
) -> Part:
    place = ask, row["broker"], topic, row["queue"]
    low, high = row["first"], row["end"]
    if start == "newest":
        end = min(high, max(low, _offset(query))) if query.get("at") else high
        return await read_backward(*place, low, end, wanted=wanted, most=MOST, budget=budget)
    begin = low
    if start == "offset" or query.get("at", "").isdecimal():
        begin = min(high, max(low, _offset(query)))
    elif start == "time":
        asked = SearchOffset(topic=topic, queue_id=row["queue"], timestamp=_time_ms(query))
        try:
            answer = await ask.ask((await ask.masters())[row["broker"]], asked.command())
            begin = max(low, answer.integer("offset"))
        except RemotingError as error:
            return Part([], 0, None, str(error))
    return await read_forward(*place, begin, high, wanted=wanted, most=MOST, budget=budget)


def _offset(query: Mapping[str, str]) -> int:
    text = query.get("at", "")
    if not text.isascii() or not text.isdecimal() or len(text) > 18:
        raise BadAddress(f"at={text[:30]!r}: expected an offset")
    return int(text)


def _time_ms(query: Mapping[str, str]) -> int:
    text = query.get("at", "")
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise BadAddress(f"at={text[:30]!r}: expected a time such as 2026-03-01T12:30") from None


async def tail(look: Look) -> AsyncIterator[Mapping[str, Any]]:
    """The messages that come while somebody looks; what was there before is on the page already."""
    name = look.path["name"]
    about = await _about(look, name)
    mask = look.console.config.mask
    wanted = _wanted(look.query, mask)
    seen: dict[tuple[str, int], int] = {}
    while True:
        queues, _ = await topic_queues(look.ask, name, about["brokers"])
        rows: list[dict[str, Any]] = []
        for row in _chosen(queues, look.query.get("queue", "")):
            key, end = (row["broker"], row["queue"]), row["end"]
            begin = max(seen.get(key, end), end - MOST)
            seen[key] = end
            part = await read_forward(
                look.ask, row["broker"], name, row["queue"], begin, end, wanted=wanted, most=MOST, budget=MOST
            )
            rows += [summary(message, mask) for message in part.messages]
        yield {"rows": sorted(rows, key=lambda row: -row["stored_ms"])}
        await asyncio.sleep(TAIL_SECONDS)


async def message(look: Look) -> Shown:
    query = look.query
    topic, key, message_id = (query.get(name, "").strip() for name in ("topic", "key", "id"))
    found: list[ReceivedMessage] = []
    if message_id:
        found = await message_by_id(look.ask, message_id, topic)
    elif topic and key:
        found = await messages_by_key(look.ask, topic, key)
    mask = look.console.config.mask
    one = whole(found[0], mask) if len(found) == 1 else None
    data = {
        "topic": topic, "key": key, "id": message_id, "asked": bool(message_id or (topic and key)), "message": one,
        "consumed": await _consumed(look.ask, found[0]) if len(found) == 1 else [],
        "rows": [summary(each, mask) for each in found] if len(found) != 1 else [],
    }  # fmt: skip
    command = f"verniermq message get {shlex.quote(message_id)}" if message_id else "verniermq message query TOPIC KEY"
    if topic and key:
        command = f"verniermq message query {shlex.quote(topic)} --key {shlex.quote(key)}"
    return Shown("Message" if one else "Messages", data, command)


async def _consumed(ask: Inquiry, message: ReceivedMessage) -> list[dict[str, Any]]:
    """For each group of the message's topic, whether it is past it."""
    topic = message.queue.topic
    brokers = [message.queue.broker_name]

    async def one(group: str) -> dict[str, Any]:
        (queues, _), live = await asyncio.gather(group_queues(ask, group, topic), group_members(ask, group))
        place = [row for row in queues if (row["broker"], row["queue"]) == (brokers[0], message.queue.queue_id)]
        expression = live["subscriptions"].get(topic, "*")
        tags = {tag.strip() for tag in expression.split("||")}
        if expression != "*" and (message.tags or "") not in tags and live.get("members"):
            state = "not subscribed to its tag"
        elif not place:
            state = "unknown"
        else:
            state = "consumed" if place[0]["committed"] > message.queue_offset else "waiting"
        return {"group": group, "state": state, "members": len(live["members"])}

    names = await groups_of(ask, topic, brokers)
    return list(await asyncio.gather(*map(one, names)))


VIEWS: Final = (
    View("/topics/{name}/messages", "messages.html", messages, follow=tail),
    View("/messages", "message.html", message, "Messages", live=False),
)
