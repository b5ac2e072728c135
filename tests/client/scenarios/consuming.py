"""Consuming concurrently: B1, B5, B6, B8 to B10, B12, and both filters."""

from __future__ import annotations

import threading
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import anyio.to_thread
import pytest

from tests.client.place import Place, eventually, numbered, until
from verniermq.client import (
    Admin,
    Consumed,
    IdempotenceGuard,
    Later,
    Limits,
    Message,
    Outcome,
    Producer,
    PushConsumer,
    ReceivedMessage,
    Sql,
)
from verniermq.client.errors import ClientError, GroupConflict
from verniermq.kernel import UnexpectedAnswer
from verniermq.kernel.traffic import Consuming


def _consumer(place: Place, group: str | None = None, **options: Any) -> PushConsumer:
    return PushConsumer(group or place.name("group"), namesrv=place.namesrv, **{"start": "first", **options})


def _collector(consumer: PushConsumer) -> list[ReceivedMessage]:
    got: list[ReceivedMessage] = []

    @consumer.on_message
    async def take(message: ReceivedMessage) -> None:
        got.append(message)

    return got


async def every_message_is_consumed_once(place: Place) -> None:
    topic = await place.topic("all")
    consumer = _consumer(place)
    consumer.subscribe(topic)
    got = _collector(consumer)
    await place.send(topic, numbered(100))

    async with consumer:
        await until(lambda: len(got) >= 100)
        await place.send(topic, numbered(50, start=100))
        await until(lambda: len(got) >= 150)
        behind = await consumer.lag()

    assert sorted(int(message.body) for message in got) == list(range(150))
    assert sum(behind.values()) == 0
    async with Admin(namesrv=place.namesrv) as admin:
        assert await admin.lag(consumer.group, topic) == 0


async def a_new_message_comes_at_once(place: Place) -> None:
    topic = await place.topic("quick", queues=1)
    consumer = _consumer(place)
    consumer.subscribe(topic)
    arrived: list[float] = []

    @consumer.on_message
    async def take(message: ReceivedMessage) -> None:
        arrived.append(time.monotonic())

    async with consumer, place.producer() as producer:
        await producer.send(Message(topic, b"warm up"))
        await until(lambda: len(arrived) == 1)
        # The pull of this consumer is held by the broker now.
        sent = time.monotonic()
        await producer.send(Message(topic, b"now"))
        await until(lambda: len(arrived) == 2)

    # Below the 15 seconds that the broker would hold the pull without a message.
    assert arrived[1] - sent < 12


async def plain_functions_run_in_worker_threads(place: Place) -> None:
    topic = await place.topic("threads")
    consumer = _consumer(place, concurrency=4)
    consumer.subscribe(topic)
    threads: list[str] = []

    @consumer.on_message
    def take(message: ReceivedMessage) -> None:
        threads.append(threading.current_thread().name)

    await place.send(topic, numbered(20))
    async with consumer:
        await until(lambda: len(threads) == 20)

    assert threading.main_thread().name not in threads


async def batches_have_at_most_the_size_asked_for(place: Place) -> None:
    topic = await place.topic("batches", queues=1)
    consumer = _consumer(place, batch_size=8)
    consumer.subscribe(topic)
    sizes: list[int] = []

    @consumer.on_batch
    async def take(messages: list[ReceivedMessage]) -> None:
        sizes.append(len(messages))

    await place.send(topic, numbered(64))
    async with consumer:
        await until(lambda: sum(sizes) == 64)

    assert max(sizes) == 8


async def a_part_of_a_batch_can_be_consumed(place: Place) -> None:
    topic = await place.topic("part", queues=1)
    consumer = _consumer(place, batch_size=10)
    consumer.subscribe(topic)
    seen: list[tuple[bytes, int]] = []

    @consumer.on_batch
    async def take(messages: list[ReceivedMessage]) -> Consumed | None:
        seen.extend((message.body, message.reconsume_times) for message in messages)
        return Consumed(3) if len(messages) == 5 else None

    async with place.producer() as producer:
        await producer.send_batch([Message(topic, body) for body in numbered(5)])
    async with consumer:
        await until(lambda: len(seen) >= 5)
        await place.pass_time(11)
        await until(lambda: len(seen) >= 7)

    assert seen[:5] == [(body, 0) for body in numbered(5)]
    assert sorted(seen[5:]) == [(b"3", 1), (b"4", 1)]


