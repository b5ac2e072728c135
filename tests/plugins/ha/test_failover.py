"""Brokers that choose their master: nothing acknowledged is lost, and nothing that was read changes."""

from __future__ import annotations

import contextlib
import shutil
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import orjson
import pytest
from click.testing import CliRunner, Result

from tests.kernel.commitlog.stores import pending
from tests.kernel.pulling import until
from tests.plugins.ha.pairs import ENABLED, SMALL, log_files
from tests.plugins.ha.pairs import send as send_alone
from tests.plugins.ha.replicas import Replicas, failover, running_replicas
from tests.plugins.peer import PATIENCE, Peer, peer
from verniermq.cli import main
from verniermq.client import Message, Producer, SendStatus
from verniermq.kernel import (
    Broker,
    Command,
    PluginError,
    RequestCode,
    RequestRefused,
    ResponseCode,
    TopicConfig,
    parse_offset_message_id,
)
from verniermq.plugins.ha.command import ha
from verniermq.plugins.ha.etcd import Etcd
from verniermq.plugins.ha.identity import incarnation
from verniermq.plugins.ha.leader import FIRST_SECONDS
from verniermq.testing import SMALL as CLI_SMALL
from verniermq.testing import running_broker

pytestmark = pytest.mark.anyio

OK = SendStatus.SEND_OK
CALM = {"plugins__ha__switch_grace": "1s", "plugins__ha__ttl": "20s", "plugins__ha__timeout": "20s"}
"""A machine that stalls for seconds is not what is tested: then a send is rightly answered that it may be lost."""


async def send(replicas: Replicas, *numbers: int) -> list[SendStatus]:
    async with Producer(
        "p", namesrv=replicas.namesrv, connect_timeout=PATIENCE, request_timeout=PATIENCE, send_timeout=PATIENCE
    ) as producer:
        return [(await producer.send(Message("orders", b"%06d" % number))).status for number in numbers]


async def create_topic(replicas: Replicas, master: int) -> None:
    """So that clients find it at the name server at once."""
    broker = replicas.brokers[master]
    broker.topics.for_send("orders", "TBW102", 4, "127.0.0.1")
    await until(lambda: _knows(replicas, broker.address))


def _knows(replicas: Replicas, address: str) -> bool:
    table = replicas.names.host.active["namesrv"].instance.embedded.table
    route = table.route("orders")
    return route is not None and route["brokerDatas"][0]["brokerAddrs"].get("0") == address


async def isolate(replicas: Replicas, number: int) -> None:
    """Take a replica's network away: what is connected to it is gone, and it reaches nobody."""
    found = failover(replicas.brokers[number])
    assert found._server is not None
    found._server.close()
    etcd = found.members._coordinator
    assert isinstance(etcd, Etcd)
    etcd._endpoints[:] = ["http://127.0.0.1:1"]
    assert found.members.leader is not None
    for follower in list(found.members.leader.followers.values()):
        follower.writer.transport.abort()
    replicas.etcd.forget(f"live/{number}")


async def rejoin(replicas: Replicas, number: int) -> None:
    etcd = failover(replicas.brokers[number]).members._coordinator
    assert isinstance(etcd, Etcd)
    etcd._endpoints[:] = [replicas.etcd.url]


async def bodies(broker: Broker) -> list[bytes]:
    found = []
    for queue in broker.store.queues():
        if queue.topic == "orders":
            for offset, size, _ in queue.entries(0, queue.max_offset):
                message = broker.store.message_at(offset, size)
                assert message is not None
                found.append(message.body)
    return found


async def equal(replicas: Replicas) -> None:
    """All logs are the same, and all queues know all of it."""
    stores = [broker.store for broker in replicas.brokers.values()]
    await until(lambda: len({store.end for store in stores} | {store.dispatched_end for store in stores}) == 1)
    files = [log_files(broker) for broker in replicas.brokers.values()]
    assert all(found == files[0] for found in files)


async def test_three_replicas_choose_a_master_and_copy_it(tmp_path: Path) -> None:
    async with running_replicas(tmp_path) as replicas:
        await replicas.start(1, 2)
        assert replicas.masters() == []
        await replicas.start(3)
        master = await replicas.master()
        await replicas.all_in_sync()
        await create_topic(replicas, master)

        assert await send(replicas, *range(50)) == [OK] * 50

        await equal(replicas)
        assert failover(replicas.brokers[master]).members.term == 1


