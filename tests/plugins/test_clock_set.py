"""Somebody sets the machine's clock by an hour while a broker runs: nothing is early, late, lost or stuck by it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import anyio
import orjson
import pytest

from tests.killed import copy_as_killed
from tests.plugins.order.test_order import lock
from tests.plugins.peer import Peer, peer, served
from tests.plugins.pop.popper import Consumer, consumer
from tests.plugins.retention.test_retention import ROOMY, SMALL, at_noon, fill, starts
from tests.plugins.txn import peers
from verniermq.kernel import Broker, RequestCode, ResponseCode
from verniermq.testing import ManualClock, broker_process, running_broker

pytestmark = pytest.mark.anyio

HOUR = 3600.0
SET = pytest.mark.parametrize("seconds", [HOUR, -HOUR], ids=["ahead", "back"])


def held_pops(broker: Broker) -> int:
    return len(broker.host.active["pop"].instance._held)


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(30):
        while not condition():  # noqa: ASYNC110 - a request on its way tells nobody
            await anyio.sleep(0.001)


# --- what lasts ----------------------------------------------------------------------------


@SET
async def test_a_delay_by_level_lasts_as_long_as_it_was_to(tmp_path: Path, seconds: float) -> None:
    clock = ManualClock()
    async with served(tmp_path, clock) as (_, client):
        await client.sent("orders", b"first", DELAY=4)
        await client.sent("orders", b"second", DELAY=4)
        await clock.advance(10)
        await clock.set_by(seconds)
        await client.sent("orders", b"third", DELAY=4)  # before anybody looked at the clock

        await clock.advance(19.9)
        early = await client.bodies("orders")
        await clock.advance(0.1)
        in_time = await client.bodies("orders")
        await clock.advance(9.9)
        still = await client.bodies("orders")
        await clock.advance(0.1)

        assert early == []
        assert in_time == still == [b"first", b"second"]
        assert await client.bodies("orders") == [b"first", b"second", b"third"]


@SET
async def test_a_delay_by_level_is_what_it_was_after_a_restart(tmp_path: Path, seconds: float) -> None:
    clock = ManualClock()
    async with served(tmp_path, clock) as (_, client):
        await client.sent("orders", b"first", DELAY=16)
        await clock.advance(10)
        await clock.set_by(seconds)
        await clock.advance(1)

    async with served(tmp_path, clock) as (_, client):
        await clock.advance(1800 - 11 - 0.1)
        early = await client.bodies("orders")
        await clock.advance(0.1)

        assert early == []
        assert await client.bodies("orders") == [b"first"]


@SET
async def test_what_was_popped_comes_again_when_its_invisible_time_is_over(seconds: float) -> None:
    clock = ManualClock()
    async with running_broker(clock=clock) as broker, consumer(broker.address, broker.name) as it:
        await it.peer.send(it.topic, b"a", {}, queue_id=0)
        (first,) = await it.pop(invisibleTime=60_000)
        await clock.advance(10)
        await clock.set_by(seconds)

        await clock.advance(49.9)
        early = await it.pop()
        await clock.advance(0.2)
        (again,) = await it.pop()

        assert first.body == again.body == b"a"
        assert early == []
        assert (await it.ack(again)).code == ResponseCode.SUCCESS


async def test_a_clock_that_was_set_back_while_no_broker_ran_keeps_nothing_invisible_for_longer(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running_broker(tmp_path, clock=clock) as broker, consumer(broker.address, broker.name) as it:
        await it.peer.send(it.topic, b"a", {}, queue_id=0)
        await it.pop(invisibleTime=60_000)
    await clock.set_by(-HOUR)

    async with running_broker(tmp_path, clock=clock) as broker, consumer(broker.address, broker.name) as it:
        await clock.advance(60.1)

        assert [popped.body for popped in await it.pop()] == [b"a"]


@SET
async def test_an_ordered_pop_blocks_its_queue_as_long_as_it_was_to(seconds: float) -> None:
    clock = ManualClock()
    async with running_broker(clock=clock) as broker, consumer(broker.address, broker.name) as it:
        await it.peer.send(it.topic, b"a", {}, queue_id=0)
        ordered = {"order": "true", "queueId": 0, "invisibleTime": 60_000}
        (first,) = await it.pop(**ordered)
        await clock.set_by(seconds)

        await clock.advance(59.9)
        early = await it.pop(**ordered)
        await clock.advance(0.1)

        assert first.body == b"a"
        assert early == []
        assert [popped.body for popped in await it.pop(**ordered)] == [b"a"]


@SET
async def test_a_pull_and_a_pop_that_wait_are_answered_when_their_time_is_over(seconds: float) -> None:
    clock = ManualClock()
    answers: list[int] = []
    async with running_broker(clock=clock) as broker, consumer(broker.address, broker.name) as it:
        await it.peer.send(it.topic, b"a", {}, queue_id=0)

        async def pull(client: Peer) -> None:
            answer = await client.ask(
                RequestCode.PULL_MESSAGE, consumerGroup="readers", topic=it.topic, queueId=0, queueOffset=1,
                maxMsgNums=32, sysFlag=2 | 4, commitOffset=0, suspendTimeoutMillis=15_000, subscription="*",
                subVersion=0,
            )  # fmt: skip
            answers.append(answer.code)

        async def pop(it: Consumer) -> None:
            answers.append((await it.ask_pop(pollTime=15_000, bornTime=clock.now_ms(), queueId=1)).code)

        async with peer(broker.address) as client, anyio.create_task_group() as tasks:
            tasks.start_soon(pull, client)
            tasks.start_soon(pop, it)
            await until(lambda: len(broker.held_pulls) >= 1 and held_pops(broker) == 1)
            await clock.set_by(seconds)
            await clock.advance(14.9)
            early = list(answers)
            await clock.advance(0.2)
            await until(lambda: len(answers) == 2)

    assert early == []
    assert sorted(answers) == [ResponseCode.PULL_NOT_FOUND, ResponseCode.POLLING_TIMEOUT]


@SET
async def test_a_queue_lock_is_held_as_long_as_it_was_to(tmp_path: Path, seconds: float) -> None:
    clock = ManualClock()
    async with served(tmp_path, clock) as (broker, _), peer(broker.address, "a") as a, peer(broker.address, "b") as b:
        await lock(a, 0)
        await clock.set_by(seconds)

        await clock.advance(59)
        early = await lock(b, 0)
        await clock.advance(2)

        assert early == []
        assert await lock(b, 0) == [0]


@SET
async def test_a_client_is_expired_by_its_silence_and_not_by_the_clock(tmp_path: Path, seconds: float) -> None:
    clock = ManualClock()
    async with served(tmp_path, clock) as (broker, client):
        await client.heartbeat("readers", ["orders"])
        await clock.advance(1)
        await clock.set_by(seconds)
        await clock.advance(60)
        still = "readers" in broker.clients.consumers
        await clock.advance(70)

        assert still
        assert "readers" not in broker.clients.consumers


@SET
async def test_a_broker_stays_registered_with_its_name_server(tmp_path: Path, seconds: float) -> None:
    clock = ManualClock()
    async with running_broker(tmp_path / "a", clock=clock) as first:
        (address,) = first.name_servers
        async with (
            running_broker(tmp_path / "b", clock=clock, broker__name="broker-b", broker__namesrv=[address]),
            peer(address) as client,
        ):

            async def known() -> list[str]:
                answer = await client.ask_well(RequestCode.GET_BROKER_CLUSTER_INFO)
                return sorted(orjson.loads(answer.body)["brokerAddrTable"])

            with anyio.fail_after(30):
                while len(await known()) < 2:  # noqa: ASYNC110 - the socket tells
                    await anyio.sleep(0.01)
            await clock.set_by(seconds)
            seen = []
            for _ in range(100):
                await clock.advance(3)
                seen.append(await known())

            assert all(names == ["broker-a", "broker-b"] for names in seen)


@SET
async def test_files_of_the_log_are_kept_as_long_as_they_were_to(tmp_path: Path, seconds: float) -> None:
    clock = at_noon()
    async with served(tmp_path, clock, **ROOMY, **SMALL) as (broker, client):
        await fill(client, 3)
        await clock.jump(71.5 * HOUR)
        await clock.set_by(seconds)
        await clock.advance(1)

        await client.ask_well(RequestCode.DELETE_EXPIRED_COMMITLOG)
        early = starts(broker)
        await clock.jump(2 * HOUR)
        await client.ask_well(RequestCode.DELETE_EXPIRED_COMMITLOG)

        assert early == [0, 1, 2]
        assert starts(broker) == [2]


async def test_a_clock_that_is_years_ahead_deletes_nothing_and_gives_up_no_transaction(tmp_path: Path) -> None:
    clock = at_noon()
    async with served(tmp_path, clock, **ROOMY, **SMALL) as (broker, client), peers.peer(broker.address) as asked:
        await fill(client, 3)
        await asked.join(producers=("P",))
        await asked.send_half("orders", born=clock.now_ms())
        await clock.advance(31)
        await clock.set_by(10 * 365 * 24 * HOUR)
        await clock.advance(1)

        await client.ask_well(RequestCode.DELETE_EXPIRED_COMMITLOG)
        await clock.advance(60)
        for _ in range(3):
            await asked.checked()

        assert starts(broker)[0] == 0
        assert "TRANS_CHECK_MAX_TIME_TOPIC" not in {queue.topic for queue in broker.store.queues()}


# --- while no broker runs ------------------------------------------------------------------


YEARS = 10 * 365 * 24 * HOUR


@SET
async def test_a_clock_set_between_two_starts_on_one_boot_is_noticed(
    tmp_path: Path, seconds: float, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    async with served(tmp_path, clock) as (_, client):
        await client.sent("orders", b"first", DELAY=16)
        await clock.advance(10)
    await clock.set_by(seconds)

    with caplog.at_level(logging.WARNING):
        async with served(tmp_path, clock) as (_, client):
            await clock.advance(1800 - 10 - 0.1)
            early = await client.bodies("orders")
            await clock.advance(0.1)

            assert early == []
            assert await client.bodies("orders") == [b"first"]
    assert "the machine's clock was set" in caplog.text


@pytest.mark.parametrize("same_boot", [True, False])
@pytest.mark.parametrize("orderly", [True, False])
async def test_a_clock_set_years_ahead_while_no_broker_runs_deletes_nothing(
    tmp_path: Path, same_boot: bool, orderly: bool
) -> None:
    clock = at_noon()
    store, files = tmp_path / "store", tmp_path / "left by a crash"
    async with served(store, clock, **ROOMY, **SMALL) as (broker, client):
        await fill(client, 3)
        await clock.jump(HOUR)
        copy_as_killed(store, files)
    if same_boot:
        await clock.set_by(YEARS)
    else:
        clock.reboot(YEARS)

    async with served(store if orderly else files, clock, **ROOMY, **SMALL) as (broker, client):
        await client.ask_well(RequestCode.DELETE_EXPIRED_COMMITLOG)
        at_once = starts(broker)
        await clock.jump(70 * HOUR)
        await client.ask_well(RequestCode.DELETE_EXPIRED_COMMITLOG)
        early = starts(broker)
        await clock.jump(2.5 * HOUR)
        await client.ask_well(RequestCode.DELETE_EXPIRED_COMMITLOG)

        assert at_once[:3] == early[:3] == [0, 1, 2]
        assert starts(broker)[0] >= 2, "72 hours passed while brokers ran"


async def test_a_clock_that_was_wrong_at_the_start_and_is_mended_keeps_nothing_longer(tmp_path: Path) -> None:
    clock = at_noon()
    async with served(tmp_path, clock, **ROOMY, **SMALL) as (broker, client):
        await fill(client, 3)
    clock.reboot(YEARS)

    async with served(tmp_path, clock, **ROOMY, **SMALL) as (broker, client):
        await clock.advance(5)
        await clock.set_by(-YEARS)
        await clock.advance(1)
        await clock.jump(71 * HOUR)
        await client.ask_well(RequestCode.DELETE_EXPIRED_COMMITLOG)
        early = starts(broker)
        await clock.jump(2 * HOUR)
        await client.ask_well(RequestCode.DELETE_EXPIRED_COMMITLOG)

        assert early[:3] == [0, 1, 2]
        assert starts(broker)[0] >= 2


async def test_outages_do_not_count_as_age_and_are_forgotten_with_their_files(tmp_path: Path) -> None:
    clock = at_noon()
    for _ in range(3):
        async with served(tmp_path, clock, **ROOMY, **SMALL) as (broker, client):
            await fill(client, 1)
            await clock.jump(20 * HOUR)
        clock.reboot(100 * HOUR)

    async with served(tmp_path, clock, **ROOMY, **SMALL) as (broker, client):
        await client.ask_well(RequestCode.DELETE_EXPIRED_COMMITLOG)
        kept = starts(broker)
        await clock.jump(100 * HOUR)
        await client.ask_well(RequestCode.DELETE_EXPIRED_COMMITLOG)

        assert kept[0] == 0
        assert starts(broker)[0] >= 2
    noted = orjson.loads((tmp_path / "config" / "clockChanges.json").read_bytes())
    assert len(noted["outages"]) <= 1


# --- what has a time of its own ------------------------------------------------------------


async def test_timed_messages_follow_a_clock_that_is_set_ahead(tmp_path: Path) -> None:
    clock = ManualClock()
    async with served(tmp_path, clock) as (_, client):
        await client.sent("orders", b"in half an hour", TIMER_DELIVER_MS=clock.now_ms() + 1_800_000)
        await client.sent("orders", b"in two hours", TIMER_DELIVER_MS=clock.now_ms() + 7_200_000)
        await clock.advance(1)
        await clock.set_by(HOUR)
        await clock.advance(1)
        first = await client.bodies("orders")
        await clock.advance(HOUR)

        assert first == [b"in half an hour"]
        assert await client.bodies("orders") == [b"in half an hour", b"in two hours"]


async def test_a_timed_message_is_not_held_up_by_a_clock_that_was_set_back(tmp_path: Path) -> None:
    clock = ManualClock(1_700_000_000.2)
    async with served(tmp_path, clock) as (_, client):
        # The slot of this second is open when the clock is set back, with one delivered and one to come.
        await client.sent("orders", b"delivered", TIMER_DELAY_MS=100)
        await client.sent("orders", b"of this second", TIMER_DELAY_MS=600)
        await clock.advance(0.2)
        await clock.set_by(-HOUR)
        await client.sent("orders", b"after", TIMER_DELAY_MS=5_000)

        await clock.advance(1)
        soon = await client.bodies("orders")
        await clock.advance(3.9)
        early = await client.bodies("orders")
        await clock.advance(0.2)
        in_time = await client.bodies("orders")
        await clock.advance(2 * HOUR)

        assert soon == early == [b"delivered", b"of this second"]
        assert in_time == [b"delivered", b"of this second", b"after"]
        assert await client.bodies("orders") == in_time  # and none of them again


# --- looking back --------------------------------------------------------------------------


async def test_nothing_is_passed_over_when_offsets_are_found_by_time(tmp_path: Path) -> None:
    clock = ManualClock(1_700_000_000)
    stamps: list[int] = []

    async def send_some(client: Peer) -> None:
        for _ in range(10):
            await client.sent("orders")
            stamps.append(clock.now_ms())
            await clock.advance(60)

    async with served(tmp_path, clock) as (_, client):
        await send_some(client)
        await clock.set_by(-HOUR)
        await send_some(client)
        await clock.set_by(2 * HOUR)
        await send_some(client)
        await clock.set_by(-HOUR)
        await send_some(client)

    async with served(tmp_path, clock) as (broker, client):  # it is remembered
        for moment in range(min(stamps) - 1000, max(stamps) + 2000, 7_000):
            first = broker.store.offset_by_time("orders", 0, moment)
            last = broker.store.offset_by_time("orders", 0, moment, upper=True)

            assert first == next((i for i, stamp in enumerate(stamps) if stamp >= moment), len(stamps))
            assert last == max((i for i, stamp in enumerate(stamps) if stamp <= moment), default=0)


@SET
async def test_keys_are_found_in_the_time_that_their_messages_were_stamped_with(tmp_path: Path, seconds: float) -> None:
    clock = ManualClock()
    async with served(tmp_path, clock) as (_, client):
        for number in range(3):
            await client.sent("orders", b"%d" % number, KEYS="same")
            await clock.advance(5)
            if number == 0:
                begin = clock.now_ms()
                await clock.set_by(seconds)
        early, late = sorted([begin, clock.now_ms()])

        answer = await client.ask(
            RequestCode.QUERY_MESSAGE, topic="orders", key="same", maxNum=32, beginTimestamp=early - 60_000,
            endTimestamp=late + 60_000,
        )  # fmt: skip

        assert answer.code == ResponseCode.SUCCESS
        assert answer.body.count(b"same") == 3


async def test_a_change_of_the_clock_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    async with served(tmp_path, clock):
        await clock.advance(5)
        await clock.set_by(0.5)
        await clock.advance(5)
        with caplog.at_level(logging.WARNING):
            await clock.set_by(-HOUR)
            await clock.advance(5)

    told = [record.getMessage() for record in caplog.records if "clock" in record.getMessage()]
    assert len(told) == 1
    assert "was set back by 3600 s" in told[0] or "was set back by 3599 s" in told[0]


# --- a process whose machine's clock is set ------------------------------------------------

SITE = """
import time
from pathlib import Path

