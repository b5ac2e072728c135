"""Send dead letters again: those that are chosen, slowly, to where they came from or to their group alone.

They become new messages that say where they come from, in the same properties as ``verniermq dlq resend`` writes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Final

from verniermq.client.message import ReceivedMessage
from verniermq.contrib.console.action import ActionPlan, ActionRefused, ConsoleAction
from verniermq.contrib.console.actions.topics import number
from verniermq.contrib.console.messages import message_by_id, real_topic
from verniermq.contrib.console.pages.deadletters import MOST, REASON
from verniermq.contrib.console.render import part
from verniermq.contrib.console.topics import topic_list
from verniermq.contrib.console.view import Look
from verniermq.kernel import (
    AUTO_CREATE_TOPIC,
    DEAD_LETTER_PREFIX,
    RETRY_PREFIX,
    Command,
    Property,
    SysFlag,
    format_properties,
)
from verniermq.kernel.requests import SendMessage

OLD_WAYS: Final = frozenset(
    {
        Property.RETRY_TOPIC, Property.DELAY, Property.REAL_TOPIC, Property.REAL_QUEUE_ID, Property.RECONSUME_TIME,
        Property.MAX_RECONSUME_TIMES, Property.POP_CK, "TIMER_DEL_UNIQKEY", "TIMER_OUT_MS", "TIMER_ENQUEUE_MS",
        "TIMER_ROLL_TIMES", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS",
    }
)  # fmt: skip
"""What tells of the way that a message took before; left on, it would be taken for orders."""
SENDER: Final = "TOOLS_CONSUMER"


async def plan_resend(look: Look, form: Mapping[str, str]) -> ActionPlan:
    group, rate = form.get("group", ""), number(form, "rate", 1, 10_000)
    ids = [word for word in form.get("ids", "").split() if word][:MOST]
    if not ids:
        raise ActionRefused("no dead letter is chosen")
    only_group = form.get("to") == "group"
    topics = await topic_list(look.ask)
    rows, letters = [], []
    for letter_id in ids:
        letter = await _letter(look, group, letter_id)
        target = RETRY_PREFIX + group if only_group else real_topic(letter)
        if target not in topics:
            raise ActionRefused(f"there is no topic {target!r}, where letter {letter_id} would go")
        rows.append((letter_id, " ".join(letter.keys), target))
        letters.append((letter_id, target))
    return ActionPlan(
        f"send {len(rows)} dead letters of group {group} again, {rate} a second", ("Letter", "Keys", "Goes to"), rows,
        "Other groups of a topic get them again, too." if not only_group else "",
        {"group": group, "rate": rate, "letters": letters}, back=f"/dlq/{part(group)}",
    )  # fmt: skip


async def _letter(look: Look, group: str, letter_id: str) -> ReceivedMessage:
    found = await message_by_id(look.ask, letter_id)
    if not found or found[0].queue.topic != DEAD_LETTER_PREFIX + group:
        raise ActionRefused(f"{letter_id[:60]!r} is no dead letter of group {group!r}")
    return found[0]


async def resend(look: Look, form: Mapping[str, str], steps: Any) -> str:
    group, pause = str(steps["group"]), 1 / int(steps["rate"])
    masters = await look.ask.masters()
    topics = await topic_list(look.ask)
    for count, (letter_id, target) in enumerate(steps["letters"]):
        if count:
            await asyncio.sleep(pause)
        letter = await _letter(look, group, letter_id)
        if target not in topics:
            raise ActionRefused(f"topic {target!r} is gone; {count} letters were sent before")
        here = letter.queue.broker_name
        broker = here if here in topics[target]["brokers"] else topics[target]["brokers"][0]
        await look.ask.ask(masters[broker], _send(group, letter, target))
    return f"{len(steps['letters'])} dead letters of group {group} are sent again"


def _send(group: str, letter: ReceivedMessage, target: str) -> Command:
    kept = {
        name: value for name, value in letter.properties.items() if name not in OLD_WAYS and not name.startswith(REASON)
    }
    if target.startswith(RETRY_PREFIX):
        kept[Property.RETRY_TOPIC] = real_topic(letter)
    times = kept.get("DLQ_RESENT_TIMES", "0")
    kept |= {
        "DLQ_RESENT_FROM": DEAD_LETTER_PREFIX + group,
        "DLQ_RESENT_TIMES": str(int(times) + 1 if times.isdecimal() else 1),
        "DLQ_RESENT_MS": str(round(time.time() * 1000)),
        "DLQ_ORIGIN_TOPIC": real_topic(letter),
    }
    compressed = letter.sys_flag & (SysFlag.COMPRESSED | SysFlag.COMPRESSION_MASK)
    command = SendMessage(
        group=SENDER, topic=target, default_topic=AUTO_CREATE_TOPIC, queue_id=-1, sys_flag=compressed,
        born_timestamp=letter.born_timestamp, flag=letter.flag, properties=format_properties(kept),
    ).command()  # fmt: skip
    command.body = letter._body
    return command


ACTIONS: Final = (ConsoleAction("letters-resend", "Send dead letters again", plan_resend, resend),)
