"""Messages for any time, over a real socket, by a clock that the test moves."""

from __future__ import annotations

import base64
import gc
import shutil
import struct
from pathlib import Path

import anyio
import anyio.lowlevel
import orjson
import pytest

from tests.plugins.peer import peer, served
from verniermq.kernel import PendingMessage, RequestCode, ResponseCode
from verniermq.plugins.schedule.timers.check import backup_of
from verniermq.testing import ManualClock, broker_process

pytestmark = pytest.mark.anyio

TIMER = "rmq_sys_wheel_timer"
START = 1_700_000_000
START_MS = START * 1000
DAY = 86_400


async def test_a_message_comes_in_its_millisecond(tmp_path: Path) -> None:
    clock = ManualClock(START)
    async with served(tmp_path, clock) as (_, client):
        await client.sent("orders", b"exact", queue=1, TIMER_DELIVER_MS=START_MS + 29_250, TAGS="paid")

        await clock.advance(29.249)
        early = await client.bodies("orders", 1)
        await clock.advance(0.001)
        (message,) = await client.pull("orders", 1)

        assert early == []
        assert (message.body, message.tags, message.queue_id) == (b"exact", "paid", 1)
        assert message.store_timestamp == START_MS + 29_250
        # As an Apache broker leaves them.
        assert message.properties["TIMER_OUT_MS"] == str(START_MS + 29_000)
        assert message.properties["TIMER_ENQUEUE_MS"] == str(START_MS)
        assert message.properties["TIMER_DEQUEUE_MS"] == str(START_MS + 29_250)


@pytest.mark.parametrize(
    ("properties", "seconds"),
    [
        ({"TIMER_DELAY_SEC": 7}, 7),
        ({"TIMER_DELAY_MS": 7001}, 7.001),
        ({"TIMER_DELIVER_MS": START_MS + 7000}, 7),
        ({"TIMER_DELAY_SEC": 1, "TIMER_DELAY_MS": 7000, "TIMER_DELIVER_MS": START_MS + 9000}, 1),
        ({"TIMER_DELAY_MS": 40}, 0.04),
        ({"DELAY": 2, "TIMER_DELAY_SEC": 1}, 5),
    ],
)
async def test_the_three_ways_to_say_when(tmp_path: Path, properties: dict[str, int], seconds: float) -> None:
    clock = ManualClock(START)
    async with served(tmp_path, clock) as (_, client):
        await client.sent("orders", **properties)

        await clock.advance(seconds - 0.001)
        early = await client.bodies("orders")
        await clock.advance(0.001)

        assert early == []
        assert await client.bodies("orders") == [b"hello"]


async def test_a_time_that_is_past_means_now_and_one_too_far_is_refused(tmp_path: Path) -> None:
    clock = ManualClock(START)
    async with served(tmp_path, clock, plugins__schedule__max_delay="10d") as (_, client):
        await client.sent("orders", b"past", TIMER_DELIVER_MS=START_MS - 1)
        await client.sent("orders", b"now", TIMER_DELAY_SEC=0)
        far = await client.send("orders", TIMER_DELAY_SEC=10 * DAY + 1)
        word = await client.send("orders", TIMER_DELIVER_MS="tomorrow")

        assert await client.bodies("orders") == [b"past", b"now"]
        assert far.code == word.code == ResponseCode.MESSAGE_ILLEGAL
        assert "max_delay" in far.remark
        assert "'tomorrow'" in word.remark


async def test_a_producer_may_not_write_to_the_timers_own_topic(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, client):
        answer = await client.send(TIMER, REAL_TOPIC="secrets", REAL_QID=0, TIMER_OUT_MS=START_MS)

        assert answer.code == ResponseCode.NO_PERMISSION


