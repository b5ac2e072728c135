"""Messages that wait: take back one with a delivery time, have the producer of a transaction asked again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from verniermq.client.message import ReceivedMessage
from verniermq.contrib.console.action import ActionPlan, ActionRefused, ConsoleAction
from verniermq.contrib.console.messages import message_by_id, real_topic
from verniermq.contrib.console.view import Look
from verniermq.kernel import GIVEN_UP_TOPIC, TIMER_TOPIC, Property
from verniermq.protocol.recall import RecallHandle, RecallMessage
from verniermq.protocol.transaction import ResumeCheck


async def _waiting(look: Look, form: Mapping[str, str], *topics: str) -> ReceivedMessage:
    message_id = form.get("id", "")
    found = await message_by_id(look.ask, message_id)
    if not found or found[0].queue.topic not in topics:
        raise ActionRefused(f"{message_id[:60]!r} does not wait")
    return found[0]


async def plan_recall(look: Look, form: Mapping[str, str]) -> ActionPlan:
    message = await _waiting(look, form, TIMER_TOPIC)
    due, key = message.properties.get("TIMER_OUT_MS", ""), message.properties.get(Property.UNIQUE_KEY, "")
    if not due.isdecimal() or not key:
        raise ActionRefused("the message has no id of its producer, or no time; it cannot be taken back")
    topic = real_topic(message)
    handle = RecallHandle(topic, message.queue.broker_name, int(due) + 1, key).encode()
    return ActionPlan(
        f"take back message {key} of topic {topic}", ("Topic", "Broker", "Keys"),
        [(topic, message.queue.broker_name, " ".join(message.keys))], "It is never delivered then.",
        {"topic": topic, "broker": message.queue.broker_name, "handle": handle, "key": key}, back="/scheduled",
    )  # fmt: skip


async def recall(look: Look, form: Mapping[str, str], steps: Any) -> str:
    request = RecallMessage(
        group="TOOLS_PRODUCER", topic=str(steps["topic"]), handle=str(steps["handle"]), broker_name=str(steps["broker"])
    )
    await look.ask.ask((await look.ask.masters())[steps["broker"]], request.command())
    return f"message {steps['key']} is taken back"


async def plan_ask_back(look: Look, form: Mapping[str, str]) -> ActionPlan:
    message = await _waiting(look, form, GIVEN_UP_TOPIC)
    group = message.properties.get(Property.PRODUCER_GROUP, "")
    return ActionPlan(
        f"open transaction {message.message_id} again", ("Topic", "Producer group", "Broker"),
        [(real_topic(message), group, message.queue.broker_name)],
        "Its producer is asked at the broker's next round of checks.",
        {"id": message.offset_message_id, "broker": message.queue.broker_name}, back="/transactions",
    )  # fmt: skip


async def ask_back(look: Look, form: Mapping[str, str], steps: Any) -> str:
    command = ResumeCheck(message_id=str(steps["id"])).command()
    await look.ask.ask((await look.ask.masters())[steps["broker"]], command)
    return f"the producer of transaction {steps['id']} is asked at the next round"


ACTIONS: Final = (
    ConsoleAction("message-recall", "Take a message back", plan_recall, recall),
    ConsoleAction("transaction-check", "Ask a producer back", plan_ask_back, ask_back),
)