async def test_another_one_takes_over_and_the_old_master_follows_it(tmp_path: Path) -> None:
    async with running_replicas(tmp_path) as replicas:
        await replicas.start(1, 2, 3)
        first = await replicas.master()
        await replicas.all_in_sync()
        await create_topic(replicas, first)
        assert await send(replicas, *range(20)) == [OK] * 20

        await replicas.stop(first)
        second = await replicas.master()
        assert second != first
        await create_topic(replicas, second)
        assert await send(replicas, *range(20, 40)) == [OK] * 20

        await replicas.start(first)
        await replicas.all_in_sync()
        assert await send(replicas, *range(40, 60)) == [OK] * 20
        await equal(replicas)
        assert sorted(await bodies(replicas.brokers[first])) == [b"%06d" % number for number in range(60)]


async def test_what_an_old_master_wrote_alone_is_cut_off_and_was_never_shown(tmp_path: Path) -> None:
    async with running_replicas(tmp_path, plugins__ha__timeout="300ms") as replicas:
        await replicas.start(1, 2, 3)
        first = await replicas.master()
        await replicas.all_in_sync()
        await create_topic(replicas, first)
        assert await send(replicas, *range(5)) == [OK] * 5
        await equal(replicas)
        old = failover(replicas.brokers[first]).members
        others = [number for number in replicas.brokers if number != first]
        # Cut off from everybody: it hears neither its followers nor the coordinator.
        await isolate(replicas, first)

        end = replicas.brokers[first].store.end
        lost = replicas.brokers[first].store.append(pending("orders", 0, b"lost"))
        waiting = failover(replicas.brokers[first]).confirm_append(lost)
        second = await replicas.master(*others)
        await create_topic(replicas, second)
        assert await send(replicas, *range(5, 10)) == [OK] * 5
        assert old.leader is not None
        assert replicas.brokers[first].store.end > end == replicas.brokers[first].store.dispatched_end

        await rejoin(replicas, first)

        assert await waiting == ResponseCode.FLUSH_SLAVE_TIMEOUT
        await replicas.all_in_sync()
        assert await send(replicas, *range(10, 15)) == [OK] * 5
        await equal(replicas)
        found = await bodies(replicas.brokers[first])
        assert sorted(found) == [b"%06d" % number for number in range(15)]


async def test_a_master_goes_on_without_the_coordinator_while_all_replicas_are_there(tmp_path: Path) -> None:
    async with running_replicas(tmp_path) as replicas:
        await replicas.start(1, 2, 3)
        master = await replicas.master()
        await replicas.all_in_sync()
        await create_topic(replicas, master)

        replicas.etcd.set_down(True)
        assert await send(replicas, *range(10)) == [OK] * 10
        other = next(number for number in replicas.brokers if number != master)
        await replicas.stop(other)
        await anyio.sleep(2.5)  # longer than a lease lasts
        assert replicas.masters() == [master]
        replicas.etcd.set_down(False)

        await until(lambda: replicas.in_sync() == sorted(replicas.brokers))
        assert await send(replicas, *range(10, 20)) == [OK] * 10
        await equal(replicas)


async def test_a_change_whose_answer_is_lost_is_asked_for_until_it_is_known(tmp_path: Path) -> None:
    async with running_replicas(tmp_path, **CALM) as replicas:
        lost: list[str] = []

        def lose(path: str) -> bool:
            if path == "kv/txn" and len(lost) < 6:
                lost.append(path)
                return True
            return False

        replicas.etcd.lose_answer = lose
        await replicas.start(1, 2, 3)
        master = await replicas.master()
        await replicas.all_in_sync()
        assert len(lost) == 6
        await create_topic(replicas, master)
        assert await send(replicas, *range(5)) == [OK] * 5
        await equal(replicas)


async def test_with_too_few_replicas_nothing_is_taken(tmp_path: Path) -> None:
    async with running_replicas(tmp_path) as replicas:
        await replicas.start(1, 2, 3)
        master = await replicas.master()
        await replicas.all_in_sync()
        others = [number for number in replicas.brokers if number != master]

        await replicas.stop(*others)

        await until(lambda: replicas.brokers[master].store.refusals)
        (why,) = replicas.brokers[master].store.refusals.values()
        assert why == "1 of 3 replicas are in sync, and 2 must be (min_in_sync)"
        await replicas.start(others[0])
        await until(lambda: not replicas.brokers[master].store.refusals)


