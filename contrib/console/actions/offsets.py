"""Send a group elsewhere in a topic. The plan has the offset of each queue, and those are what is set."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from verniermq.contrib.console.action import ActionPlan, ActionRefused, ConsoleAction
from verniermq.contrib.console.groups import group_list, group_members, group_queues
from verniermq.contrib.console.render import part
from verniermq.contrib.console.topics import topic_list, topic_queues
from verniermq.contrib.console.view import Look
from verniermq.kernel import ResponseCode, UnexpectedAnswer
from verniermq.kernel.requests import SearchOffset, UpdateConsumerOffset
from verniermq.protocol.offsets import ResetOffset


async def plan_reset(look: Look, form: Mapping[str, str]) -> ActionPlan:
    group, topic, to = form.get("group", ""), form.get("topic", ""), form.get("to", "")
    about = (await topic_list(look.ask)).get(topic)
    if about is None:
        raise ActionRefused(f"there is no topic {topic!r}")
    if group not in await group_list(look.ask):
        raise ActionRefused(f"there is no group {group!r}")
    (queues, _), (rows, _), live = await asyncio.gather(
        topic_queues(look.ask, topic, about["brokers"]), group_queues(look.ask, group, topic),
        group_members(look.ask, group),
    )  # fmt: skip
    committed = {(row["broker"], row["queue"]): row["committed"] for row in rows}
    moves = []
    for row in queues:
        before = committed.get((row["broker"], row["queue"]), row["first"])
        after = min(max(await _target(look, topic, row, to, form), row["first"]), row["end"])
        moves.append((row["broker"], row["queue"], before, after, f"{before - after:+,}"))
    again = sum(max(0, before - after) for _, _, before, after, _ in moves)
    skipped = sum(max(0, after - before) for _, _, before, after, _ in moves)
    members = len(live["members"])
    warning = f"{again:,} messages are consumed again, {skipped:,} are left out."
    if members:
        warning += f" {members} members are connected; they go there at once."
    return ActionPlan(
        f"send group {group} to {_place(to, form)} in topic {topic}", ("Broker", "Queue", "From", "To", "More to do"),
        moves, warning,
        {"group": group, "topic": topic, "moves": [move[:2] + move[3:4] for move in moves]},
        back=f"/groups/{part(group)}",
    )  # fmt: skip


def _place(to: str, form: Mapping[str, str]) -> str:
    return {"start": "the first message", "end": "the last"}.get(to, f"{to} {form.get('at', '')}")


async def _target(look: Look, topic: str, row: Mapping[str, Any], to: str, form: Mapping[str, str]) -> int:
    text = form.get("at", "").strip()
    if to == "start":
        return int(row["first"])
    if to == "end":
        return int(row["end"])
    if to == "offset" and text.isascii() and text.isdecimal() and len(text) < 19:
        return int(text)
    if to == "time":
        try:
            moment = round(datetime.fromisoformat(text).timestamp() * 1000)
        except (ValueError, OverflowError):
            raise ActionRefused(f"{text[:30]!r} is no time; write 2026-03-01T12:30") from None
        asked = SearchOffset(topic=topic, queue_id=row["queue"], timestamp=moment)
        answer = await look.ask.ask((await look.ask.masters())[row["broker"]], asked.command())
        return answer.integer("offset")
    raise ActionRefused(f"{to!r} {text[:30]!r} is no place; expected start, end, a time or an offset")


async def reset(look: Look, form: Mapping[str, str], steps: Any) -> str:
    group, topic = str(steps["group"]), str(steps["topic"])
    masters = await look.ask.masters()
    for broker, queue, offset in steps["moves"]:
        move = ResetOffset(
            topic=topic, group=group, queue_id=int(queue), offset=int(offset), timestamp=-1, is_force=True
        )
        try:
            await look.ask.ask(masters[broker], move.command())
        except UnexpectedAnswer as error:
            if error.code not in (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.CONSUMER_NOT_ONLINE):
                raise
            # Apache's brokers move only members that are there; without any, the offset is simply set.
            commit = UpdateConsumerOffset(group=group, topic=topic, queue_id=int(queue), offset=int(offset))
            await look.ask.ask(masters[broker], commit.command())
    return f"group {group} is moved in {len(steps['moves'])} queues of {topic}"


ACTIONS: Final = (ConsoleAction("group-reset", "Send a group elsewhere", plan_reset, reset),)