async def test_what_is_sent_last_but_due_first_comes_first(tmp_path: Path) -> None:
    clock = ManualClock(START)
    async with served(tmp_path, clock) as (_, client):
        for delay in (5000, 1500, 1400, 70_000, 1, 900, 1400):
            await client.sent("orders", str(delay).encode(), TIMER_DELAY_MS=delay)
        await clock.advance(0.5)
        await client.sent("orders", b"700 at 500", TIMER_DELAY_MS=200)

        await clock.advance(100)

        expected = [b"1", b"700 at 500", b"900", b"1400", b"1400", b"1500", b"5000", b"70000"]
        assert await client.bodies("orders") == expected


async def test_what_fell_due_while_the_broker_was_down_comes_at_its_start_in_order(tmp_path: Path) -> None:
    clock = ManualClock(START)
    delays = [9_000, 3_500, 3_400, 20_000, 100_000]
    async with served(tmp_path, clock) as (_, client):
        for delay in delays:
            await client.sent("orders", str(delay).encode(), TIMER_DELAY_MS=delay)

    await clock.advance(30)
    async with served(tmp_path, clock) as (_, client):
        await clock.advance(0)
        due = await client.bodies("orders")
        await clock.advance(70)

        assert due == [b"3400", b"3500", b"9000", b"20000"]
        assert await client.bodies("orders") == [*due, b"100000"]


async def test_nothing_comes_twice_after_an_orderly_stop_within_a_second(tmp_path: Path) -> None:
    clock = ManualClock(START)
    async with served(tmp_path, clock) as (_, client):
        for delay in (1100, 1200, 1200, 1300):
            await client.sent("orders", str(delay).encode(), TIMER_DELAY_MS=delay)
        await clock.advance(1.2)
        assert len(await client.bodies("orders")) == 3

    async with served(tmp_path, clock) as (_, client):
        await clock.advance(0)
        await client.sent("orders", b"1250", TIMER_DELAY_MS=50)
        await clock.advance(10)

        assert await client.bodies("orders") == [b"1100", b"1200", b"1200", b"1250", b"1300"]


async def test_a_message_for_next_month_is_written_anew_and_comes_on_time(tmp_path: Path) -> None:
    clock = ManualClock(START)
    async with served(tmp_path, clock) as (broker, client):
        await client.sent("orders", b"far", TIMER_DELIVER_MS=START_MS + 30 * DAY * 1000 + 7)
        stops = 0
        while not await client.bodies("orders"):
            await clock.jump(DAY / 4)
            await clock.advance(0)
            stops = max(stops, broker.store.max_offset(TIMER, 0))
            assert stops < 40
        (message,) = await client.pull("orders")

        # Quarter days pass at once here, so it is seen up to one later; never before its time.
        late_ms = message.store_timestamp - (START_MS + 30 * DAY * 1000 + 7)
        assert 0 <= late_ms <= DAY * 1000 / 4
        assert int(message.properties["TIMER_ROLL_TIMES"]) == stops - 1 >= 13


async def test_the_last_stretch_of_a_long_way_is_exact(tmp_path: Path) -> None:
    clock = ManualClock(START)
    async with served(tmp_path, clock, plugins__schedule__roll_window="10s") as (broker, client):
        await client.sent("orders", TIMER_DELAY_MS=60_123)
        await clock.advance(60.122)
        early = await client.bodies("orders")
        await clock.advance(0.001)

        assert early == []
        assert await client.bodies("orders") == [b"hello"]
        assert broker.store.max_offset(TIMER, 0) > 4


async def test_after_three_weeks_of_standstill_everything_comes_in_order(tmp_path: Path) -> None:
    clock = ManualClock(START)
    async with served(tmp_path, clock) as (_, client):
        for number in range(5):
            await client.sent("orders", str(number).encode(), TIMER_DELAY_SEC=3600 * (number + 1))

    await clock.jump(21 * DAY)
    async with served(tmp_path, clock) as (_, client):
        await client.sent("orders", b"new", TIMER_DELAY_SEC=1)
        await clock.advance(0)
        await clock.advance(1)

        assert await client.bodies("orders") == [b"0", b"1", b"2", b"3", b"4", b"new"]


# --- taking back ---------------------------------------------------------------------------