async def test_of_two_replicas_one_is_enough_and_waits_for_its_disk(tmp_path: Path) -> None:
    settings = {"store__flush": "async", "store__flush_interval": "1h"}
    async with running_replicas(tmp_path, 2, **settings) as replicas:
        await replicas.start(1, 2)
        master = await replicas.master()
        await replicas.all_in_sync()
        await create_topic(replicas, master)
        await replicas.stop(3 - master)
        await until(lambda: replicas.in_sync() == [master])

        assert await send(replicas, *range(5)) == [OK] * 5

        store = replicas.brokers[master].store
        assert store.durable_end == store.dispatched_end == store.end


async def test_with_synchronous_flush_nobody_leaves_before_the_new_masters_disk_has_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then the old master's disk may be the only one that has what it acknowledged."""
    async with running_replicas(tmp_path, store__flush="sync") as replicas:
        await replicas.start(1, 2, 3)
        first = await replicas.master()
        await replicas.all_in_sync()
        await create_topic(replicas, first)
        second = next(number for number in replicas.brokers if number != first)
        log, works = replicas.brokers[second].store._log, threading.Event()
        sync = log.sync
        with monkeypatch.context() as slow:
            slow.setattr(log, "sync", lambda: works.wait(60) and sync())
            try:
                assert await send(replicas, *range(5)) == [OK] * 5
                await failover(replicas.brokers[first]).switch(second)
                await until(lambda: replicas.masters() == [second])
                await replicas.stop(first)
                with anyio.move_on_after(FIRST_SECONDS + 1.5):
                    await until(lambda: first not in replicas.in_sync())
                assert first in replicas.in_sync()
                assert replicas.brokers[second].store.durable_end < replicas.brokers[second].store.end
            finally:
                works.set()
            await until(lambda: first not in replicas.in_sync())


async def test_a_replica_that_lost_its_store_is_not_elected(tmp_path: Path) -> None:
    async with running_replicas(tmp_path) as replicas:
        await replicas.start(1, 2, 3)
        master = await replicas.master()
        await replicas.all_in_sync()
        await create_topic(replicas, master)
        assert await send(replicas, *range(5)) == [OK] * 5
        await replicas.stop(1, 2, 3)
        state = replicas.etcd.keys()["state"]
        assert len(state["in_sync"]) >= 1
        keeper = state["in_sync"][0][0]
        empty = next(number for number in (1, 2, 3) if number != keeper)
        shutil.rmtree(tmp_path / str(empty))

        await replicas.start(empty)
        with anyio.move_on_after(2.5):
            await until(replicas.masters)
        assert replicas.masters() == []
        await replicas.start(keeper)
        assert await replicas.master() == keeper
        await until(lambda: set(replicas.in_sync()) == {keeper, empty})
        await equal(replicas)


async def test_a_store_that_was_alone_becomes_the_first_master(tmp_path: Path) -> None:
    async with running_broker(tmp_path / "2", **SMALL) as alone:
        await send_alone(alone, 20)
    async with running_replicas(tmp_path) as replicas:
        await replicas.start(1, 2, 3)

        assert await replicas.master() == 2
        await replicas.all_in_sync()
        await equal(replicas)
        assert sum(replicas.brokers[1].store.max_offset("orders", queue) for queue in range(16)) == 20


async def test_two_stores_that_were_alone_are_not_made_one(tmp_path: Path) -> None:
    for number, count in ((1, 5), (2, 20)):
        async with running_broker(tmp_path / str(number), **SMALL) as alone:
            await send_alone(alone, count)
    async with running_replicas(tmp_path) as replicas:
        await replicas.start(1, 2, 3)
        assert await replicas.master() == 2
        end = replicas.brokers[1].store.end

        await until(
            lambda: "it has only 0 bytes in common" in failover(replicas.brokers[1]).runtime_info()["haProblem"]
        )

        assert replicas.brokers[1].store.end == end
        await until(lambda: replicas.in_sync() == [2, 3])


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"plugins__ha__replica": 0}, "replica = 0: give each of the 3 replicas a number"),
        ({"plugins__ha__replica": 4}, "replica = 4: give each of the 3 replicas a number"),
        ({"plugins__ha__etcd": []}, "it needs a coordinator"),
        ({"broker__namesrv": []}, "clients find the master through name servers"),
        ({"broker__id": 1}, "brokers get their ids by election"),
        ({"plugins__ha__min_in_sync": 4}, "min_in_sync = 4 is more than replicas = 3"),
    ],
)
async def test_settings_that_cannot_work_are_refused(tmp_path: Path, settings: dict[str, Any], why: str) -> None:
    chosen = {
        "plugins__ha__mode": "failover", "plugins__ha__replica": 1, "plugins__ha__etcd": ["http://127.0.0.1:1"],
        "broker__namesrv": ["127.0.0.1:1"], **settings,
    }  # fmt: skip
    with pytest.raises(PluginError, match=why):
        async with running_broker(tmp_path, plugins__enable=ENABLED, **chosen):
            pass


