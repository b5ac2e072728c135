"""Masters and slaves as the settings have them."""

from __future__ import annotations

import asyncio
import socket
import struct
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest

from tests.kernel.pulling import INCLUDED, SUSPEND, Waiting, pull, until
from tests.plugins.ha.pairs import SMALL, log_files, plugin, running_master, running_slave, send
from tests.plugins.peer import peer
from tests.work import WorkPerTurn
from verniermq.client import SendStatus
from verniermq.kernel import (
    Broker,
    Command,
    ConfigError,
    GroupConfig,
    PluginError,
    RequestCode,
    ResponseCode,
    TopicConfig,
)
from verniermq.plugins.namesrv.routes import LiveBroker
from verniermq.testing import ManualClock, running_broker

pytestmark = pytest.mark.anyio

OK = SendStatus.SEND_OK


async def equal(master: Broker, slave: Broker) -> None:
    """The slave's log is the master's, and its queues know as much."""
    await until(lambda: slave.store.end == master.store.end and slave.store.dispatched_end == slave.store.end)
    assert log_files(slave) == log_files(master)
    for queue in master.store.queues():
        assert slave.store.max_offset(queue.topic, queue.queue_id) == queue.max_offset


async def ask(broker: Broker, code: RequestCode, fields: dict[str, str] | None = None, body: bytes = b"") -> Command:
    async with peer(broker.address) as client:
        return await client.ask(code, body, **(fields or {}))


# --- copying -------------------------------------------------------------------------------


async def test_a_slave_has_its_masters_log_and_tables(tmp_path: Path) -> None:
    async with running_master(tmp_path / "master") as master, running_slave(tmp_path / "slave", master) as slave:
        assert await send(master, 300) == [OK] * 300
        master.groups.put(GroupConfig("readers"))
        master.offsets.commit("readers", "orders", 1, 17)

        await equal(master, slave)
        assert len(log_files(master)) > 1
        await until(lambda: slave.offsets.committed("readers", "orders", 1) == 17)
        assert slave.topics.find("orders") == master.topics.find("orders")
        assert "readers" in slave.groups
        members = master.host.active["namesrv"].instance.embedded.table.members(master.name)
        assert {broker_id: member.address for broker_id, member in members.items()} == {
            0: master.address, 1: slave.address,
        }  # fmt: skip


async def test_either_side_may_be_stopped_and_started_again(tmp_path: Path) -> None:
    async with running_master(tmp_path / "master") as master:
        async with running_slave(tmp_path / "slave", master) as slave:
            await send(master, 50)
            await equal(master, slave)
        await send(master, 50)
        async with running_slave(tmp_path / "slave", master) as slave:
            await equal(master, slave)
    async with running_master(tmp_path / "master") as master, running_slave(tmp_path / "slave", master) as slave:
        await send(master, 50)
        await equal(master, slave)


async def test_a_store_that_was_alone_becomes_a_master_and_a_slaves_store_opens_alone(tmp_path: Path) -> None:
    async with running_broker(tmp_path / "master", **SMALL) as alone:
        await send(alone, 100)
    async with running_master(tmp_path / "master") as master, running_slave(tmp_path / "slave", master) as slave:
        await equal(master, slave)
        files = log_files(master)
    async with running_broker(tmp_path / "slave", **SMALL) as alone:
        assert log_files(alone) == files
        assert await send(alone, 1) == [OK]
        assert sum(alone.store.max_offset("orders", queue) for queue in range(16)) == 101


async def test_an_empty_slave_begins_with_its_masters_oldest_file(tmp_path: Path) -> None:
    async with running_master(tmp_path / "master") as master:
        await send(master, 300)
        master.store.delete_first_segment()
        await master.store.expire_queues()
        async with running_slave(tmp_path / "slave", master) as slave:
            await equal(master, slave)
            assert slave.store.start == master.store.start > 0


