"""``/clients``, ``/flow`` and ``/access``: who is connected, who is held back, and who may what."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from verniermq.contrib.console.groups import group_list, group_members
from verniermq.contrib.console.inquiry import Inquiry
from verniermq.contrib.console.view import Look, Shown, View
from verniermq.kernel import Command, RemotingError, RequestCode, ResponseCode, UnexpectedAnswer, parse_json

NOT_SERVED: Final = (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.SYSTEM_ERROR)
MOST_GROUPS: Final = 500
"""Whose members are asked for."""


async def clients(look: Look) -> Shown:
    producers: dict[tuple[str, str], dict[str, Any]] = {}
    for broker, body in (await look.ask.each(RequestCode.GET_ALL_PRODUCER_INFO, fine=NOT_SERVED)).items():
        for group, members in (body.get("data") or {}).items():
            for one in members:
                row = producers.setdefault((group, str(one.get("clientId"))), {
                    "role": "producer", "group": group, "client": str(one.get("clientId")),
                    "address": str(one.get("remoteIP") or ""), "language": str(one.get("language") or ""),
                    "version": one.get("version"), "brokers": [],
                })  # fmt: skip
                row["brokers"].append(broker)
    names = [name for name, row in (await group_list(look.ask)).items() if not row["system"]][:MOST_GROUPS]
    groups = await asyncio.gather(*(group_members(look.ask, name) for name in names))
    consumers = [
        {"role": "consumer", "group": name, "mode": live.get("mode", ""), **one}
        for name, live in zip(names, groups, strict=True)
        for one in live["members"]
    ]
    data = {"producers": sorted(producers.values(), key=lambda row: (row["group"], row["client"])),
            "consumers": sorted(consumers, key=lambda row: (row["group"], row["client"]))}  # fmt: skip
    return Shown("Clients", data, "verniermq group show", is_same=False)


async def flow(look: Look) -> Shown:
    answers = await look.ask.each(RequestCode.GET_FLOW_FIGURES, fine=NOT_SERVED)
    rules = [{"broker": name, "rule": rule} for name, body in answers.items() for rule in body.get("rules") or ()]
    rows = [{"broker": name, **row} for name, body in answers.items() for row in body.get("resources") or ()]
    return Shown("Flow control", {"rules": rules, "rows": rows}, "verniermq flow stats")


async def access(look: Look) -> Shown:
    masters = await look.ask.masters()
    users: dict[str, dict[str, Any]] = {}
    policies: list[dict[str, Any]] = []
    controlled = False
    for name, address in masters.items():
        found = await _listed(look.ask, address, RequestCode.AUTH_LIST_USER)
        controlled = controlled or found is not None
        for user in found or ():
            users[str(user.get("username"))] = {
                "name": str(user.get("username")), "type": str(user.get("userType") or ""),
                "status": str(user.get("userStatus") or ""),
            }  # fmt: skip
        for one in await _listed(look.ask, address, RequestCode.AUTH_LIST_ACL) or ():
            for policy in one.get("policies") or ():
                for entry in policy.get("entries") or ():
                    row = {"broker": name, "subject": str(one.get("subject")), "resource": str(entry.get("resource")),
                           "actions": entry.get("actions") or [], "from": entry.get("sourceIps") or [],
                           "decision": str(entry.get("decision") or "")}  # fmt: skip
                    policies.append(row)
    data = {"controlled": controlled, "users": sorted(users.values(), key=lambda row: row["name"]),
            "policies": policies}  # fmt: skip
    return Shown("Access", data, "verniermq plugins show acl", is_same=False)


async def _listed(ask: Inquiry, address: str, code: RequestCode) -> list[dict[str, Any]] | None:
    """What a broker lists; ``None`` if it has no access control."""
    try:
        answer = await ask.ask(address, Command.request(code, {}))
    except UnexpectedAnswer as error:
        if error.code not in NOT_SERVED:
            ask.troubles[address] = str(error)
        return None
    except RemotingError as error:
        ask.troubles[address] = str(error)
        return None
    found = parse_json(answer.body) if answer.body else []
    return found if isinstance(found, list) else []


VIEWS: Final = (
    View("/clients", "clients.html", clients, "Clients"),
    View("/flow", "flow.html", flow, "Flow control"),
    View("/access", "access.html", access, "Access", live=False),
)