async def test_a_store_of_another_replica_is_refused(tmp_path: Path) -> None:
    incarnation(tmp_path, 2)

    with pytest.raises(PluginError, match=r"is the store of replica 2, and .* replica is 1; set it to 2"):
        incarnation(tmp_path, 1)


async def test_a_replica_with_files_of_another_size_is_refused_with_both_numbers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_replicas(tmp_path) as replicas:
        await replicas.start(1, 2)
        replicas.settings["store__segment_size"] = "128KiB"
        await replicas.start(3)
        assert await replicas.master(1, 2)
        await until(lambda: "its log's files have 131072 bytes (segment_size), ours 65536" in caplog.text)
        await until(lambda: replicas.in_sync() == [1, 2])


async def test_no_send_fails_while_the_master_is_switched(tmp_path: Path) -> None:
    async with running_replicas(tmp_path) as replicas:
        await replicas.start(1, 2, 3)
        first = await replicas.master()
        await replicas.all_in_sync()
        await create_topic(replicas, first)
        second = next(number for number in replicas.brokers if number != first)
        old = replicas.brokers[first]
        statuses: list[int] = []
        over = False

        async def send_on(client: Peer) -> None:
            number = 0
            while not over:
                statuses.append((await client.send("orders", b"%d" % number, queue=number % 4)).code)
                number += 1

        async with peer(old.address) as client, anyio.create_task_group() as tasks:
            tasks.start_soon(send_on, client)
            await until(lambda: len(statuses) > 20)
            named = ["switch", "a", "--to", str(second), "--yes", "--json", "--namesrv", replicas.namesrv]
            result = await anyio.to_thread.run_sync(CliRunner().invoke, ha, named)
            assert orjson.loads(result.output) == {"broker": "a", "master": second}
            assert await replicas.master() == second
            before = len(statuses)
            await until(lambda: len(statuses) > before + 20)
            over = True

        assert set(statuses) == {0}
        await replicas.all_in_sync()
        await equal(replicas)
        assert len(await bodies(replicas.brokers[3])) == len(statuses)
        assert failover(replicas.brokers[second]).members.term == 2


async def test_a_switch_to_a_replica_that_is_not_in_sync_is_refused_and_nothing_happens(tmp_path: Path) -> None:
    async with running_replicas(tmp_path) as replicas:
        await replicas.start(1, 2, 3)
        master = await replicas.master()
        await replicas.all_in_sync()
        gone = next(number for number in replicas.brokers if number != master)
        await replicas.stop(gone)
        await replicas.all_in_sync()

        async with peer(replicas.brokers[master].address) as client:
            answer = await client.ask(RequestCode.SWITCH_MASTER, replica=gone)

        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert f"replica {gone} is not in sync; there are" in answer.remark
        assert replicas.masters() == [master]


async def test_an_operator_may_give_up_what_only_a_lost_replica_has(tmp_path: Path) -> None:
    async with running_replicas(tmp_path, 2, **CALM) as replicas:
        await replicas.start(1, 2)
        first = await replicas.master()
        await replicas.all_in_sync()
        await create_topic(replicas, first)
        await replicas.stop(3 - first)
        await until(lambda: replicas.in_sync() == [first])
        assert await send(replicas, 1) == [OK]
        await replicas.stop(first)
        await replicas.start(3 - first)
        left = replicas.brokers[3 - first]
        await until(lambda: "known to have all that was acknowledged" in failover(left).members._said)
        assert replicas.masters() == []

        named = ["force", "a", "--replica", str(3 - first), "--accept-loss", "--json", "--namesrv", replicas.namesrv]
        result = await anyio.to_thread.run_sync(CliRunner().invoke, ha, named)
        assert orjson.loads(result.output) == {"broker": "a", "replica": 3 - first, "term": 2}

        assert await replicas.master() == 3 - first