async def test_offsets_that_consumers_committed_to_the_slave_stay_until_the_masters_change(tmp_path: Path) -> None:
    async with running_master(tmp_path / "master") as master, running_slave(tmp_path / "slave", master) as slave:
        await send(master, 4)
        master.offsets.commit("g", "orders", 0, 5)
        await until(lambda: slave.offsets.committed("g", "orders", 0) == 5)
        slave.offsets.commit("g", "orders", 0, 9)
        master.offsets.commit("g", "orders", 1, 1)
        await until(lambda: slave.offsets.committed("g", "orders", 1) == 1)
        assert slave.offsets.committed("g", "orders", 0) == 9

        master.offsets.reset("g", "orders", 0, 2)

        await until(lambda: slave.offsets.committed("g", "orders", 0) == 2)


# --- acknowledgements ----------------------------------------------------------------------


async def test_a_sync_master_says_what_its_slaves_have(tmp_path: Path) -> None:
    async with running_master(tmp_path / "master", "sync_master", plugins__ha__timeout="30s") as master:
        assert await send(master, 1) == [SendStatus.SLAVE_NOT_AVAILABLE]
        assert await send(master, 1, wait=False) == [OK]
        async with running_slave(tmp_path / "slave", master) as slave:
            await until(lambda: plugin(master)._votes.confirmed == master.store.end)
            assert await send(master, 20) == [OK] * 20
            assert slave.store.end == master.store.end
        await until(lambda: not plugin(master)._sender.slaves)
        assert await send(master, 1) == [SendStatus.SLAVE_NOT_AVAILABLE]


async def test_a_slave_says_what_it_has_before_it_brings_it_into_queues(tmp_path: Path) -> None:
    async with running_master(tmp_path / "master") as master, running_slave(tmp_path / "slave", master) as slave:
        await send(master, 1)
        await equal(master, slave)
        said: list[bool] = []
        slave.store.listeners.append(
            lambda events: said.append(plugin(slave)._receiver._reported >= events[-1].end)  # sends wait for it
        )

        await send(master, 5)
        await equal(master, slave)

        assert said
        assert all(said)


async def test_a_master_that_waits_for_no_slave_is_not_asked_about_its_messages(tmp_path: Path) -> None:
    async with running_master(tmp_path / "master", "async_master") as master:
        assert not master.acknowledgements.wait
        assert await send(master, 1) == [OK]


async def test_a_slave_that_is_connected_and_silent_makes_a_time_out(tmp_path: Path) -> None:
    async with (
        running_master(tmp_path / "master", "sync_master", plugins__ha__timeout="200ms") as master,
        await ha_connection(master) as stream,
    ):
        await stream.send(struct.pack(">q", 0))
        await until(lambda: plugin(master)._votes.machines)

        assert await send(master, 2) == [SendStatus.FLUSH_SLAVE_TIMEOUT] * 2


async def test_two_connections_of_one_machine_are_one_vote(tmp_path: Path) -> None:
    async with (
        running_master(tmp_path / "m", "sync_master", plugins__ha__in_sync=3, plugins__ha__timeout="200ms") as master,
        running_slave(tmp_path / "one", master, 1) as one,
        running_slave(tmp_path / "two", master, 2) as two,
    ):
        await until(lambda: len(plugin(master)._sender.slaves) == 2)
        assert await send(master, 1) == [SendStatus.SLAVE_NOT_AVAILABLE]
        await equal(master, one)
        await equal(master, two)


# --- the door ------------------------------------------------------------------------------


async def ha_connection(master: Broker) -> anyio.abc.SocketStream:
    return await anyio.connect_tcp("127.0.0.1", plugin(master)._sender.port)


async def received(stream: anyio.abc.SocketStream) -> bytes:
    """All that comes until the other side closes."""
    data = b""
    with anyio.fail_after(30):
        try:
            while True:
                data += await stream.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return data


async def test_a_stranger_gets_no_byte_and_counts_for_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = {"plugins__ha__slaves": ["10.1.2.3"]}
    async with running_master(tmp_path / "master", "sync_master", **settings) as master:
        await send(master, 1)
        async with await ha_connection(master) as stream:
            assert await received(stream) == b""
        assert await send(master, 1) == [SendStatus.SLAVE_NOT_AVAILABLE]
    assert "127.0.0.1" in caplog.text
    assert "put its address into slaves" in caplog.text


