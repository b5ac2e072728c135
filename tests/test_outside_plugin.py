"""Two plugins of strangers, outside of the tree: what built-in plugins can do, they can, with public names alone.

The first limits requests, serves a request of its own, keeps a table, shows itself to those who watch, brings hooks and
a command; the second implements the hooks.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest

import verniermq.kernel
from tests.kernel.pulling import until
from tests.plugins.peer import peer
from tests.plugins.watching import look
from verniermq.kernel import Command, RequestCode, ResponseCode
from verniermq.testing import running_broker

pytestmark = pytest.mark.anyio

ASK_QUOTA = 9400

QUOTA = '''
"""So many sends for each producer group, and one request of a peer at a time."""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import attrs

from verniermq.kernel import (
    Busy, Command, Connection, Context, Declaration, Document, NoPermission, Registry, RequestCode, Sample, hookimpl,
    hookspec, setting,
)
from verniermq.kernel.requests import SendMessage

ASK_QUOTA = 9400
PEER = "quota.request"


@hookspec("question")
def quota_of(group: str) -> int | None:
    """Say how many messages a group may send. Silence means what the settings say."""


@hookspec("announcement")
def quota_used_up(group: str) -> None:
    """A group has sent its last message."""


@attrs.frozen
class Config:
    sends: int = setting(3, "How many messages a group may send.", at_least=0)


@attrs.define(eq=False)
class Plugin:
    declaration: ClassVar = Declaration(
        api=1, config=Config, summary="Limits sends.", requests=(ASK_QUOTA,), hookspecs=(quota_of, quota_used_up),
        on_failure="closed",
    )
    config: Config
    broker: Context
    sent: dict[str, int] = attrs.field(factory=dict, init=False)
    table: Document = attrs.field(init=False)

    def setup(self, registry: Registry) -> None:
        registry.handler(ASK_QUOTA, self.answer)
        self.table = registry.table("quota", load=self.load, save=lambda: {"sent": dict(self.sent)})
        registry.metric("quota_sent_total", "counter", "Messages sent.", self.samples, labels=("group",))
        registry.page("/quota", lambda query: {"sent": self.sent}, title="Quota")
        registry.check("quotas are known", lambda: None if self.config.sends else "nobody may send anything")

    def samples(self) -> Iterable[Sample]:
        return (((group,), sent) for group, sent in self.sent.items())

    def load(self, content: Mapping[str, Any]) -> None:
        self.sent = dict(content.get("sent", {}))

    def limit(self, group: str) -> int:
        limit = self.broker.hooks.ask(quota_of, group)
        return self.config.sends if limit is None else limit

    @hookimpl
    def before_request(self, request: Command, connection: Connection) -> None:
        if connection.attributes.setdefault(PEER, request) is not request:
            raise Busy("one request at a time")
        if request.code == RequestCode.SEND_MESSAGE_V2:
            group = SendMessage.of(request).group
            if self.sent.get(group, 0) >= self.limit(group):
                raise NoPermission(f"group {group!r} has sent its {self.limit(group)} messages")

    @hookimpl
    def request_served(
        self, request: Command, connection: Connection, answer: Command | None, error: Exception | None
    ) -> None:
        if connection.attributes.get(PEER) is request:
            del connection.attributes[PEER]
        if request.code == RequestCode.SEND_MESSAGE_V2 and answer is not None:
            group = SendMessage.of(request).group
            self.sent[group] = self.sent.get(group, 0) + 1
            self.table.touch()
            if self.sent[group] == self.limit(group):
                self.broker.hooks.announce(quota_used_up, group)

    async def answer(self, request: Command, connection: Connection) -> Command:
        await self.broker.clock.sleep(float(request.ext.get("seconds", 0)))
        group = request.text("group")
        return request.reply(ext={"left": str(self.limit(group) - self.sent.get(group, 0))})
'''

FRIENDS = '''
"""Friends may send more."""

from typing import ClassVar

import attrs

from verniermq.kernel import Context, Declaration, NoConfig, hookimpl


@attrs.define(eq=False)
class Plugin:
    declaration: ClassVar = Declaration(api=1, summary="Friends may send more.")
    config: NoConfig
    broker: Context
    poor: list[str] = attrs.field(factory=list, init=False)

    @hookimpl(optionalhook=True)
    def quota_of(self, group: str) -> int | None:
        return 5 if group == "producers" else None

    @hookimpl(optionalhook=True)
    def quota_used_up(self, group: str) -> None:
        self.poor.append(group)
'''


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "quota.py").write_text(QUOTA)
    (tmp_path / "friends.py").write_text(FRIENDS)
    return {"store": tmp_path / "store", "plugins__enable": ["default", str(tmp_path / "quota.py")]}


def with_friends(settings: dict[str, Any]) -> dict[str, Any]:
    (*others, quota) = settings["plugins__enable"]
    return {**settings, "plugins__enable": [*others, quota.replace("quota", "friends"), quota]}


@pytest.mark.parametrize("source", [QUOTA, FRIENDS], ids=["quota", "friends"])
def test_they_import_public_names_and_nothing_else_of_ours(source: str) -> None:
    imports = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom | ast.Import)]
    ours = {
        (node.module, alias.name)
        for node in imports
        for alias in node.names
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("verniermq")
    }

    assert ours
    public = {
        "verniermq.kernel": verniermq.kernel.__all__,
        "verniermq.kernel.requests": verniermq.kernel.requests.__all__,
    }
    assert [(module, name) for module, name in ours if name not in public.get(str(module), ())] == []


async def test_requests_are_limited_and_the_peer_is_told_why(settings: dict[str, Any]) -> None:
    async with running_broker(**settings) as broker, peer(broker.address) as client:
        answers = [await client.send("orders") for _ in range(5)]
        stored = await client.bodies("orders")

        assert [answer.code for answer in answers] == [0, 0, 0, ResponseCode.NO_PERMISSION, ResponseCode.NO_PERMISSION]
        assert answers[3].remark == "group 'producers' has sent its 3 messages"
        assert len(stored) == 3
        assert broker.host.active["quota"].failures == 0


async def test_one_request_of_a_peer_is_served_at_a_time_and_other_peers_go_on(settings: dict[str, Any]) -> None:
    async with (
        running_broker(**settings) as broker,
        peer(broker.address) as client,
        peer(broker.address) as other,
    ):
        slow = Command.request(ASK_QUOTA, {"group": "producers", "seconds": "0.2"})
        answers: list[Command] = []

        async def ask() -> None:
            answers.append(await client.connection.request(slow))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await until(lambda: any("quota.request" in peer_.attributes for peer_ in broker.server.connections))
            refused = await client.ask(RequestCode.GET_MAX_OFFSET, topic="orders", queueId=0)
            elsewhere = await other.ask(RequestCode.GET_MAX_OFFSET, topic="orders", queueId=0)
        again = await client.ask(RequestCode.GET_MAX_OFFSET, topic="orders", queueId=0)

    assert (refused.code, refused.remark) == (ResponseCode.SYSTEM_BUSY, "one request at a time")
    assert [answer.ext for answer in answers] == [{"left": "3"}]
    assert elsewhere.code == again.code == ResponseCode.SUCCESS


async def test_its_request_is_served_and_its_table_survives_a_restart(settings: dict[str, Any]) -> None:
    ask = {"group": "producers"}
    async with running_broker(**settings) as broker, peer(broker.address) as client:
        await client.sent("orders")
        await client.sent("orders")
        before = await client.connection.request(Command.request(ASK_QUOTA, dict(ask)))
    written = orjson.loads((settings["store"] / "config" / "quota.json").read_bytes())
    async with running_broker(**settings) as broker, peer(broker.address) as client:
        after = await client.connection.request(Command.request(ASK_QUOTA, dict(ask)))
        codes = [(await client.send("orders")).code for _ in range(2)]

    assert (before.ext, after.ext) == ({"left": "1"}, {"left": "1"})
    assert written == {"sent": {"producers": 2}}
    assert codes == [ResponseCode.SUCCESS, ResponseCode.NO_PERMISSION]


async def test_another_plugin_answers_and_hears_its_hooks(settings: dict[str, Any]) -> None:
    async with running_broker(**with_friends(settings)) as broker, peer(broker.address) as client:
        codes = [(await client.send("orders")).code for _ in range(6)]

        assert codes == [0, 0, 0, 0, 0, ResponseCode.NO_PERMISSION]
        assert broker.host.active["friends"].instance.poor == ["producers"]


async def test_the_other_plugin_works_without_it(settings: dict[str, Any]) -> None:
    alone = with_friends(settings) | {"plugins__disable": ["quota"]}
    async with running_broker(**alone) as broker, peer(broker.address) as client:
        for _ in range(6):
            await client.sent("orders")

        assert broker.host.is_active("friends")
        assert "quota_of" not in broker.host.hook_names
        unknown = await client.connection.request(Command.request(ASK_QUOTA))
        assert unknown.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


async def test_those_who_watch_see_its_figures_its_page_and_its_condition(settings: dict[str, Any]) -> None:
    (*others, quota) = settings["plugins__enable"]
    watched = {"plugins__enable": [*others, "http", quota], "plugins__http__listen": "127.0.0.1:0"}
    async with running_broker(**settings | watched) as broker, peer(broker.address) as client:
        await client.sent("orders")
        page, ready = await look(broker, "/quota"), await look(broker, "/readyz")
        (metric,) = [one for registry in broker.registries for one in registry.metrics if one.plugin == "quota"]

        assert page.json == {"sent": {"producers": 1}}
        assert {"check": "quotas are known", "plugin": "quota", "ready": True, "why": ""} in ready.json["checks"]
        assert (metric.name, list(metric.samples())) == ("quota_sent_total", [(("producers",), 1)])


COMMAND = '''
import click


@click.command()
@click.argument("group")
def quota(group: str) -> None:
    """Say how many messages a group may send."""
    click.echo(f"{group}: 3")
'''


def test_a_package_brings_a_command(tmp_path: Path) -> None:
    (tmp_path / "strangers_quota.py").write_text(COMMAND)
    metadata = tmp_path / "strangers_quota-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: strangers-quota\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[verniermq.commands]\nquota = strangers_quota:quota\n")

    def verniermq(*words: str) -> str:
        code = "from verniermq.cli import main; main()"
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        return subprocess.check_output([sys.executable, "-c", code, *words], env=environment, text=True)

    assert verniermq("quota", "producers") == "producers: 3\n"
    assert "Say how many messages a group may send." in verniermq("--help")
