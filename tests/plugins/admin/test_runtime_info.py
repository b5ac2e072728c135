"""The figures that a broker gives of itself, each under the name that RocketMQ's tools read."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from tests.plugins.peer import Peer, peer, served
from verniermq.kernel import PendingMessage, RequestCode
from verniermq.plugins.admin.days import next_midnight
from verniermq.plugins.admin.puttimes import PutTimes
from verniermq.testing import ManualClock, running_broker
from verniermq.testing.clock import MovableClock

pytestmark = pytest.mark.anyio

DOCUMENTED = Path(__file__).parents[3] / "docs" / "plugins" / "admin.md"

READ_BY_THE_EXPORTER = [
    "msgPutTotalTodayNow",
    "msgGetTotalTodayNow",
    "msgPutTotalTodayMorning",
    "msgGetTotalTodayMorning",
    "msgPutTotalYesterdayMorning",
    "msgGetTotalYesterdayMorning",
    "putMessageDistributeTime",
    "putTps",
    "getMissTps",
    "getTransferredTps",
    "getTotalTps",
    "getFoundTps",
    "commitLogDirCapacity",
    "sendThreadPoolQueueHeadWaitTimeMills",
    "queryThreadPoolQueueHeadWaitTimeMills",
    "pullThreadPoolQueueHeadWaitTimeMills",
    "remainHowManyDataToFlush",
    "queryThreadPoolQueueSize",
    "pullThreadPoolQueueSize",
    "sendThreadPoolQueueSize",
    "bootTimestamp",
    "commitLogMinOffset",
    "commitLogMaxOffset",
    "runtime",
    "dispatchMaxBuffer",
    "brokerVersion",
    "consumeQueueDiskRatio",
    "pageCacheLockTimeMills",
    "commitLogDiskRatio",
    "getMessageEntireTimeMax",
    "putMessageTimesTotal",
    "brokerVersionDesc",
    "startAcceptSendRequestTimeStamp",
    "putMessageEntireTimeMax",
    "earliestMessageTimeStamp",
    "remainTransientStoreBufferNumbs",
    "queryThreadPoolQueueCapacity",
    "sendThreadPoolQueueCapacity",
    "pullThreadPoolQueueCapacity",
    "putMessageAverageSize",
    "dispatchBehindBytes",
    "putMessageSizeTotal",
    "putLatency99",
    "putLatency999",
]


async def figures(client: Peer) -> dict[str, str]:
    table: dict[str, str] = orjson.loads((await client.ask_well(RequestCode.GET_BROKER_RUNTIME_INFO)).body)["table"]
    return table


def numbers(text: str) -> list[float]:
    return [float(number) for number in text.split()]


async def test_the_exporter_finds_every_key_and_can_read_its_value(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, client):
        await client.sent("orders")
        table = await figures(client)

    assert not set(READ_BY_THE_EXPORTER) - set(table)
    words = {"putMessageDistributeTime", "commitLogDirCapacity", "runtime", "brokerVersionDesc"}
    for key in set(READ_BY_THE_EXPORTER) - words:
        assert numbers(table[key].removesuffix(" B")), f"{key}: {table[key]!r}"
    assert re.fullmatch(r"Total : \d+ MiB, Free : \d+ MiB\.", table["commitLogDirCapacity"])
    classes = [part.split(":") for part in table["putMessageDistributeTime"].split()]
    assert len(classes) == 13
    assert classes[0][0] == "[<=0ms]"
    assert sum(int(count) for _, count in classes) == 1


async def test_what_has_no_meaning_here_is_nought_and_the_page_says_so(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, client):
        table = await figures(client)
    page = DOCUMENTED.read_text()
    listed = page[page.index("always 0") :].split("\n\n")[0]
    told = set(re.findall(r"`(\w+)`", listed))
    pools = {key for key in table if "ThreadPool" in key or key.startswith("EndTransaction")}

    assert pools <= told
    assert {table[key] for key in told} == {"0"}


async def test_messages_and_their_bytes_are_counted(tmp_path: Path) -> None:
    async with served(tmp_path) as (broker, client):
        for body in (b"a" * 10, b"b" * 1000):
            await client.sent("orders", body)
        table = await figures(client)

        assert table["putMessageTimesTotal"] == "2"
        assert table["putMessageSizeTotal"] == table["commitLogMaxOffset"] == str(broker.store.end)
        assert float(table["putMessageAverageSize"]) == broker.store.end / 2
        assert table["dispatchBehindBytes"] == "0"


async def test_what_is_not_on_the_disk_yet_is_told(tmp_path: Path) -> None:
    settings = {"store__flush_interval": "1h"}
    async with served(tmp_path, **settings) as (broker, client):
        await client.sent("orders")
        before = (await figures(client))["remainHowManyDataToFlush"]
        await broker.store.save_checkpoint()
        size, written = broker.store.end, broker.store.durable_end

        assert before == f"{size} B"
        assert (await figures(client))["remainHowManyDataToFlush"] == f"{size - written} B"


async def test_the_broker_says_since_when_it_takes_messages(tmp_path: Path) -> None:
    clock = ManualClock()
    async with served(tmp_path, clock) as (_, client):
        started = clock.now_ms()
        await clock.advance(90)
        table = await figures(client)

    assert table["bootTimestamp"] == table["startAcceptSendRequestTimeStamp"] == str(started)
    assert table["runtime"] == "[ 90 s ]"


async def test_pulls_that_found_something_and_pulls_that_did_not_are_rates(tmp_path: Path) -> None:
    clock = ManualClock()
    async with served(tmp_path, clock) as (_, client):
        for _ in range(40):
            await client.sent("orders")
        await client.pull("orders")  # 32, then 8, then nothing
        await clock.advance(5)
        table = await figures(client)

    assert numbers(table["putTps"]) == [8.0, 8.0, 8.0]
    assert numbers(table["getTransferredTps"])[0] == 8.0
    assert numbers(table["getFoundTps"])[0] == pytest.approx(2 / 5)
    assert numbers(table["getMissTps"])[0] == pytest.approx(1 / 5)
    assert numbers(table["getTotalTps"])[0] == pytest.approx(3 / 5)


async def test_rates_are_of_ten_seconds_a_minute_and_ten_minutes(tmp_path: Path) -> None:
    clock = ManualClock()
    async with served(tmp_path, clock) as (_, client):
        for _ in range(600):
            await client.sent("orders")
        await clock.advance(40)
        table = await figures(client)
        ten, sixty, long = numbers(table["putTps"])
        assert (ten, sixty, long) == (0.0, 15.0, 15.0)
        await clock.advance(560)
        ten, sixty, long = numbers((await figures(client))["putTps"])
        assert (ten, sixty, long) == (0.0, 0.0, 1.0)


async def test_messages_of_the_brokers_own_topics_are_no_traffic(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, client):
        await client.sent("orders", DELAY=18)  # waits in the broker's own topic
        await client.sent("orders")
        table = await figures(client)

    assert table["putMessageTimesTotal"] == "2"
    assert table["msgPutTotalTodayNow"] == "1"


async def test_delay_levels_tell_how_far_they_are(tmp_path: Path) -> None:
    clock = ManualClock()
    async with served(tmp_path, clock) as (_, client):
        await client.sent("orders", DELAY=1)
        await client.sent("orders", DELAY=18)
        await clock.advance(2)
        table = await figures(client)

    assert table["scheduleMessageOffset_1"] == "1,1"
    assert table["scheduleMessageOffset_18"] == "0,1"
    assert "scheduleMessageOffset_2" not in table


async def test_the_timers_tell_what_they_have_not_taken_in(tmp_path: Path) -> None:
    clock = ManualClock()
    async with served(tmp_path, clock) as (_, client):
        await client.sent("orders", TIMER_DELAY_SEC=60)
        await clock.advance(2)
        table = await figures(client)

    assert (table["timerReadBehind"], table["timerOffsetBehind"]) == ("0", "0")


# --- days ----------------------------------------------------------------------------------


@pytest.fixture
def shanghai() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "CST-8")  # eight hours east of Greenwich, without a file of time zones
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("shanghai")
async def test_totals_roll_at_midnight_where_the_broker_is(tmp_path: Path) -> None:
    day = 86_400
    begin = 1_700_000_000  # 06:13:20 of 15 November at the broker
    clock = ManualClock(begin)
    async with served(tmp_path, clock) as (_, client):

        async def totals() -> list[tuple[int, int]]:
            table = await figures(client)
            return [
                (int(table[f"msgPutTotal{when}"]), int(table[f"msgGetTotal{when}"]))
                for when in ("TodayNow", "TodayMorning", "YesterdayMorning")
            ]

        for _ in range(3):
            await client.sent("orders")
        await client.pull("orders")
        await clock.advance(next_midnight(begin) - begin - 1)
        assert await totals() == [(3, 3), (0, 0), (0, 0)]
        await clock.advance(1)
        assert await totals() == [(3, 3), (3, 3), (0, 0)]
        await client.sent("orders")
        assert await totals() == [(4, 3), (3, 3), (0, 0)]
        await clock.jump(day)
        assert await totals() == [(4, 3), (4, 3), (3, 3)]


@pytest.mark.usefixtures("shanghai")
def test_a_day_ends_at_midnight() -> None:
    midnight = 1_700_064_000  # 15 November, 16:00 in Greenwich: midnight eight hours further east
    assert next_midnight(midnight - 1) == midnight
    assert next_midnight(midnight) == midnight + 86_400


# --- how long puts take --------------------------------------------------------------------


async def test_the_time_from_the_log_into_the_queue_is_measured(tmp_path: Path) -> None:
    clock = MovableClock()
    async with running_broker(tmp_path, clock=clock) as broker, peer(broker.address) as client:
        await client.sent("orders")
        for _ in range(3):
            broker.store.append(PendingMessage("orders", 0, b"late", {}))
        clock.advance(30)  # before the loop's turn ends, and with it the put
        table = await figures(client)

    assert 30_000 <= int(table["putMessageEntireTimeMax"]) < 60_000
    assert "[10s~]:3 " in table["putMessageDistributeTime"]
    assert float(table["putLatency99"]) == float(table["putLatency999"]) == int(table["putMessageEntireTimeMax"])
    assert table["dispatchMaxBuffer"] == "3"


def test_times_are_put_into_rocketmqs_classes() -> None:
    now = 0
    times = PutTimes(lambda: now)

    def put(milliseconds: int, count: int) -> None:
        nonlocal now
        now = milliseconds
        times([_Event()] * count)  # type: ignore[list-item]

    put(0, 980)
    put(9, 10)
    put(10, 5)
    put(3_500, 4)
    put(99_000, 1)

    assert times.distribution() == (
        "[<=0ms]:980 [0~10ms]:10 [10~50ms]:5 [50~100ms]:0 [100~200ms]:0 [200~500ms]:0 [500ms~1s]:0 [1~2s]:0 "
        "[2~3s]:0 [3~4s]:4 [4~5s]:0 [5~10s]:0 [10s~]:1 "
    )
    assert (times.percentile(0.98), times.percentile(0.99), times.percentile(0.999)) == (0.0, 9.0, 3_500.0)
    assert (times.longest_ms, times.largest_turn) == (99_000, 980)

    for _ in range(6):
        times.sample()
    assert times.percentile(0.99) == 9.0, "a minute is not over yet"
    times.sample()
    assert times.percentile(0.99) == 0.0
    assert times.longest_ms == 99_000, "the longest is since the start"


class _Event:
    store_timestamp = 0