TLS = Path(__file__).parents[2] / "client" / "tls"
WITH_TLS = {
    "plugins__ha__tls": True, "tls__mode": "permissive", "tls__certificate": str(TLS / "certificate.pem"),
    "tls__key": str(TLS / "key.pem"), "tls__outgoing": True, "tls__server_ca": str(TLS / "certificate.pem"),
}  # fmt: skip


async def test_the_log_travels_inside_tls_and_nobody_gets_it_in_the_clear(tmp_path: Path) -> None:
    async with running_master(tmp_path / "master", "sync_master", **WITH_TLS) as master:
        await send(master, 3)
        async with await ha_connection(master) as stranger:
            await stranger.send(bytes(8))
            assert b"orders" not in await received(stranger)
        assert not plugin(master)._votes.machines

        async with running_slave(tmp_path / "slave", master, **WITH_TLS) as slave:
            await equal(master, slave)
            assert await send(master, 3) == [OK] * 3


@pytest.mark.parametrize(
    ("role", "said"), [("async_master", "needs a certificate"), ("slave", "needs to know whom to trust")]
)
async def test_tls_without_certificates_is_refused_at_the_start(tmp_path: Path, role: str, said: str) -> None:
    broker_id = 1 if role == "slave" else 0
    with pytest.raises(PluginError, match=said):
        async with running_broker(
            tmp_path, plugins__enable=["default", "ha"], plugins__ha__role=role, plugins__ha__tls=True,
            broker__id=broker_id, broker__namesrv=["127.0.0.1:1"] if broker_id else [],
        ):  # fmt: skip
            pass


async def test_whoever_is_registered_under_the_brokers_name_may_have_its_log(tmp_path: Path) -> None:
    settings = {"plugins__ha__slaves": ["10.9.9.9", "registered"]}
    async with running_master(tmp_path / "master", **settings) as master:
        door = plugin(master)._sender._door
        table = master.host.active["namesrv"].instance.embedded.table

        def register(broker_id: int, name: str, address: str) -> None:
            table.register(LiveBroker("DefaultCluster", name, broker_id, address, "", 60.0, table._now(), {}), None)

        register(1, master.name, "10.1.2.3:10911")
        register(1, "another", "10.1.2.4:10911")

        assert await door.admits("10.9.9.9")
        assert await door.admits("10.1.2.3")
        assert await door.admits("::ffff:10.1.2.3")
        assert not await door.admits("10.1.2.4")
        assert not await door.admits("127.0.0.1")


async def test_strangers_that_knock_have_name_servers_asked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_master(tmp_path / "master", plugins__ha__slaves=["registered"]) as master:
        door = plugin(master)._sender._door
        asked = WorkPerTurn().watch(monkeypatch, door, "_registered")
        admitted = await asyncio.gather(*[door.admits(f"10.1.2.{number}") for number in range(50)])

    assert (any(admitted), asked.total) == (False, 1)


@pytest.mark.skipif(find_spec("uvloop") is None, reason="only uvloop does not know the address of who is gone")
@pytest.mark.parametrize("anyio_backend", [("asyncio", {"use_uvloop": True})], ids=["uvloop"])
async def test_who_is_gone_before_it_is_greeted_leaves_no_trace(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_master(tmp_path / "master") as master:
        for _ in range(20):
            knocking = socket.create_connection(("127.0.0.1", plugin(master)._sender.port))
            knocking.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            knocking.close()  # by a reset
        async with await ha_connection(master) as stream:
            await stream.send(bytes(8))
            await until(lambda: len(plugin(master)._sender.slaves) == 1)

    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize(
    ("reports", "why"),
    [
        ([1 << 60], "it has what this broker has lost"),
        ([-1], "it has what this broker has lost"),
        ([0, 1 << 60], "is not believed"),
        ([0, -5], "is not believed"),
    ],
)
async def test_a_report_that_cannot_be_true_is_not_believed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, reports: list[int], why: str
) -> None:
    async with running_master(tmp_path / "master", "sync_master", plugins__ha__timeout="200ms") as master:
        await send(master, 1)
        async with await ha_connection(master) as stream:
            for report in reports:
                await stream.send(struct.pack(">q", report))
                if report == 0:
                    assert len(await stream.receive()) > 12
            await received(stream)
            await until(lambda: not plugin(master)._sender.slaves)
        assert await send(master, 1) == [SendStatus.SLAVE_NOT_AVAILABLE]
    assert why in caplog.text