async def test_operators_see_the_replicas_and_their_epochs(tmp_path: Path) -> None:
    async with running_replicas(tmp_path) as replicas:
        await replicas.start(1, 2, 3)
        master = await replicas.master()
        await replicas.all_in_sync()
        await create_topic(replicas, master)
        assert await send(replicas, 1, 2) == [OK] * 2
        await until(lambda: failover(replicas.brokers[master]).members.live().leads)
        told: dict[str, Any] = {}

        async def is_shown() -> bool:
            async with peer(replicas.brokers[master].address) as client:
                told.update(orjson.loads((await client.ask_well(RequestCode.GET_REPLICAS)).body))
            return [one["role"] for one in told["replicas"]].count("master") == 1

        with anyio.fail_after(30):
            while not await is_shown():  # noqa: ASYNC110
                await anyio.sleep(0.05)
        assert (told["term"], told["master"], told["problem"]) == (1, master, "")
        assert [one["inSync"] for one in told["replicas"]] == [True] * 3
        async with peer(replicas.brokers[master].address) as client:
            epochs = orjson.loads((await client.ask_well(RequestCode.GET_BROKER_EPOCH_CACHE)).body)
            end = replicas.brokers[master].store.end
            assert epochs["epochList"] == [{"endOffset": end, "epoch": 1, "startOffset": 0}]
        async with peer(replicas.brokers[master % 3 + 1].address) as client:
            told_by_slave = orjson.loads((await client.ask_well(RequestCode.GET_BROKER_EPOCH_CACHE)).body)
            assert told_by_slave["epochList"] == epochs["epochList"]
        async with peer(replicas.brokers[master].address) as client:
            status = orjson.loads((await client.ask_well(RequestCode.GET_BROKER_HA_STATUS)).body)
            assert (status["master"], status["inSyncSlaveNums"]) == (True, 2)
        result = await anyio.run_process(
            [sys.executable, "-m", "verniermq.cli", "ha", "status", "--namesrv", replicas.namesrv]
        )
        lines = result.stdout.decode().splitlines()
        assert lines[0] == f"broker a, term 1, master: replica {master}"
        assert max(map(len, lines)) <= 80
        assert sum("master" in line for line in lines[1:]) == 1