async def test_a_message_that_was_taken_back_does_not_come(tmp_path: Path) -> None:
    clock = ManualClock(START)
    async with served(tmp_path, clock) as (broker, client):
        kept = await client.sent("orders", b"kept", TIMER_DELAY_MS=5_500, UNIQ_KEY="K1")
        gone = await client.sent("orders", b"gone", TIMER_DELAY_MS=5_500, UNIQ_KEY="K2")

        answer = await client.ask_well(RequestCode.RECALL_MESSAGE, topic="orders", recallHandle=gone["recallHandle"])
        await clock.advance(60)

        assert answer.ext["msgId"] == "K2"
        assert await client.bodies("orders") == [b"kept"]
        handle = base64.urlsafe_b64decode(kept["recallHandle"]).decode()
        assert handle == f"v1 orders {broker.name} {START_MS + 5001} K1"


async def test_taking_back_survives_a_restart_and_works_for_far_messages(tmp_path: Path) -> None:
    clock = ManualClock(START)
    window = {"plugins__schedule__roll_window": "10s"}
    async with served(tmp_path, clock, **window) as (_, client):
        near = await client.sent("orders", b"near", TIMER_DELAY_SEC=5)
        far = await client.sent("orders", b"far", TIMER_DELAY_SEC=100)
        for handle in (near["recallHandle"], far["recallHandle"]):
            await client.ask_well(RequestCode.RECALL_MESSAGE, topic="orders", recallHandle=handle)

    async with served(tmp_path, clock, **window) as (_, client):
        await clock.advance(0)
        await clock.advance(200)

        assert await client.bodies("orders") == []


async def test_a_recall_in_the_last_moment_holds(tmp_path: Path) -> None:
    clock = ManualClock(START)
    async with served(tmp_path, clock) as (_, client):
        sent = await client.sent("orders", b"gone", TIMER_DELIVER_MS=START_MS + 5001)
        await clock.advance(5)
        await client.ask_well(RequestCode.RECALL_MESSAGE, topic="orders", recallHandle=sent["recallHandle"])
        await clock.advance(5)

        assert await client.bodies("orders") == []


async def test_recalls_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    clock = ManualClock(START)
    async with served(tmp_path, clock) as (broker, client):
        sent = await client.sent("orders", TIMER_DELAY_SEC=5)
        handle = sent["recallHandle"]
        await client.sent("others")
        ask = RequestCode.RECALL_MESSAGE
        strange = base64.urlsafe_b64encode(b"v1 orders elsewhere 1700000099001 K").decode()
        future = base64.urlsafe_b64encode(f"v1 orders {broker.name} 9700000099001 K".encode()).decode()

        codes = [
            (await client.ask(ask, topic="nowhere", recallHandle=handle)).code,
            (await client.ask(ask, topic="others", recallHandle=handle)).code,
            (await client.ask(ask, topic="orders", recallHandle="?")).code,
            (await client.ask(ask, topic="orders", recallHandle=strange)).code,
            (await client.ask(ask, topic="orders", recallHandle=future)).code,
        ]
        await clock.advance(6)
        late = await client.ask(ask, topic="orders", recallHandle=handle)

        assert codes == [ResponseCode.TOPIC_NOT_EXIST, *[ResponseCode.ILLEGAL_OPERATION] * 4]
        assert late.code == ResponseCode.ILLEGAL_OPERATION
        assert "too late" in late.remark


async def test_recall_can_be_switched_off(tmp_path: Path) -> None:
    async with served(tmp_path, plugins__schedule__recall=False) as (_, client):
        sent = await client.sent("orders", TIMER_DELAY_SEC=5)
        answer = await client.ask(RequestCode.RECALL_MESSAGE, topic="orders", recallHandle="x")

        assert "recallHandle" not in sent
        assert answer.code == ResponseCode.NO_PERMISSION


async def test_without_the_plugin_the_answer_names_it(tmp_path: Path) -> None:
    async with served(tmp_path, plugins__enable=[]) as (_, client):
        timed = await client.send("orders", TIMER_DELAY_SEC=5)
        recall = await client.ask(RequestCode.RECALL_MESSAGE, topic="orders", recallHandle="x")

        assert timed.code == recall.code == ResponseCode.SYSTEM_ERROR
        assert "'schedule'" in timed.remark
        assert "'schedule'" in recall.remark