async def a_failed_message_comes_again_and_shows_how_often(place: Place) -> None:
    topic = await place.topic("again")
    consumer = _consumer(place)
    consumer.subscribe(topic)
    seen: list[ReceivedMessage] = []

    @consumer.on_message
    async def take(message: ReceivedMessage) -> Any:
        seen.append(message)
        if message.reconsume_times == 0:
            raise ValueError("not yet")
        return Later(delay_level=1) if message.reconsume_times == 1 else None

    async with place.producer() as producer:
        result = await producer.send(Message(topic, b"stubborn", keys=["K"]))
    async with consumer:
        await until(lambda: len(seen) == 1)
        await place.pass_time(11)
        await until(lambda: len(seen) == 2)
        await place.pass_time(2)
        await until(lambda: len(seen) == 3)

    assert [message.reconsume_times for message in seen] == [0, 1, 2]
    assert {message.topic for message in seen} == {topic}
    assert {message.message_id for message in seen} == {result.message_id}
    assert {tuple(message.keys) for message in seen} == {("K",)}


async def a_message_that_fails_too_often_becomes_a_dead_letter(place: Place) -> None:
    topic = await place.topic("dying")
    consumer = _consumer(place, max_reconsume_times=1)
    consumer.subscribe(topic)
    tries = 0

    @consumer.on_message
    async def take(message: ReceivedMessage) -> Later:
        nonlocal tries
        tries += 1
        return Later(delay_level=1)

    await place.send(topic, [b"doomed"], tags="x")
    async with consumer, Admin(namesrv=place.namesrv) as admin:
        await until(lambda: tries == 1)
        await place.pass_time(2)
        await until(lambda: tries == 2)
        letters = await eventually(lambda: admin.dead_letters(consumer.group))

    (letter,) = letters
    assert (letter.body, letter.tags, letter.topic) == (b"doomed", "x", topic)
    assert tries == 2


async def a_handler_can_bury_a_message_at_once(place: Place) -> None:
    topic = await place.topic("buried")
    consumer = _consumer(place)
    consumer.subscribe(topic)
    tries = 0

    @consumer.on_message
    async def take(message: ReceivedMessage) -> Later:
        nonlocal tries
        tries += 1
        return Later(delay_level=-1)

    await place.send(topic, [b"poison"])
    async with consumer, Admin(namesrv=place.namesrv) as admin:
        letters = await eventually(lambda: admin.dead_letters(consumer.group))

    assert [letter.body for letter in letters] == [b"poison"]
    assert tries == 1


async def none_means_consumed_unless_asked_otherwise(place: Place) -> None:
    topic = await place.topic("none")
    strict = _consumer(place, none_means_later=True)
    easy = _consumer(place)
    seen: dict[str, int] = Counter()

    for consumer, name in ((strict, "strict"), (easy, "easy")):
        consumer.subscribe(topic)

        @consumer.on_message
        async def take(message: ReceivedMessage, name: str = name) -> Outcome | None:
            seen[name] += 1
            return Outcome.CONSUMED if message.reconsume_times else None

    await place.send(topic, [b"x"])
    async with strict, easy:
        await until(lambda: seen["strict"] == 1 and seen["easy"] == 1)
        await place.pass_time(11)
        await until(lambda: seen["strict"] == 2)

    assert seen["easy"] == 1


async def messages_can_be_iterated(place: Place) -> None:
    topic = await place.topic("loop")
    group = place.name("group")
    await place.send(topic, numbered(10))
    got: list[int] = []

    for wanted in (6, 4):
        consumer = _consumer(place, group)
        consumer.subscribe(topic)
        async with consumer:
            async for message in consumer:
                got.append(int(message.body))
                wanted -= 1
                if not wanted:
                    break

    assert sorted(got) == list(range(10))