def test_a_store_is_put_aside_to_begin_anew(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    (store / "replica.json").write_text("{}")

    result = CliRunner().invoke(ha, ["resync", "--store", str(store), "--json"])

    assert result.exit_code == 0, result.output
    assert not store.exists()
    (aside,) = tmp_path.iterdir()
    assert orjson.loads(result.output) == {"store": str(store), "aside": str(aside)}
    assert (aside / "replica.json").exists()


async def test_delayed_messages_and_transactions_survive_a_new_master(tmp_path: Path) -> None:
    settings = {"plugins__schedule__levels": ["2s"], "plugins__ha__slave_reads": True}
    async with running_replicas(tmp_path, **settings) as replicas:
        await replicas.start(1, 2, 3)
        first = await replicas.master()
        await replicas.all_in_sync()
        await create_topic(replicas, first)
        async with peer(replicas.brokers[first].address) as client:
            for number in range(3):
                await client.sent("orders", b"level%d" % number, DELAY=1)
                await client.sent("orders", b"timed%d" % number, TIMER_DELAY_SEC=3)
            half = await client.sent("orders", b"half", flags=4, TRAN_MSG="true", PGROUP="p")
            _, log_offset = parse_offset_message_id(half["msgId"])
            await client.ask_well(
                RequestCode.END_TRANSACTION, producerGroup="p", tranStateTableOffset=half["queueOffset"],
                commitLogOffset=log_offset, commitOrRollback=8, fromTransactionCheck="false", msgId=half["msgId"],
                transactionId=half.get("transactionId", ""),
            )  # fmt: skip

        await replicas.stop(first)
        second = await replicas.master()

        wanted = {b"half", *(b"level%d" % number for number in range(3)), *(b"timed%d" % number for number in range(3))}
        seen: set[bytes] = set()

        async def is_there() -> bool:
            seen.update(await bodies(replicas.brokers[second]))
            return wanted <= seen

        with anyio.move_on_after(30):
            while not await is_there():  # noqa: ASYNC110
                await anyio.sleep(0.1)
        assert seen >= wanted


async def test_a_master_that_is_asked_to_stop_hands_over_first(tmp_path: Path) -> None:
    async with running_replicas(tmp_path, **CALM) as replicas:
        await replicas.start(1, 2, 3)
        first = await replicas.master()
        await replicas.all_in_sync()
        await create_topic(replicas, first)
        codes: list[int] = []

        async with peer(replicas.brokers[first].address) as client, anyio.create_task_group() as tasks:

            async def send_on() -> None:
                while True:
                    codes.append((await client.send("orders", b"x")).code)

            tasks.start_soon(send_on)
            await until(lambda: len(codes) > 10)
            await replicas.brokers[first].leave()
            tasks.cancel_scope.cancel()

            # Until the process ends: nobody may be refused between the end of the grace and that.
            codes.append((await client.send("orders", b"late")).code)

        assert set(codes) == {0}
        second = await replicas.master()
        assert second != first
        await replicas.brokers[first].leave()  # a slave has nothing to hand over
        assert await replicas.master() == second


async def test_a_master_that_is_about_to_stop_does_not_stand_again(tmp_path: Path) -> None:
    async with running_replicas(tmp_path, plugins__ha__switch_grace="0s") as replicas:
        await replicas.start(1, 2, 3)
        first = await replicas.master()
        await replicas.all_in_sync()
        await replicas.brokers[first].leave()
        second = await replicas.master()
        await replicas.all_in_sync()

        await replicas.stop(second)

        assert await replicas.master() not in (first, second)
        assert failover(replicas.brokers[first]).members._last_led == 1


async def test_a_send_that_waited_before_its_append_is_forwarded_too(tmp_path: Path) -> None:
    """It came before the switch, and has to wait, as for a plugin, until the switch is over."""
    async with running_replicas(tmp_path) as replicas:
        await replicas.start(1, 2, 3)
        first = await replicas.master()
        await replicas.all_in_sync()
        await create_topic(replicas, first)
        old = replicas.brokers[first]
        second = next(number for number in replicas.brokers if number != first)
        came, may_go_on = anyio.Event(), anyio.Event()
        codes: list[int] = []

        async def waits(request: Command, connection: Any) -> Command:
            came.set()
            await may_go_on.wait()
            old.store.append(pending("orders"))
            return request.reply()

        def refuse(handler: Any, request: Command, connection: Any) -> Command:
            raise AssertionError("refused")

        fields = {
            "a": "p", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1600000000000", "h": "0",
            "i": "", "j": "0",
        }  # fmt: skip
        request = Command.request(RequestCode.SEND_MESSAGE_V2, fields, b"held")
        served = failover(old).only_master({request.code: refuse})[request.code]

        async def send_it() -> None:
            codes.append((await served(waits, request, None)).code)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send_it)
            await came.wait()
            await failover(old).switch(second)
            may_go_on.set()

        assert codes == [ResponseCode.SUCCESS]
        assert await replicas.master() == second
        assert await bodies(replicas.brokers[second]) == [b"held"]


async def test_a_second_signal_ends_the_grace_at_once(tmp_path: Path) -> None:
    async with running_replicas(tmp_path, 2) as replicas:
        settings = {
            **CLI_SMALL, "store.segment_size": "64KiB", "store.max_message_size": "16KiB", "broker.name": "a",
            "broker.namesrv": replicas.namesrv, "plugins.enable": "default,ha", "plugins.ha.mode": "failover",
            "plugins.ha.replica": "2", "plugins.ha.replicas": "2", "plugins.ha.etcd": replicas.etcd.url,
            "plugins.ha.switch_grace": "1h",
        }  # fmt: skip
        chosen = [f"--set={key}={value}" for key, value in settings.items()]
        command = [sys.executable, "-m", "verniermq.cli", "broker", "--store", str(tmp_path / "2"), *chosen]
        with (tmp_path / "said.txt").open("wb") as said:
            process = await anyio.open_process(command, stdout=said, stderr=said)
        try:
            await replicas.start(1)
            await until(lambda: replicas.in_sync() == [1, 2])
            with anyio.fail_after(60):
                while replicas.masters():
                    with contextlib.suppress(RequestRefused):  # its connection may not be there yet
                        await failover(replicas.brokers[1]).switch(2)
            one = failover(replicas.brokers[1]).members
            table = replicas.names.host.active["namesrv"].instance.embedded.table

            def master_known() -> str:
                """Where the name server has the master: a broker that changes its role is registered anew."""
                found = table.cluster_info()["brokerAddrTable"].get("a", {})
                return str(found.get("brokerAddrs", {}).get("0", ""))

            await until(
                lambda: (
                    one.following is not None
                    and one.following.connected
                    and master_known() not in ("", one.live().address)
                    and replicas.in_sync() == [1, 2]
                )
            )

            process.send_signal(signal.SIGTERM)
            assert await replicas.master() == 1
            process.send_signal(signal.SIGTERM)
            with anyio.fail_after(60):
                assert await process.wait() == 0
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.aclose()

        text = (tmp_path / "said.txt").read_text()
        assert "SIGTERM again: stopping at once" in text