# --- damage --------------------------------------------------------------------------------


async def send_some(store: Path, clock: ManualClock) -> None:
    async with served(store, clock) as (_, client):
        for number in range(20):
            await client.sent("orders", str(number).encode(), TIMER_DELAY_MS=1000 + 500 * number)
        await clock.advance(5)
        assert len(await client.bodies("orders")) == 9


@pytest.mark.parametrize("lost", ["timerwheel", "timerlog", "config/timercheck", "timerwheel timerlog"])
async def test_lost_files_are_made_again_from_what_is_left(tmp_path: Path, lost: str) -> None:
    clock = ManualClock(START)
    await send_some(tmp_path, clock)
    for name in lost.split():
        path = tmp_path / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    async with served(tmp_path, clock) as (_, client):
        await clock.advance(0)
        await clock.advance(60)
        bodies = await client.bodies("orders")

    assert set(bodies) == {str(number).encode() for number in range(20)}
    if lost != "config/timercheck":  # without it nobody knows what was delivered
        assert len(bodies) <= 21


async def test_a_torn_record_ends_the_timer_log_and_its_message_is_taken_in_again(tmp_path: Path) -> None:
    clock = ManualClock(START)
    await send_some(tmp_path, clock)
    with (tmp_path / "timerlog" / f"{0:020d}").open("r+b") as file:
        file.seek(52 * 17 + 3)
        file.write(b"\xff" * 52 * 3)
    check = tmp_path / "config" / "timercheck"
    content = bytearray(check.read_bytes())
    content[8:16] = (52 * 10).to_bytes(8, "big")  # synced only that far
    check.write_bytes(content)
    backup_of(check).unlink()

    async with served(tmp_path, clock) as (_, client):
        await clock.advance(0)
        await clock.advance(60)
        bodies = await client.bodies("orders")

    assert set(bodies) == {str(number).encode() for number in range(20)}


async def test_a_wheel_that_an_apache_broker_left_behind_its_log_is_brought_up(tmp_path: Path) -> None:
    clock = ManualClock(START)
    async with served(tmp_path, clock) as (_, client):
        await client.sent("orders", b"early", TIMER_DELAY_SEC=10)
    wheel = (tmp_path / "timerwheel").read_bytes()
    async with served(tmp_path, clock) as (_, client):
        await clock.advance(0)
        await client.sent("orders", b"late", TIMER_DELAY_SEC=12)
        await clock.advance(0)
    # It writes the wheel once a second, and not at its stop; and it knows nothing of what we add to the progress.
    (tmp_path / "timerwheel").write_bytes(wheel)
    check = tmp_path / "config" / "timercheck"
    check.write_bytes(check.read_bytes()[:56] + bytes(4096 - 56))
    backup_of(check).unlink()

    async with served(tmp_path, clock) as (_, client):
        await clock.advance(20)

        assert await client.bodies("orders") == [b"early", b"late"]


async def test_a_crash_in_the_middle_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    with broker_process(tmp_path / "store") as process:
        async with peer(process.broker) as client:
            for number in range(300):
                await client.sent("orders", str(number).encode(), TIMER_DELAY_MS=60_000 + 10 * number)
            process.advance(61)
            await client.arrived("orders", 50)
        process.kill()
        process.start()
        async with peer(process.broker) as client:
            process.advance(70)
            delivered = await client.arrived("orders", 300)

    assert delivered == {str(number).encode() for number in range(300)}


# --- many ----------------------------------------------------------------------------------


STATUS = Path("/proc/self/status")


def own_memory() -> int:
    """Bytes that are the process's own, without the files that it has mapped."""
    gc.collect()
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