async def a_loop_that_fails_gets_its_message_again(place: Place) -> None:
    topic = await place.topic("failing-loop", queues=1)
    group = place.name("group")
    await place.send(topic, numbered(3))

    consumer = _consumer(place, group)
    consumer.subscribe(topic)

    async def fail_at_the_second() -> None:
        async with consumer:
            async for message in consumer:
                if message.body == b"1":
                    raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail_at_the_second()
    again = _consumer(place, group)
    again.subscribe(topic)
    async with again:
        async for message in again:
            first = message.body
            break

    assert first == b"1"


async def tags_choose_messages(place: Place) -> None:
    topic = await place.topic("tags")
    consumer = _consumer(place)
    consumer.subscribe(topic, "a || b")
    got = _collector(consumer)

    async with place.producer() as producer:
        # "Aa" and "BB" have the same hash, so a broker cannot tell them apart; only the text can.
        for tag in ("a", "b", "c", None, "a"):
            await producer.send(Message(topic, (tag or "none").encode(), tags=tag))
        await producer.send(Message(topic, b"b", tags="b", keys=["last"]))
    async with consumer:
        await until(lambda: len(got) == 4)

    assert sorted(message.body for message in got) == [b"a", b"a", b"b", b"b"]


async def tags_with_equal_hashes_are_told_apart(place: Place) -> None:
    topic = await place.topic("hashes", queues=1)
    consumer = _consumer(place)
    consumer.subscribe(topic, "Aa")
    got = _collector(consumer)

    async with place.producer() as producer:
        for tag in ("BB", "Aa", "BB"):
            await producer.send(Message(topic, tag.encode(), tags=tag))
    async with consumer:
        await until(lambda: len(got) == 1)
        behind = await consumer.lag()

    assert [message.body for message in got] == [b"Aa"]
    assert len(behind) >= 1


async def an_sql_condition_chooses_messages(place: Place) -> None:
    topic = await place.topic("sql")
    consumer = _consumer(place)
    consumer.subscribe(topic, Sql("price > 10 AND region = 'EU'"))
    got = _collector(consumer)

    async with place.producer() as producer:
        for price, region in ((5, "EU"), (15, "EU"), (15, "US"), (20, "EU")):
            properties = {"price": str(price), "region": region}
            await producer.send(Message(topic, f"{price}{region}".encode(), properties=properties))
    async with consumer:
        await until(lambda: len(got) == 2)

    assert sorted(message.body for message in got) == [b"15EU", b"20EU"]


async def a_wrong_sql_condition_is_refused_at_the_start(place: Place) -> None:
    topic = await place.topic("bad-sql")
    consumer = _consumer(place)
    consumer.subscribe(topic, Sql("price > > 10"))
    _collector(consumer)

    with pytest.raises(UnexpectedAnswer, match="CHECK_CLIENT_CONFIG"):
        await consumer.start()


async def a_new_group_begins_where_it_was_told(place: Place) -> None:
    topic = await place.topic("start", queues=1)
    await place.send(topic, numbered(3))
    middle = datetime.fromtimestamp(await place.now_ms(topic) / 1000, UTC)
    await place.send(topic, numbered(3, start=3))
    group = place.name("group")
    async with Admin(namesrv=place.namesrv) as admin:
        offsets = await admin.reset_offsets(group, topic, middle)
    timed = _consumer(place, group)
    first = _consumer(place, start="first")
    got_timed, got_first = _collector(timed), _collector(first)
    timed.subscribe(topic)
    first.subscribe(topic)

    async with timed, first:
        await until(lambda: len(got_first) == 6 and len(got_timed) == 3)

    assert list(offsets.values()) == [3]
    assert [message.body for message in got_first] == numbered(6)
    assert [message.body for message in got_timed] == numbered(3, start=3)