async def test_a_slave_behind_retention_is_told_and_not_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_master(tmp_path / "master") as master:
        async with running_slave(tmp_path / "slave", master) as slave:
            await send(master, 10)
            await equal(master, slave)
        await send(master, 300)
        master.store.delete_first_segment()
        async with running_slave(tmp_path / "slave", master) as slave:
            await until(lambda: plugin(slave)._receiver.problem)
            assert "what lies between was deleted" in plugin(slave)._receiver.problem
            assert slave.store.end < master.store.start
        async with await ha_connection(master) as stream:
            await stream.send(struct.pack(">q", 1000))
            assert await received(stream) == b""
    assert "its log ends at 1000, and ours begins at 65536" in caplog.text


@pytest.mark.parametrize("more", [0, 5])
async def test_a_slave_whose_log_differs_does_not_follow(tmp_path: Path, more: int) -> None:
    async with running_broker(tmp_path / "slave", **SMALL) as other:
        await send(other, 5)
    async with running_master(tmp_path / "master") as master:
        await send(master, 3 + more)
        async with running_slave(tmp_path / "slave", master) as slave:
            end = slave.store.end
            await until(lambda: plugin(slave)._receiver.problem)
            problem = plugin(slave)._receiver.problem
            assert ("has lost what we have" if not more else "another one than ours") in problem
            assert slave.store.end == end


async def test_files_of_another_size_are_refused_with_both_numbers(tmp_path: Path) -> None:
    async with (
        running_master(tmp_path / "master") as master,
        running_slave(tmp_path / "slave", master, store__segment_size="128KiB") as slave,
    ):
        await until(lambda: plugin(slave)._receiver.problem)
        assert "131072 bytes" in plugin(slave)._receiver.problem
        assert "65536" in plugin(slave)._receiver.problem


# --- what a slave answers ------------------------------------------------------------------


