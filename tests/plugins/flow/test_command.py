"""``verniermq flow`` against a running broker, as a user runs it."""

from __future__ import annotations

import json
from functools import partial

import anyio
import pytest
from click.testing import CliRunner, Result

from verniermq.cli import main
from verniermq.kernel import Command, RequestCode, connect
from verniermq.testing import running_broker

pytestmark = pytest.mark.anyio

RULES = [
    {"topic": "orders", "count": 1},
    {"resource": "billing:*", "count": 5, "behaviour": "uniform_rate"},
]
BREAKERS = [{"topic": "orders", "measure": "error_count", "limit": 3}]


async def run(*arguments: str) -> Result:
    """In a thread: the command has an event loop of its own, while the broker runs in this one."""
    return await anyio.to_thread.run_sync(partial(CliRunner(env={"COLUMNS": "80"}).invoke, main, ["flow", *arguments]))


async def send(address: str, times: int) -> None:
    ext = {"a": "p", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0", "i": ""}
    connection = await connect(address)
    for _ in range(times):
        await connection.request(Command.request(RequestCode.SEND_MESSAGE_V2, dict(ext), b"x"))
    connection.close()


async def test_rules_and_figures_of_every_broker_of_the_name_server_are_shown() -> None:
    async with running_broker(plugins__flow__rules=RULES, plugins__flow__breakers=BREAKERS) as broker:
        await send(broker.address, 3)
        namesrv = ["--namesrv", broker.name_servers[0]]
        rules, stats = await run("rules", *namesrv), await run("stats", *namesrv)
        rules_json, stats_json = await run("rules", "--json", *namesrv), await run("stats", "--json", *namesrv)

    assert "topic 'orders' at most 1 per second, reject" in rules.stdout
    assert [json.loads(line) for line in rules_json.stdout.splitlines()] == [
        {"broker": "broker-a", "rule": "topic 'orders' at most 1 per second, reject"},
        {"broker": "broker-a", "rule": "resource 'billing:*' at most 5 per second, uniform rate"},
        {"broker": "broker-a", "rule": "topic 'orders' breaks above 3 errors, for 10 s"},
    ]
    (resource,) = [json.loads(line) for line in stats_json.stdout.splitlines()]
    assert resource["broker"] == "broker-a"
    assert resource["name"] == "topic orders"
    assert resource["passed"] + resource["blocked"] == 3
    assert resource["breakers"] == ["closed"]
    assert "topic orders" in stats.stdout
    assert "mean ms" in stats.stdout
    assert "closed" in stats.stdout
    assert max(map(len, stats.stdout.splitlines())) <= 80


async def test_one_broker_can_be_asked_by_its_address() -> None:
    async with running_broker() as broker:
        rules, stats = await run("rules", "--broker", broker.address), await run("stats", "--broker", broker.address)

    assert rules.stdout.startswith("no rules; write some in [[plugins.flow.rules]]")
    assert stats.stdout == "no resource with a rule was called so far\n"


async def test_a_broker_without_flow_control_says_so_and_the_command_fails() -> None:
    async with running_broker(plugins__disable=["flow"]) as broker:
        asked = await run("rules", "--broker", broker.address)

    assert asked.exit_code == 2
    assert "needs the plugin 'flow'" in asked.stderr
