"""Groups: create one, delete one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from verniermq.contrib.console.action import ActionPlan, ActionRefused, ConsoleAction
from verniermq.contrib.console.actions.topics import number
from verniermq.contrib.console.groups import group_figures, group_list
from verniermq.contrib.console.render import part
from verniermq.contrib.console.view import Look
from verniermq.kernel import BadName, check_group_name
from verniermq.protocol.groups import DeleteGroup, UpdateGroup


async def plan_create(look: Look, form: Mapping[str, str]) -> ActionPlan:
    name, retries = form.get("group", "").strip(), number(form, "retries", 0, 1000)
    try:
        check_group_name(name)
    except BadName as error:
        raise ActionRefused(str(error)) from None
    if name in await group_list(look.ask):
        raise ActionRefused(f"group {name!r} exists")
    rows = [(broker, "created", retries) for broker in await look.ask.masters()]
    return ActionPlan(f"create group {name}", ("Broker", "Group is", "Retries at most"), rows,
                steps={"group": name, "retries": retries}, back=f"/groups/{part(name)}")  # fmt: skip


async def create(look: Look, form: Mapping[str, str], steps: Any) -> str:
    config = {
        "groupName": str(steps["group"]), "retryMaxTimes": int(steps["retries"]), "retryQueueNums": 1,
        "consumeEnable": True, "consumeBroadcastEnable": True, "consumeFromMinEnable": True, "brokerId": 0,
        "whichBrokerWhenConsumeSlowly": 1, "notifyConsumerIdsChangedEnable": True,
    }  # fmt: skip
    masters = await look.ask.masters()
    for address in masters.values():
        await look.ask.ask(address, UpdateGroup(config=config).command())
    return f"group {steps['group']} is on {', '.join(masters)}"


async def plan_delete(look: Look, form: Mapping[str, str]) -> ActionPlan:
    name = form.get("group", "")
    about = (await group_list(look.ask)).get(name)
    if about is None:
        raise ActionRefused(f"there is no group {name!r}")
    if about["system"]:
        raise ActionRefused(f"group {name!r} is the brokers' own")
    figures = await group_figures(look.ask, about)
    warning = f"{figures['members']} members are connected; they make it again." if figures["members"] else ""
    return ActionPlan(
        f"delete group {name} and forget how far it is", ("Topic",), [(topic,) for topic in figures["topics"]],
        warning or f"{figures['lag']:,} messages wait for it.", {"group": name}, typed=name, back="/groups",
    )  # fmt: skip


async def delete(look: Look, form: Mapping[str, str], steps: Any) -> str:
    name = str(steps["group"])
    masters = await look.ask.masters()
    for address in masters.values():
        await look.ask.ask(address, DeleteGroup(group=name, clean_offset=True).command())
    return f"group {name} is deleted on {', '.join(masters)}"


ACTIONS: Final = (
    ConsoleAction("group-create", "Create a group", plan_create, create),
    ConsoleAction("group-delete", "Delete a group", plan_delete, delete),
)