async def a_repeat_is_dropped_by_the_guard(place: Place) -> None:
    topic = await place.topic("repeats")
    guard = IdempotenceGuard(key=lambda message: message.keys[0])
    consumer = _consumer(place, deduplicate=guard)
    consumer.subscribe(topic)
    got = _collector(consumer)

    async with place.producer() as producer:
        for key in ("A", "B", "A", "A", "C"):
            await producer.send(Message(topic, key.encode(), keys=[key]))
    async with consumer:
        await until(lambda: len(got) == 3 and guard.dropped == 2)

    assert sorted(message.body for message in got) == [b"A", b"B", b"C"]


async def every_member_of_a_broadcasting_group_gets_everything(place: Place) -> None:
    topic = await place.topic("broadcast")
    group = place.name("group")
    with TemporaryDirectory() as folder:
        members = [
            _consumer(place, group, broadcasting=True, offset_folder=folder, instance=f"member-{n}") for n in range(2)
        ]
        received = [_collector(member) for member in members]
        for member in members:
            member.subscribe(topic)
        async with members[0], members[1]:
            await place.send(topic, numbered(20))
            await until(lambda: all(len(got) == 20 for got in received))
        files = await anyio.to_thread.run_sync(lambda: list(Path(folder).rglob("offsets.json")))
        again = _consumer(place, group, broadcasting=True, offset_folder=folder, instance="member-0")
        again.subscribe(topic)
        later = _collector(again)
        async with again:
            await place.send(topic, [b"new"])
            await until(lambda: len(later) >= 1)

    assert len(files) == 2
    assert [message.body for message in later] == [b"new"]


async def a_broadcasting_group_has_no_retries(place: Place) -> None:
    topic = await place.topic("broadcast-fails", queues=1)
    with TemporaryDirectory() as folder:
        consumer = _consumer(place, broadcasting=True, offset_folder=folder)
        consumer.subscribe(topic)
        seen: list[bytes] = []

        @consumer.on_message
        async def take(message: ReceivedMessage) -> None:
            seen.append(message.body)
            if message.body == b"0":
                raise ValueError("lost")

        async with consumer:
            await place.send(topic, numbered(2))
            await until(lambda: len(seen) == 2)
            await place.pass_time(2)
            await place.send(topic, [b"end"])
            await until(lambda: b"end" in seen)

    assert seen == [b"0", b"1", b"end"]


async def too_much_in_hand_holds_back_pulling(place: Place) -> None:
    topic = await place.topic("limits", queues=1)
    consumer = _consumer(place, concurrency=1, limits=Limits(messages=10), pull_batch=5)
    consumer.subscribe(topic)
    started, free = anyio.Event(), anyio.Event()
    seen = 0

    @consumer.on_message
    async def take(message: ReceivedMessage) -> None:
        nonlocal seen
        seen += 1
        started.set()
        await free.wait()

    await place.send(topic, numbered(60))
    async with consumer:
        await started.wait()
        (held,) = [h for q, h in consumer._assignment.held.items() if q.topic == topic]
        await until(lambda: not held.has_room)
        most = len(held.pending)
        free.set()
        await until(lambda: seen == 60)

    assert 10 < most <= 15


async def a_paused_consumer_gets_nothing_until_it_resumes(place: Place) -> None:
    topic = await place.topic("pause", queues=1)
    consumer = _consumer(place)
    consumer.subscribe(topic)
    got = _collector(consumer)

    consumer.pause()
    async with consumer:
        await place.send(topic, numbered(5))
        await anyio.sleep(0.3)
        while_paused = len(got)
        consumer.resume()
        await until(lambda: len(got) == 5)

    assert while_paused == 0


async def closing_finishes_what_is_in_hand(place: Place) -> None:
    topic = await place.topic("graceful", queues=1)
    group = place.name("group")
    consumer = _consumer(place, group, concurrency=1)
    consumer.subscribe(topic)
    begun = anyio.Event()
    finished: list[bytes] = []

    @consumer.on_message
    async def take(message: ReceivedMessage) -> None:
        begun.set()
        await anyio.sleep(0.2)
        finished.append(message.body)

    await place.send(topic, numbered(5))
    async with consumer:
        await begun.wait()
    rest = _consumer(place, group)
    rest.subscribe(topic)
    got = _collector(rest)
    async with rest:
        await until(lambda: len(got) + len(finished) >= 5)

    assert len(finished) >= 1
    assert finished + [message.body for message in got] == numbered(5)


