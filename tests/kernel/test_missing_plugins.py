"""What a broker says when one of its own plugins was switched off and somebody needs it."""

from __future__ import annotations

import pytest

from tests.plugins.peer import Peer, served
from verniermq.kernel import Command, RequestCode, ResponseCode
from verniermq.kernel.host import discovery
from verniermq.kernel.host.builtin import BROKER_PLUGINS
from verniermq.kernel.host.discovery import Found
from verniermq.kernel.names import WISHES

pytestmark = pytest.mark.anyio

DEFAULTS = [discovery.load(discovery.built_in(name, BROKER_PLUGINS)) for name in BROKER_PLUGINS.defaults]
NEEDED = [
    one for one in DEFAULTS if one.declaration.requests or one.declaration.properties or one.declaration.expressions
]


def test_the_wishes_of_messages_are_those_that_plugins_declare() -> None:
    assert {name for one in DEFAULTS for name in one.declaration.properties} == WISHES


@pytest.mark.parametrize("builtin", NEEDED, ids=[one.name for one in NEEDED])
async def test_whoever_needs_a_plugin_that_was_switched_off_is_told_its_name(
    builtin: Found, tmp_path_factory: pytest.TempPathFactory
) -> None:
    # Who cannot work without this one goes too.
    needing = {"schedule": ["retry"]}.get(builtin.name, [])
    store = tmp_path_factory.mktemp("store")
    async with served(store, plugins__enable=["default"], plugins__disable=[builtin.name, *needing]) as (_, client):
        for code in map(RequestCode, builtin.declaration.requests):
            check(builtin, await client.ask(code), ResponseCode.SYSTEM_ERROR, f"{code.name} ({code.value})")
        for name in builtin.declaration.properties:
            check(builtin, await client.send("orders", **{name: "1"}), ResponseCode.SYSTEM_ERROR, f"property {name}")
        await client.sent("orders", b"plain")
        for kind in builtin.declaration.expressions:
            answer = await pull(client, kind, "a = 1")
            check(builtin, answer, ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"{kind} expression 'a = 1'")

        assert await client.bodies("orders") == [b"plain"]


def check(builtin: Found, answer: Command, code: ResponseCode, what: str) -> None:
    assert answer.code == code, answer.remark
    assert f"{what} needs the plugin {builtin.name!r}, which is not active" in answer.remark


async def pull(client: Peer, kind: str, expression: str) -> Command:
    return await client.ask(
        RequestCode.PULL_MESSAGE, consumerGroup="readers", topic="orders", queueId=0, queueOffset=0, maxMsgNums=32,
        sysFlag=4, commitOffset=0, suspendTimeoutMillis=0, subscription=expression, expressionType=kind, subVersion=0,
    )  # fmt: skip