@pytest.mark.skipif(not STATUS.exists(), reason="only Linux tells a process's own memory from that of mapped files")
async def test_waiting_messages_take_disk_and_no_memory(tmp_path: Path) -> None:
    clock = ManualClock(START)
    async with served(tmp_path, clock, plugins__enable=["schedule"]) as (broker, _):

        async def let_wait(first: int, end: int) -> None:
            for number in range(first, end):
                due = START_MS + DAY * 1000 + number * 37 % 3_600_000
                properties = {"TIMER_DELIVER_MS": str(due), "UNIQ_KEY": str(number)}
                await broker.put(PendingMessage("orders", 0, b"x" * 20, properties))
                if number % 500 == 499:
                    await anyio.lowlevel.checkpoint()
            with anyio.fail_after(100):
                while timers_behind(tmp_path, end):  # noqa: ASYNC110 - a file tells
                    await anyio.sleep(0.02)

        await let_wait(0, 10_000)
        before = own_memory()
        await let_wait(10_000, 40_000)

        # Thirty thousand messages would be some 20 MB as objects.
        assert own_memory() - before < 4 * 1024 * 1024


def timers_behind(store: Path, count: int) -> bool:
    try:
        with (store / "timerlog" / f"{0:020d}").open("rb") as file:
            file.seek((count - 1) * 52)
            return file.read(4) != b"\0\0\0\x34"
    except FileNotFoundError:
        return True


# --- clocks and flushing -------------------------------------------------------------------


async def test_timers_follow_a_clock_that_was_set_back(tmp_path: Path) -> None:
    ahead = ManualClock(START + 500)
    async with served(tmp_path, ahead) as (_, client):
        await client.sent("orders", b"before", TIMER_DELAY_MS=700)
        await ahead.advance(2)

    clock = ManualClock(START)
    async with served(tmp_path, clock) as (_, client):
        await client.sent("orders", b"after", TIMER_DELAY_MS=700)
        await clock.advance(0.699)
        early = await client.bodies("orders")
        await clock.advance(0.001)

        assert early == [b"before"]
        assert await client.bodies("orders") == [b"before", b"after"]


@pytest.mark.parametrize("properties", [{"DELAY": 1}, {"TIMER_DELAY_MS": 1000}])
async def test_with_synchronous_flush_what_was_answered_is_on_the_disk_and_comes(
    tmp_path: Path, properties: dict[str, int]
) -> None:
    with broker_process(tmp_path / "store", "--set=store.flush=sync") as process:
        async with peer(process.broker) as client:
            for number in range(20):
                await client.sent("orders", str(number).encode(), **properties)
            process.advance(5)
            assert len(await client.arrived("orders", 20)) == 20


async def test_an_apache_slave_is_told_how_far_the_timers_are(tmp_path: Path) -> None:
    """Numbers of 8 bytes: next second in ms, timer log, queue offset, the same for slaves, version."""
    clock = ManualClock(START)
    async with served(tmp_path, clock, store__flush="sync") as (_, client):

        async def told() -> tuple[int, ...]:
            return struct.unpack(">7q", (await client.ask_well(RequestCode.GET_TIMER_CHECK_POINT)).body)

        assert (await told())[:4] == (START_MS - 1000, 0, 0, 0)
        await client.sent("orders", b"one", TIMER_DELIVER_MS=START_MS + 5000)
        await client.sent("orders", b"two", TIMER_DELIVER_MS=START_MS + 60_000)
        with anyio.fail_after(30):
            while (await told())[2] < 2:  # noqa: ASYNC110 - taken in by a service of the broker
                await anyio.sleep(0.01)
        await clock.advance(10)
        with anyio.fail_after(30):
            while await client.bodies("orders") != [b"one"]:  # noqa: ASYNC110 - its append waits for the disk
                await anyio.sleep(0.01)

        read_ms, log_position, queue_offset, for_slaves, *_ = await told()
        assert START_MS + 5000 <= read_ms < START_MS + 60_000
        assert (log_position, queue_offset, for_slaves) == (2 * 52, 2, 2)
        metrics = orjson.loads((await client.ask_well(RequestCode.GET_TIMER_METRICS)).body)
        assert metrics["timingCount"] == {}
