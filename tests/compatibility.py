"""The page ``docs/compatibility.md``, made from what brokers, name servers and clients register: every request of 5.5.

``python -m tests.compatibility`` writes it; ``tests/test_compatibility.py`` compares.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import anyio

from verniermq.kernel import RequestCode
from verniermq.kernel.clock import SystemClock
from verniermq.kernel.refusals import REFUSED_REQUESTS
from verniermq.plugins.namesrv.server import NameServer
from verniermq.testing import running_broker

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "compatibility.md"

CODES: Final = {
    name: int(code)
    for code, name in (line.split() for line in (ROOT / "tests" / "request-codes-5.5.0.txt").read_text().splitlines())
}
"""Every constant of ``RequestCode`` of Apache RocketMQ 5.5.0."""

EVERY_PLUGIN: Final = ["default", "acl", "trace", "audit", "enrich"]

CONTROLLER: Final = "a request of RocketMQ's controller, and there is none here"
CONTAINER: Final = "for a container of several brokers in one process; here each broker is a process"
NOBODY: Final = "Apache's broker 5.5.0 has the number, and does not serve it either"
SLAVES: Final = "between Apache's masters and slaves"
LITE: Final = "lite topics are not supported, since a message here is in the queue of one topic only"

NOT_SERVED: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        [
            "QUERY_BROKER_OFFSET", "GET_TOPIC_CONFIG_LIST", "GET_TOPIC_NAME_LIST", "TRIGGER_DELETE_FILES",
            "GET_CLIENT_CONFIG", "SUSPEND_CONSUMER", "RESUME_CONSUMER", "RESET_CONSUMER_OFFSET_IN_CONSUMER",
            "RESET_CONSUMER_OFFSET_IN_BROKER", "ADJUST_CONSUMER_THREAD_POOL", "WHO_CONSUME_THE_MESSAGE",
            "REGISTER_FILTER_SERVER", "REGISTER_MESSAGE_FILTER_CLASS",
        ],
        NOBODY,
    ),
    **dict.fromkeys([name for name in CODES if name.startswith("CONTROLLER_")], CONTROLLER),
    **dict.fromkeys(
        [
            "UPDATE_CONTROLLER_CONFIG", "GET_CONTROLLER_CONFIG", "CLEAN_BROKER_DATA", "BROKER_CLOSE_CHANNEL_REQUEST",
            "CHECK_NOT_ACTIVE_BROKER_REQUEST", "GET_BROKER_LIVE_INFO_REQUEST", "GET_SYNC_STATE_DATA_REQUEST",
            "RAFT_BROKER_HEART_BEAT_EVENT_REQUEST",
        ],
        CONTROLLER,
    ),
    "NOTIFY_BROKER_ROLE_CHANGED": "of a controller to `ha`, which is active on request",
    **dict.fromkeys(["ADD_BROKER", "REMOVE_BROKER"], CONTAINER),
    **dict.fromkeys(["EXCHANGE_BROKER_HA_INFO", "NOTIFY_MIN_BROKER_ID_CHANGE"], SLAVES),
    "QUERY_CORRECTION_OFFSET": "no tool of 5.5 asks for it; GET_CONSUME_STATS has the offsets of every group",
    "UPDATE_AND_GET_GROUP_FORBIDDEN": "no tool of 5.5 asks for it; the forbiddenTable of an Apache broker is obeyed",
}  # fmt: skip
"""What is neither served nor refused with words of its own, and why."""


async def served() -> dict[int, list[str]]:
    """Code → who serves it, as a running broker, a name server and our clients have it registered."""
    found: dict[int, list[str]] = {}
    async with running_broker(plugins__enable=[]) as broker:
        for code in broker.handlers:
            found.setdefault(code, []).append("kernel")
    async with running_broker(plugins__enable=EVERY_PLUGIN) as broker:
        for registry in broker._registries:
            for code in registry.handlers:
                found[code] = [registry.plugin.name]  # the last one wins, over the kernel too
    for code in NameServer(SystemClock())._server.handlers:
        found.setdefault(code, []).append("namesrv")
    for file in (ROOT / "client").rglob("*.py"):
        for name in re.findall(r"RequestCode\.(\w+): ", file.read_text()):
            clients = found.setdefault(RequestCode[name], [])
            clients.extend(() if "client" in clients else ("client",))
    return found


TRIED_BY: Final = {"kernel": "tests/kernel", "namesrv": "tests/kernel/test_namesrv.py", "client": "tests/client"}
"""Those of a plugin are in the folder of its name."""

ELSEWHERE: Final = ("RESET_CONSUMER_CLIENT_OFFSET",)
"""Tried by a test that does not spell out the name: a consumer whose group is reset."""


def is_tried(name: str) -> bool:
    """Whether a test asks for it by its name."""
    spelt = re.compile(rf"\b(?:RequestCode|Code|R)\.{name}\b")
    return name in ELSEWHERE or any(spelt.search(file.read_text()) for file in (ROOT / "tests").rglob("test_*.py"))


def page(who: Mapping[int, list[str]]) -> str:
    lines = []
    counts: Counter[str] = Counter()
    for name, code in sorted(CODES.items(), key=lambda item: item[1]):
        servers = who.get(code, [])
        reason = NOT_SERVED.get(name) or REFUSED_REQUESTS.get(code)
        if servers:
            folders = [TRIED_BY.get(server, f"tests/plugins/{server}") for server in servers]
            tried = ", ".join(f"[{folder}](../{folder})" for folder in folders)
            lines.append(f"| {code} | `{name}` | {', '.join(servers)} | {tried} |")
        elif reason:
            lines.append(f"| {code} | `{name}` | – | {reason} |")
        else:
            raise AssertionError(f"{name} ({code}) is not served, and nothing says why")
        counts["served" if servers else "refused"] += 1
    return f"""# Compatibility with Apache RocketMQ 5.5.0

Every request code of 5.5.0, {len(CODES)} in all: {counts["served"]} are served, {counts["refused"]} are not.
Whoever sends one of those is answered with `REQUEST_CODE_NOT_SUPPORTED` (3). The table is made from what a running
broker with all plugins, a name server and the clients register (`python -m tests.compatibility` writes it), and a test
compares the two. "client" is what brokers ask of clients. What Apache's own clients and tools do with them is in
[tests/interop](../tests/interop/README.md), its command line in [mqadmin](mqadmin.md).

| code | request | served by | tried by, or not served because |
|--:|---|---|---|
{chr(10).join(lines)}
"""


def main() -> None:
    PAGE.write_text(page(anyio.run(served)))


if __name__ == "__main__":
    main()
