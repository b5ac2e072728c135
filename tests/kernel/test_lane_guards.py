"""Plugins that are asked before requests, or told of them, do not close the compiled lane for everybody."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, ClassVar

import attrs
import pytest

from tests.kernel import frames
from tests.kernel.enabling import enabled
from tests.kernel.test_lane import compiled_only, counted, plain_send
from verniermq.contrib.metrics import Plugin as MetricsPlugin
from verniermq.kernel import (
    Command,
    Connection,
    Context,
    Declaration,
    NoPermission,
    Registry,
    RequestCode,
    ResponseCode,
    hookimpl,
    hookspecs,
)
from verniermq.plugins.acl import Config as AclConfig
from verniermq.plugins.flow import Config as FlowConfig

pytestmark = [pytest.mark.anyio, compiled_only]

HEARTBEAT = Command(RequestCode.HEART_BEAT, 5, language="JAVA", version=479, body=b'{"clientID":"c"}').encode()
ODD = "TAGS\x01größe\x02"
"""Not ASCII, so nothing for the lane."""


def send_to(topic: str, number: int, group: str = "producers", text: str = "") -> bytes:
    fields = {
        "a": group, "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0",
        "i": f"{text}UNIQ_KEY\x01{frames.unique_key(number)}\x02",
    }  # fmt: skip
    return Command(frames.SEND, number, 0, fields, language="JAVA", version=479).encode()


@attrs.define
class NoConfig:
    pass


@attrs.define(eq=False)
class Door:
    """Lets groups in that it knows."""

    declaration: ClassVar = Declaration(api=1, summary="Lets groups in.", on_failure="closed")
    config: NoConfig
    broker: Context
    known: set[str] = attrs.field(factory=lambda: {"producers", "guests"}, init=False)
    unseen: set[str] = attrs.field(factory=lambda: {"producers"}, init=False)
    seen: list[str] = attrs.field(factory=list, init=False)
    asked: list[tuple[str, str]] = attrs.field(factory=list, init=False)

    def setup(self, registry: Registry) -> None:
        registry.sends_pass(self._passes)

    def _passes(self, group: str, topic: str, connection: Connection) -> bool:
        self.asked.append((group, topic))
        if group == "stumbling":
            raise ZeroDivisionError
        return group in self.unseen

    @hookimpl
    def before_request(self, request: Command) -> None:
        if request.code == frames.SEND:
            self.seen.append(request.ext["a"])
            if request.ext["a"] not in self.known:
                raise NoPermission("not this group")


@attrs.define(eq=False)
class Listener:
    """Is told of requests, and says nothing of what may pass."""

    declaration: ClassVar = Declaration(api=1, summary="Listens.")
    config: NoConfig
    broker: Context

    @hookimpl
    def request_served(self, request: Command) -> None: ...


async def test_a_plugin_is_asked_once_for_a_peer_its_group_and_a_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with counted(tmp_path, monkeypatch, **enabled("default", door=Door)) as (one, counting):
        door = one.broker.host.active["door"].instance
        door.seen.clear()
        door.asked.clear()
        one.broker.host.ask_again()
        sends = b"".join(send_to(topic, n) for n, topic in enumerate(["orders", "bills"] * 20))
        answers = await one.give(sends)

        assert answers.count(b'"code":0') == 40
        assert counting.bytes == len(sends)
        assert (door.asked, door.seen) == ([("producers", "orders"), ("producers", "bills")], [])


async def test_a_group_that_the_plugin_wants_to_see_goes_the_plain_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with counted(tmp_path, monkeypatch, **enabled("default", door=Door)) as (one, counting):
        door = one.broker.host.active["door"].instance
        door.seen.clear()
        counting.bytes = 0
        groups = ["guests", "producers", "strangers", "stumbling"]
        mixed = [send_to("orders", number, group) for number, group in enumerate(groups)]
        answers = await one.give(b"".join(mixed))

        assert door.seen == ["guests", "strangers", "stumbling"]
        assert counting.bytes == len(mixed[1])
        assert (answers.count(b'"code":0'), answers.count(b"not this group")) == (2, 2)


async def test_a_plugin_is_asked_again_when_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with counted(tmp_path, monkeypatch, **enabled("default", door=Door)) as (one, counting):
        door = one.broker.host.active["door"].instance
        await one.give(send_to("orders", 1))
        assert counting.bytes > 0

        door.known.clear()
        door.unseen.clear()
        one.broker.host.ask_again()
        counting.bytes = 0
        answers = await one.give(send_to("orders", 2))

        assert b"not this group" in answers
        assert counting.bytes == 0


async def test_a_plugin_that_says_nothing_sees_every_send(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = enabled("default", door=Door, listener=Listener)
    async with counted(tmp_path, monkeypatch, **settings) as (one, counting):
        await one.give(send_to("orders", 1))
        assert counting.bytes == 0

        listener = one.broker.host.active["listener"].instance
        one.broker.host.pause(listener, hookspecs.request_served)
        await one.give(send_to("orders", 2))
        assert counting.bytes > 0


ACCOUNT = {"secret": "12345678"}


async def test_acl_lets_pass_who_need_not_sign_until_that_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {
        "plugins__enable": ["default", "acl"],
        "plugins__acl__whitelist": ["127.0.0.1"],
        "plugins__acl__accounts": {"someone": ACCOUNT},
    }
    async with counted(tmp_path, monkeypatch, **settings) as (one, counting):
        answers = await one.give(send_to("orders", 1))
        assert b'"code":0' in answers
        assert counting.bytes > 0

        counting.bytes = 0
        plugin = one.broker.host.active["acl"]
        one.broker.host.give_settings(plugin, AclConfig(accounts=plugin.config.accounts))
        answers = await one.give(send_to("orders", 2))

        assert b"is not signed" in answers
        assert counting.bytes == 0


async def test_flow_lets_pass_what_no_rule_is_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = [{"topic": "bills", "count": 1}]
    async with counted(tmp_path, monkeypatch, plugins__flow__rules=rules) as (one, counting):
        orders = b"".join(send_to("orders", n) for n in range(5))
        await one.give(orders)
        assert counting.bytes == len(orders)

        counting.bytes = 0
        one.connect()
        answers = await one.give(b"".join(send_to("bills", n) for n in range(5)))
        assert counting.bytes == 0
        assert answers.count(b'"code":0') <= 1
        assert answers.count(f'"code":{int(ResponseCode.SYSTEM_BUSY)}'.encode()) >= 4

        one.broker.host.give_settings(one.broker.host.active["flow"], FlowConfig())
        bills = b"".join(send_to("bills", n) for n in range(5))
        await one.give(send_to("bills", 9) + bills)
        assert counting.bytes >= len(bills)


async def test_a_property_that_a_plugin_wants_to_see_from_now_on_is_not_for_the_lane(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with counted(tmp_path, monkeypatch) as (one, counting):
        for number in (2, 3):
            await one.give(send_to("orders", number, text="colour\x01red\x02"))
        before = counting.bytes
        one.broker.host.concerned_properties |= {"colour"}
        await one.give(send_to("orders", 4, text="colour\x01red\x02"))
        assert counting.bytes == before > 0
        await one.give(send_to("orders", 5))
        assert counting.bytes > before


async def test_metrics_count_what_passes_by_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"plugins__enable": ["default", "http", "metrics"], "plugins__metrics__listen": "127.0.0.1:0"}
    async with counted(tmp_path, monkeypatch, plugins__http__listen="127.0.0.1:0", **settings) as (one, counting):
        plugin = one.broker.host.active["metrics"].instance
        assert isinstance(plugin, MetricsPlugin)
        key = (frames.SEND, 0, False)
        one.broker.catch_up()  # as each scrape does
        before = sum(plugin.requests.taken[key].counts)
        sends = b"".join(map(plain_send, range(10)))
        await one.give(sends)
        one.broker.catch_up()

        assert counting.bytes == len(sends)
        assert sum(plugin.requests.taken[key].counts) == before + 10
        assert 0 < plugin.requests.taken[key].sum < 30


@pytest.mark.parametrize(
    "odd", [HEARTBEAT, send_to("new", 7), send_to("orders", 7, text=ODD)], ids=["other request", "new topic", "odd tag"]
)
async def test_behind_an_odd_frame_the_lane_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, odd: bytes
) -> None:
    async with counted(tmp_path, monkeypatch) as (one, counting):
        ahead, behind = b"".join(map(plain_send, range(5))), b"".join(map(plain_send, range(10, 20)))
        answers = await one.give(ahead + odd + behind)

        assert answers.count(b'"code":0') == 16
        assert counting.bytes >= len(ahead) + len(behind) - len(plain_send(10))


async def test_many_odd_frames_are_served_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(3)
    numbers = list(range(1, 400))
    async with counted(tmp_path, monkeypatch) as (one, _):
        chunk = b"".join(send_to("orders", n, text=chance.choice(["", ODD])) for n in numbers)
        answers = await one.give(chunk)
        opaques = [int(part.split(b",")[0]) for part in answers.split(b'"opaque":')[1:]]

        assert opaques == numbers
        queue = next(queue for queue in one.broker.store.queues() if (queue.topic, queue.queue_id) == ("orders", 0))
        assert queue.max_offset >= len(numbers)