where = Path(__file__).with_name("seconds")
real_time, real_time_ns = time.time, time.time_ns
time.time = lambda: real_time() + int(where.read_text())
time.time_ns = lambda: real_time_ns() + int(where.read_text()) * 1_000_000_000
"""


def set_clock(folder: Path, seconds: float) -> None:
    (folder / "seconds.new").write_text(str(int(seconds)))
    (folder / "seconds.new").rename(folder / "seconds")


@SET
async def test_a_broker_whose_machine_has_its_clock_set_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    (tmp_path / "sitecustomize.py").write_text(SITE)
    set_clock(tmp_path, 0)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with broker_process(tmp_path / "store") as process:
        async with peer(process.broker) as client, consumer(process.broker) as it:
            await client.heartbeat("readers", ["orders"])
            await client.sent("orders", b"delayed", DELAY=9)
            await it.peer.send(it.topic, b"popped", {}, queue_id=0)
            await it.pop(invisibleTime=300_000)

            set_clock(tmp_path, seconds)
            process.advance(100)  # also the clients' expiry looks at the clock now
            await client.heartbeat("readers", ["orders"])
            process.advance(100)
            await client.heartbeat("readers", ["orders"])
            await client.sent("orders", b"now")
            early = await client.bodies("orders"), await it.pop()
            process.advance(110)
            late = await client.arrived("orders", 2)
            (again,) = await it.pop(pollTime=15_000, bornTime=0)
    log = process.log.read_text()

    assert early == ([b"now"], [])
    assert late == {b"now", b"delayed"}
    assert again.body == b"popped"
    assert log.count("clock was set") == 1
    assert "expired" not in log


@pytest.mark.parametrize("running", [True, False], ids=["running", "stopped"])
async def test_delays_go_on_after_a_clock_that_is_set_back_by_more_than_a_week(tmp_path: Path, running: bool) -> None:
    week = 8 * 24 * HOUR
    clock = ManualClock()
    async with served(tmp_path, clock) as (_, client):
        await client.sent("orders", b"timed", TIMER_DELAY_MS=60_000)
        await client.sent("orders", b"level", DELAY=5)
        await clock.advance(2)
        if running:
            await clock.set_by(-week)
            await clock.advance(2)
    if not running:
        await clock.set_by(-week)

    async with served(tmp_path, clock) as (_, client):
        await client.sent("orders", b"timed after", TIMER_DELAY_MS=5_000)
        await client.sent("orders", b"level after", DELAY=2)
        await clock.advance(70)
        soon = await client.arrived("orders", 3)
        await clock.set_by(week)  # as when the mistake is noticed
        await clock.advance(60)

        assert soon == {b"level", b"timed after", b"level after"}
        assert await client.arrived("orders", 4) == {b"timed", b"level", b"timed after", b"level after"}