async def test_a_slave_refuses_what_only_its_master_may_do(tmp_path: Path) -> None:
    async with running_master(tmp_path / "master") as master, running_slave(tmp_path / "slave", master) as slave:
        await send(master, 3)
        await equal(master, slave)
        fields = {"topic": "new", "producerGroup": "p", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4",
                  "queueId": "0", "sysFlag": "0", "bornTimestamp": "0", "flag": "0", "properties": ""}  # fmt: skip
        answer = await ask(slave, RequestCode.SEND_MESSAGE, fields, b"x")
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "slave" in (answer.remark or "")
        assert "new" not in slave.topics
        assert (await ask(slave, RequestCode.END_TRANSACTION)).code == ResponseCode.SLAVE_NOT_AVAILABLE
        created = await ask(slave, RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": "new"})
        assert created.code == ResponseCode.SYSTEM_ERROR
        assert slave.store.end == master.store.end


async def test_consumers_read_from_a_slave_and_are_never_sent_back(tmp_path: Path) -> None:
    async with running_master(tmp_path / "master") as master, running_slave(tmp_path / "slave", master) as slave:
        await send(master, 8)
        await equal(master, slave)
        await until(lambda: "orders" in slave.topics)
        async with peer(slave.address) as client:
            found = await pull(client, "orders", 0)
            assert found.code == ResponseCode.SUCCESS
            ahead = await pull(client, "orders", 1000)
            assert ahead.code == ResponseCode.PULL_RETRY_IMMEDIATELY
            assert ahead.ext["nextBeginOffset"] == "1000"


async def test_who_reads_old_messages_is_sent_to_a_slave_and_back_when_it_has_caught_up(tmp_path: Path) -> None:
    far = {"plugins__ha__slow_after": "4KiB"}
    async with (
        running_master(tmp_path / "master", **far) as master,
        running_slave(tmp_path / "slave", master, **far) as slave,
    ):
        master.topics.put(TopicConfig("orders", 1, 1))
        await send(master, 40)
        await equal(master, slave)
        await until(lambda: "orders" in slave.topics)
        for broker in (master, slave):
            async with peer(broker.address) as client:
                found = [await pull(client, "orders", offset, maxMsgNums=1) for offset in (0, 39)]
                assert [one.ext["suggestWhichBrokerId"] for one in found] == ["1", "0"]

        master.groups.put(GroupConfig("readers", {"whichBrokerWhenConsumeSlowly": 3, "brokerId": 2}))
        async with peer(master.address) as client:
            found = [await pull(client, "orders", offset, maxMsgNums=1) for offset in (0, 39)]
            assert [one.ext["suggestWhichBrokerId"] for one in found] == ["3", "2"]


async def test_at_its_end_a_slave_sends_consumers_to_the_master_and_holds_them_while_there_is_none(
    tmp_path: Path,
) -> None:
    async with running_master(tmp_path / "master") as master:
        master.topics.put(TopicConfig("orders", 1, 1))
        async with running_slave(tmp_path / "slave", master) as slave:
            await send(master, 3)
            await equal(master, slave)
            await until(lambda: "orders" in slave.topics)
            waiting = INCLUDED | SUSPEND
            async with peer(slave.address) as client:
                at_end = await pull(client, "orders", 3, sysFlag=waiting)
                assert (at_end.code, at_end.ext["suggestWhichBrokerId"]) == (
                    ResponseCode.PULL_RETRY_IMMEDIATELY, "0",
                )  # fmt: skip

                plugin(slave)._receiver.connected = False
                held = Waiting()
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(held.run, client, "orders", 3, {})
                    await until(lambda: len(slave.held_pulls) == 1)
                    plugin(slave)._receiver.connected = True
                    await send(master, 1)
                assert held.answer is not None
                assert held.answer.code == ResponseCode.SUCCESS


async def test_a_slave_may_leave_reading_to_its_master(tmp_path: Path) -> None:
    async with (
        running_master(tmp_path / "master") as master,
        running_slave(tmp_path / "slave", master, plugins__ha__slave_reads=False) as slave,
        peer(slave.address) as client,
    ):
        assert (await pull(client, "orders", 0)).code == ResponseCode.SYSTEM_BUSY


async def test_delayed_messages_are_delivered_by_the_master_alone(tmp_path: Path) -> None:
    clock = ManualClock()
    async with (
        running_master(tmp_path / "master", clock=clock) as master,
        running_slave(tmp_path / "slave", master, clock=clock) as slave,
    ):
        await send(master, 1, DELAY="1")
        await equal(master, slave)
        await clock.advance(10)
        await until(lambda: sum(master.store.max_offset("orders", queue) for queue in range(16)) == 1)
        await equal(master, slave)


# --- operators -----------------------------------------------------------------------------


async def test_ha_status_tells_of_both_sides(tmp_path: Path) -> None:
    async with running_master(tmp_path / "master") as master, running_slave(tmp_path / "slave", master) as slave:
        await send(master, 3)
        await equal(master, slave)
        await until(lambda: plugin(master)._votes.confirmed == master.store.end)
        ours: dict[str, Any] = orjson.loads((await ask(master, RequestCode.GET_BROKER_HA_STATUS)).body)
        theirs: dict[str, Any] = orjson.loads((await ask(slave, RequestCode.GET_BROKER_HA_STATUS)).body)

        assert ours["master"] is True
        assert ours["inSyncSlaveNums"] == 1
        assert ours["haConnectionInfo"][0]["slaveAckOffset"] == ours["masterCommitLogMaxOffset"] == master.store.end
        assert theirs["master"] is False
        assert theirs["haClientRuntimeInfo"]["masterAddr"] == f"127.0.0.1:{plugin(master)._sender.port}"
        assert theirs["haClientRuntimeInfo"]["maxOffset"] == slave.store.end


async def test_a_slave_needs_the_plugin_and_fitting_settings(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"id = 1 makes a slave, which needs a plugin .*\"default\", \"ha\""):
        async with running_broker(tmp_path, broker__id=1):
            pass
    enabled = {"plugins__enable": ["default", "ha"]}
    with pytest.raises(PluginError, match=r"does not go with \[broker\] id = 1"):
        async with running_broker(tmp_path, broker__id=1, **enabled):
            pass
    with pytest.raises(PluginError, match="finds its master through a name server"):
        async with running_broker(tmp_path, broker__id=1, plugins__ha__role="slave", **enabled):
            pass