async def a_message_whose_handler_hangs_is_handed_back(place: Place) -> None:
    topic = await place.topic("hangs", queues=1)
    consumer = _consumer(place, stuck_after=0.2, stop_timeout=0.1)
    consumer.subscribe(topic)
    seen: list[tuple[bytes, int]] = []

    @consumer.on_message
    async def take(message: ReceivedMessage) -> None:
        seen.append((message.body, message.reconsume_times))
        if message.body == b"0" and message.reconsume_times == 0:
            await anyio.sleep_forever()

    await place.send(topic, numbered(3))
    async with consumer:
        # Nothing waits for the one that hangs: the group's place goes past it.
        await eventually(consumer.lag, lambda lag: sum(lag.values()) == 0)
        await place.pass_time(11)
        await until(lambda: (b"0", 1) in seen)


async def a_consumer_can_be_started_again(place: Place) -> None:
    topic = await place.topic("restarted")
    consumer = _consumer(place)
    consumer.subscribe(topic)
    got = _collector(consumer)

    for count in (5, 10):
        async with consumer:
            await place.send(topic, numbered(5))
            await until(lambda wanted=count: len(got) == wanted)  # type: ignore[misc]


async def hooks_run_around_a_delivery(place: Place) -> None:
    topic = await place.topic("consume-hooks")
    consumer = _consumer(place)
    consumer.subscribe(topic)
    heard: list[tuple[str, Consuming]] = []
    consumer.before_consume(lambda consuming: heard.append(("before", consuming)))
    consumer.after_consume(lambda consuming: heard.append(("after", consuming)))
    got = _collector(consumer)

    await place.send(topic, [b"x"])
    async with consumer:
        await until(lambda: len(heard) == 2)

    assert [moment for moment, _ in heard] == ["before", "after"]
    assert heard[1][1].succeeded
    assert len(got) == 1


async def a_group_that_does_something_else_is_refused(place: Place) -> None:
    topic, other = await place.topic("mine"), await place.topic("theirs")
    group = place.name("group")
    first = _consumer(place, group)
    first.subscribe(topic)
    _collector(first)
    second = _consumer(place, group)
    second.subscribe(other)
    _collector(second)

    async with first:
        with pytest.raises(GroupConflict, match=other):
            await second.start()


async def a_consumer_without_a_subscription_does_not_start(place: Place) -> None:
    consumer = _consumer(place)
    _collector(consumer)

    with pytest.raises(ClientError, match="subscribes to nothing"):
        await consumer.start()


async def a_subscription_can_be_added_while_the_consumer_runs(place: Place) -> None:
    first, second = await place.topic("first"), await place.topic("second")
    consumer = _consumer(place)
    consumer.subscribe(first)
    got = _collector(consumer)

    async with consumer, Producer("senders", namesrv=place.namesrv) as producer:
        await producer.send(Message(first, b"1"))
        await until(lambda: len(got) == 1)
        consumer.subscribe(second)
        await producer.send(Message(second, b"2"))
        await until(lambda: len(got) == 2)

    assert [message.topic for message in got] == [first, second]


async def a_cancelled_consumer_still_saves_its_place(place: Place) -> None:
    topic = await place.topic("cancelled", queues=1)
    group = place.name("group")
    await place.send(topic, numbered(5))
    got: list[bytes] = []

    consumer = _consumer(place, group)
    consumer.subscribe(topic)
    with anyio.CancelScope() as scope:
        async with consumer:
            async for message in consumer:
                got.append(message.body)
                if len(got) == 3:
                    scope.cancel()
    async with Admin(namesrv=place.namesrv) as admin:
        lag = await admin.lag(group, topic)
        members = await admin.members(group)

    # The loop had asked for a fourth one, so the third is done.
    assert (got, lag, members) == (numbered(3), 2, [])
