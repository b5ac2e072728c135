"""Rules in a running broker, with a clock that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest

from verniermq.kernel import Broker, Command, Configuration, Connection, RequestCode, ResponseCode, connect
from verniermq.kernel.config import load
from verniermq.kernel.errors import VernierMQError
from verniermq.kernel.host.reload import SettingsWatcher
from verniermq.plugins.flow import Config, Plugin
from verniermq.plugins.flow.rules import FlowRule
from verniermq.testing import SMALL, ManualClock, running_broker

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def broker_with(clock: ManualClock | None = None, **flow: Any) -> AsyncIterator[tuple[Broker, Connection]]:
    settings = {f"plugins__flow__{key}": value for key, value in flow.items()}
    async with running_broker(clock=clock, **settings) as broker:
        connection = await connect(broker.advertised.text)
        try:
            yield broker, connection
        finally:
            connection.close()


def send(topic: str = "orders", group: str = "billing") -> Command:
    ext = {"a": group, "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0", "i": ""}
    return Command.request(RequestCode.SEND_MESSAGE_V2, ext, b"hello")


def pull(topic: str = "orders", group: str = "billing") -> Command:
    ext = {
        "consumerGroup": group, "topic": topic, "queueId": "0", "queueOffset": "0", "maxMsgNums": "1",
        "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
    }  # fmt: skip
    return Command.request(RequestCode.PULL_MESSAGE, ext)


def plugin_of(broker: Broker) -> Plugin:
    plugin = broker.host.active["flow"].instance
    assert isinstance(plugin, Plugin)
    return plugin


async def codes(connection: Connection, *requests: Command) -> list[int]:
    return [(await connection.request(request)).code for request in requests]


async def test_sends_above_the_limit_are_answered_with_system_busy() -> None:
    async with broker_with(ManualClock(), rules=[{"topic": "orders", "count": 2}]) as (_, connection):
        answers = [await connection.request(send()) for _ in range(3)]
        other = await connection.request(send("refunds"))

    assert [answer.code for answer in answers] == [ResponseCode.SUCCESS, ResponseCode.SUCCESS, ResponseCode.SYSTEM_BUSY]
    assert "topic 'orders' at most 2 per second" in answers[2].remark
    assert other.code == ResponseCode.SUCCESS


async def test_pulls_above_the_limit_are_answered_with_flow_control() -> None:
    rules = [{"resource": "billing:orders", "count": 1}]
    async with broker_with(ManualClock(), rules=rules) as (_, connection):
        assert await codes(connection, send(group="producers")) == [ResponseCode.SUCCESS]

        assert await codes(connection, pull(), pull(), pull(group="audit")) == [
            ResponseCode.SUCCESS, ResponseCode.FLOW_CONTROL, ResponseCode.SUCCESS,
        ]  # fmt: skip


async def test_a_second_later_they_pass_again() -> None:
    clock = ManualClock()
    async with broker_with(clock, rules=[{"topic": "orders", "count": 1}]) as (_, connection):
        assert await codes(connection, send(), send()) == [ResponseCode.SUCCESS, ResponseCode.SYSTEM_BUSY]
        await clock.advance(1.0)
        assert await codes(connection, send(), send()) == [ResponseCode.SUCCESS, ResponseCode.SYSTEM_BUSY]


async def test_uniform_rate_delays_sends_without_holding_up_others() -> None:
    clock = ManualClock()
    rules = [{"topic": "orders", "count": 5, "behaviour": "uniform_rate", "max_queueing_ms": 400}]
    async with broker_with(clock, rules=rules) as (_, connection):
        ended, ends = anyio.create_memory_object_stream[tuple[int, float]](4)
        started = clock.now()

        async def one() -> None:
            answer = await connection.request(send(), timeout=60)
            ended.send_nowait((answer.code, round(clock.now() - started, 3)))

        async with anyio.create_task_group() as tasks, ended, ends:
            for _ in range(4):
                tasks.start_soon(one)
            at_once = [await ends.receive(), await ends.receive()]
            assert await codes(connection, send("refunds")) == [ResponseCode.SUCCESS]
            later = []
            for _ in range(2):
                await clock.advance(0.2)
                later.append(await ends.receive())

    assert sorted(at_once) == [(ResponseCode.SUCCESS, 0.0), (ResponseCode.SYSTEM_BUSY, 0.0)]
    assert later == [(ResponseCode.SUCCESS, 0.2), (ResponseCode.SUCCESS, 0.4)]


async def test_clients_and_kinds_of_requests_can_be_limited() -> None:
    rules = [{"client": "127.0.0.*", "count": 3}, {"request": "GET_MAX_OFFSET", "count": 1}]
    async with broker_with(ManualClock(), rules=rules) as (_, connection):
        assert await codes(connection, *(send() for _ in range(4))) == [0, 0, 0, ResponseCode.SYSTEM_BUSY]
        offset = {"topic": "orders", "queueId": "0"}
        asked = [Command.request(RequestCode.GET_MAX_OFFSET, dict(offset)) for _ in range(2)]
        assert await codes(connection, *asked) == [ResponseCode.SUCCESS, ResponseCode.SYSTEM_BUSY]


async def test_the_protection_of_the_system_concerns_sends_and_pulls_only() -> None:
    async with broker_with(ManualClock(), system={"qps": 2}) as (_, connection):
        assert await codes(connection, send(), pull(), send(), pull()) == [
            0, 0, ResponseCode.SYSTEM_BUSY, ResponseCode.FLOW_CONTROL,
        ]  # fmt: skip
        offset = {"topic": "orders", "queueId": "0"}
        assert await codes(connection, Command.request(RequestCode.GET_MAX_OFFSET, offset)) == [0]


async def test_new_settings_apply_at_once() -> None:
    async with broker_with(ManualClock(), rules=[{"topic": "orders", "count": 1}]) as (broker, connection):
        assert await codes(connection, send(), send()) == [0, ResponseCode.SYSTEM_BUSY]

        plugin_of(broker).settings_changed(Config(rules=(FlowRule(topic="orders", count=3),)))
        assert await codes(connection, send(), send(), send()) == [0, 0, ResponseCode.SYSTEM_BUSY]

        plugin_of(broker).settings_changed(Config())
        assert await codes(connection, send(), send(), send()) == [0, 0, 0]


async def test_without_rules_nothing_stands_in_front_of_the_handlers() -> None:
    async with broker_with(ManualClock()) as (broker, connection):
        plugin = plugin_of(broker)
        before = broker.host.implementations("before_request")
        served = broker.host.implementations("request_served")
        assert before == served == []

        plugin.settings_changed(Config(rules=(FlowRule(topic="orders", count=1),)))
        assert [call.plugin.name for call in (*before, *served)] == ["flow", "flow"]
        assert await codes(connection, send(), send()) == [0, ResponseCode.SYSTEM_BUSY]

        plugin.settings_changed(Config())
        assert before == served == []
        assert await codes(connection, send(), send()) == [0, 0]


async def test_a_reply_that_is_stored_as_a_message_counts_once() -> None:
    settings = {"plugins__reply__store": True, "plugins__flow__rules": [{"topic": "*", "count": 1}]}
    async with running_broker(clock=ManualClock(), **settings) as broker:
        connection = await connect(broker.address)
        request = send("DefaultCluster_REPLY_TOPIC")
        reply = Command.request(RequestCode.SEND_REPLY_MESSAGE_V2, request.ext, b"an answer")
        await connection.request(reply)
        connection.close()

        assert [resource.node.passed for resource in plugin_of(broker).engine.resources] == [1]
        assert broker.store.max_offset("DefaultCluster_REPLY_TOPIC", 0) == 1


async def test_rules_are_read_again_from_a_changed_file(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"

    def read() -> Configuration:
        return load(file, {**SMALL, "store.path": str(tmp_path / "store")}, environ={})

    def write(rules: str) -> None:
        file.write_text(f"[plugins.flow]\nrules = [{rules}]\n")

    write('{ topic = "orders", count = 1 }')
    async with Broker(read(), ManualClock()) as broker:
        connection = await connect(broker.advertised.text)
        watcher = SettingsWatcher(broker.host, broker.configuration, read)
        assert await codes(connection, send(), send()) == [0, ResponseCode.SYSTEM_BUSY]

        write('{ topic = "orders", count = 2 }')
        watcher.reload()
        assert await codes(connection, send(), send()) == [0, ResponseCode.SYSTEM_BUSY]

        write('{ topic = "orders", count = "many" }')
        with pytest.raises(VernierMQError, match="count"):
            watcher.reload()
        assert await codes(connection, send()) == [ResponseCode.SYSTEM_BUSY], "the rules stay as they were"
        connection.close()


async def test_a_mistake_of_a_peer_opens_no_breaker() -> None:
    breakers = [{"topic": "*", "measure": "error_count", "limit": 0, "least_calls": 1}]
    async with broker_with(ManualClock(), breakers=breakers) as (broker, connection):
        refused = send()
        refused.ext["e"] = "99"
        assert (await connection.request(refused)).code != ResponseCode.SUCCESS

        assert await codes(connection, send()) == [ResponseCode.SUCCESS]
        assert [resource.node.running for resource in plugin_of(broker).engine.resources] == [0]


async def test_the_figures_are_part_of_the_broker_s_runtime_info() -> None:
    async with broker_with(ManualClock(), rules=[{"topic": "orders", "count": 1}]) as (broker, connection):
        await codes(connection, send(), send())

        shown = plugin_of(broker).runtime_info()

    assert shown == {"flow topic orders": "passed=1 blocked=1 pass_qps=1 block_qps=1 running=0 average_rt_ms=0.0"}


async def test_the_rules_and_figures_can_be_asked_for() -> None:
    rules = [{"topic": "orders", "count": 1}]
    async with broker_with(ManualClock(), rules=rules, system={"qps": 9}) as (_, connection):
        await codes(connection, send(), send())

        answer = await connection.request(Command.request(RequestCode.GET_FLOW_FIGURES))

    told = orjson.loads(answer.body)
    assert told["rules"] == ["system qps at most 9", "topic 'orders' at most 1 per second, reject"]
    assert told["resources"] == [
        {
            "name": "topic orders", "passed": 1, "blocked": 1, "pass_qps": 1, "block_qps": 1, "running": 0,
            "average_rt_ms": 0.0, "breakers": [],
        }
    ]  # fmt: skip


async def test_a_request_that_is_cancelled_leaves_its_gate() -> None:
    rules = [{"topic": "orders", "count": 1, "grade": "concurrency"}]
    async with broker_with(ManualClock(), rules=rules) as (broker, connection):
        plugin = plugin_of(broker)
        (accepted,) = broker.server.connections
        started = asyncio.Event()

        async def never(request: Command, connection: Connection) -> Command:
            started.set()
            await asyncio.sleep(3600)
            return request.reply()

        broker.handlers[RequestCode.SEND_MESSAGE_V2] = never
        connection.oneway(send())
        await started.wait()
        (resource,) = plugin.engine.resources
        running = resource.node.running
        (task,) = accepted.tasks
        task.cancel()
        await asyncio.wait([task])

        assert (running, resource.node.running) == (1, 0)


async def test_a_request_that_is_inside_when_the_rules_go_leaves_its_gate_all_the_same() -> None:
    rule = FlowRule(topic="orders", count=1, grade="concurrency")
    async with broker_with(ManualClock()) as (broker, connection):
        plugin = plugin_of(broker)
        plugin.settings_changed(Config(rules=(rule,)))
        store, go_on, started = broker.handlers[RequestCode.SEND_MESSAGE_V2], asyncio.Event(), asyncio.Event()

        async def slow(request: Command, connection: Connection) -> Command:
            started.set()
            await go_on.wait()
            return request.reply()

        broker.handlers[RequestCode.SEND_MESSAGE_V2] = slow
        inside = asyncio.create_task(connection.request(send()))
        await started.wait()
        broker.handlers[RequestCode.SEND_MESSAGE_V2] = store
        plugin.settings_changed(Config())
        go_on.set()
        await inside
        plugin.settings_changed(Config(rules=(rule,)))

        assert await codes(connection, send(), send()) == [0, 0]
        assert [resource.node.running for resource in plugin.engine.resources] == [0]