async def test_the_drain_of_a_master_makes_another_one(tmp_path: Path) -> None:
    async with running_replicas(tmp_path, **CALM) as replicas:
        await replicas.start(1, 2, 3)
        first = await replicas.master()
        await replicas.all_in_sync()
        await create_topic(replicas, first)
        broker = replicas.brokers[first]
        arguments = ["broker", "drain", broker.name, "--namesrv", replicas.namesrv, "--json"]

        async def drain(*options: str) -> Result:
            return await anyio.to_thread.run_sync(CliRunner().invoke, main, [*arguments, *options])

        codes: list[int] = []
        async with peer(broker.address) as client, anyio.create_task_group() as tasks:

            async def send_on() -> None:
                while True:
                    codes.append((await client.send("orders", b"x")).code)

            tasks.start_soon(send_on)
            await until(lambda: len(codes) > 10)
            planned = await drain("--dry-run")
            still = await replicas.master()
            done = await drain("--yes")
            tasks.cancel_scope.cancel()

        second = await replicas.master()
        assert (planned.exit_code, still) == (0, first)
        assert "would become the master" in planned.output
        assert done.exit_code == 0, done.output
        assert orjson.loads(done.stdout)["new_master"] == second != first
        assert set(codes) == {0}


async def test_before_the_first_master_there_are_no_epochs(tmp_path: Path) -> None:
    async with running_replicas(tmp_path) as replicas:
        await replicas.start(1)
        async with peer(replicas.brokers[1].address) as client:
            told = orjson.loads((await client.ask_well(RequestCode.GET_BROKER_EPOCH_CACHE)).body)

        assert (told["epochList"], told["maxOffset"]) == ([], 0)


async def test_a_replica_that_begins_to_follow_copies_the_tables_at_once(tmp_path: Path) -> None:
    async with running_replicas(tmp_path, plugins__ha__metadata_interval="1h") as replicas:
        await replicas.start(1, 2, 3)
        master = await replicas.master()
        await replicas.all_in_sync()
        other = master % 3 + 1
        await replicas.stop(other)
        await create_topic(replicas, master)

        await replicas.start(other)

        await until(lambda: replicas.brokers[other].topics.find("orders") is not None)


async def test_a_queue_that_a_topic_got_after_its_copy_is_shown_by_the_next_master(tmp_path: Path) -> None:
    async with running_replicas(tmp_path, plugins__ha__metadata_interval="1h") as replicas:
        await replicas.start(1, 2, 3)
        master = await replicas.master()
        await replicas.all_in_sync()
        broker = replicas.brokers[master]
        broker.topics.put(TopicConfig("orders", 4, 4))
        broker.topics.put(TopicConfig("smaller", 8, 8))
        await broker.put(pending(topic="smaller", queue_id=7))
        broker.topics.put(TopicConfig("smaller", 2, 2))
        others = [number for number in (1, 2, 3) if number != master]

        async def all_is_copied() -> None:
            await until(lambda: {replicas.brokers[other].store.end for other in others} == {broker.store.end})

        await all_is_copied()
        for other in others:
            await replicas.stop(other)
            broker.topics.put(TopicConfig(f"copied-{other}", 1, 1))  # only a table that is copied after the log has it
            await replicas.start(other)
            await until(lambda other=other: f"copied-{other}" in replicas.brokers[other].topics)  # type: ignore[misc]
        await replicas.all_in_sync()
        broker.topics.put(TopicConfig("orders", 8, 8))
        await broker.put(pending(topic="orders", queue_id=6))
        await all_is_copied()

        await replicas.stop(master)
        topics = replicas.brokers[await replicas.master()].topics

        found = topics.find("orders")
        assert found is not None
        assert found.read_queues in (7, 8)  # 8 if a replica had to connect again, which copies the table
        assert topics.find("smaller") == TopicConfig("smaller", 2, 2)
