"""Topics: create or change one, delete one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from verniermq.contrib.console.action import ActionPlan, ActionRefused, ConsoleAction
from verniermq.contrib.console.render import part
from verniermq.contrib.console.topics import topic_list, topic_queues
from verniermq.contrib.console.view import Look
from verniermq.kernel import MAX_QUEUES, BadName, Perm, check_topic_name
from verniermq.protocol.nameserver import DeleteTopicInNamesrv
from verniermq.protocol.topics import DeleteTopic, UpdateTopic


def number(form: Mapping[str, str], name: str, least: int, most: int) -> int:
    """
    Raises:
        ActionRefused: the field has no such number.
    """
    text = form.get(name, "").strip()
    if not text.isascii() or not text.isdecimal() or not least <= int(text[:12]) <= most:
        raise ActionRefused(f"{name} = {text[:20]!r}: expected a number from {least} to {most}")
    return int(text)


async def plan_create(look: Look, form: Mapping[str, str]) -> ActionPlan:
    name, queues = form.get("topic", "").strip(), number(form, "queues", 1, MAX_QUEUES)
    try:
        check_topic_name(name)
    except BadName as error:
        raise ActionRefused(str(error)) from None
    before = (await topic_list(look.ask)).get(name)
    masters = await look.ask.masters()
    rows = [(broker, "changed" if before and broker in before["brokers"] else "created", queues) for broker in masters]
    verb = "change" if before else "create"
    warning = "The topic exists; fewer queues hide the messages of those that are left out." if before else ""
    return ActionPlan(
        f"{verb} topic {name}", ("Broker", "Topic is", "Queues"), rows, warning, {"topic": name, "queues": queues},
        back=f"/topics/{part(name)}",
    )  # fmt: skip


async def create(look: Look, form: Mapping[str, str], steps: Any) -> str:
    queues = int(steps["queues"])
    update = UpdateTopic(
        topic=str(steps["topic"]), read_queues=queues, write_queues=queues, perm=Perm.READ | Perm.WRITE
    )
    masters = await look.ask.masters()
    for address in masters.values():
        await look.ask.ask(address, update.command())
    return f"topic {steps['topic']} has {queues} queues on {', '.join(masters)}"


async def plan_delete(look: Look, form: Mapping[str, str]) -> ActionPlan:
    name = form.get("topic", "")
    about = (await topic_list(look.ask)).get(name)
    if about is None:
        raise ActionRefused(f"there is no topic {name!r}")
    if about["kind"] != "normal":
        raise ActionRefused(f"topic {name!r} is the brokers' own: {about['kind']}")
    queues, _ = await topic_queues(look.ask, name, about["brokers"])
    messages = sum(row["messages"] for row in queues)
    rows = [(broker, sum(row["messages"] for row in queues if row["broker"] == broker)) for broker in about["brokers"]]
    return ActionPlan(
        f"delete topic {name} with {messages:,} messages", ("Broker", "Messages that are lost"), rows,
        "This cannot be undone.", {"topic": name}, typed=name, back="/topics",
    )  # fmt: skip


async def delete(look: Look, form: Mapping[str, str], steps: Any) -> str:
    name = str(steps["topic"])
    masters = await look.ask.masters()
    for address in masters.values():
        await look.ask.ask(address, DeleteTopic(topic=name).command(), timeout=10.0)
    await look.ask.tell_name_servers(DeleteTopicInNamesrv(topic=name).command())
    return f"topic {name} is deleted on {', '.join(masters)}"


ACTIONS: Final = (
    ConsoleAction("topic-create", "Create or change a topic", plan_create, create),
    ConsoleAction("topic-delete", "Delete a topic", plan_delete, delete),
)
