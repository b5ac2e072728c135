"""Delivery by the broker itself: a damaged message is logged and skipped, never delivered wrong or tried for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.plugins.peer import served
from tests.plugins.pop.popper import consumer
from tests.plugins.txn.peers import peer as transactional
from tests.spoiling import BODY_LENGTH, SIZE, spoil
from verniermq.kernel import SysFlag
from verniermq.testing import ManualClock, running_broker

pytestmark = pytest.mark.anyio

WRONG, RIGHT = b"damaged 1000 EUR", b"whole 2000 EUR"
PLACES = pytest.mark.parametrize("at", [8, SIZE + 2, BODY_LENGTH + 2], ids=["body", "size", "body length"])


@PLACES
@pytest.mark.parametrize("when", [{"DELAY": 2}, {"TIMER_DELAY_SEC": 5}])
async def test_a_damaged_delayed_message_does_not_hold_up_the_next(
    tmp_path: Path, when: dict[str, int], at: int, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    async with served(tmp_path, clock) as (broker, client):
        await client.sent("orders", WRONG, **when)
        await client.sent("orders", RIGHT, **when)
        spoil(tmp_path, WRONG, at)

        await clock.advance(10)

        assert await client.bodies("orders") == [RIGHT]
        assert broker.store.damage.found == 1
    assert any("it is skipped" in record.message for record in caplog.records)


@PLACES
async def test_timed_messages_that_were_damaged_before_they_were_taken_in_are_skipped(tmp_path: Path, at: int) -> None:
    clock = ManualClock()
    async with served(tmp_path, clock, plugins__enable=[]) as (_, client):
        for body in (WRONG, RIGHT):
            await client.sent(
                "rmq_sys_wheel_timer", body, TIMER_OUT_MS=clock.now_ms() + 5000, REAL_TOPIC="orders", REAL_QID=0
            )
    spoil(tmp_path, WRONG, at)
    async with served(tmp_path, clock) as (_, client):
        await client.sent("orders", b"first")
        await clock.advance(10)

        assert await client.bodies("orders") == [b"first", RIGHT]


@PLACES
async def test_a_damaged_half_message_is_not_committed(tmp_path: Path, at: int) -> None:
    async with running_broker(tmp_path, clock=ManualClock()) as broker, transactional(broker.address) as producer:
        wrong = await producer.send_half("orders", WRONG, {"UNIQ_KEY": "A"})
        right = await producer.send_half("orders", RIGHT, {"UNIQ_KEY": "B"})
        spoil(tmp_path, WRONG, at)

        refused = await producer.end(wrong, SysFlag.TRANSACTION_COMMIT)
        done = await producer.end(right, SysFlag.TRANSACTION_COMMIT)

        assert "there is no half message at commit-log offset" in refused.remark
        assert (done.code, await producer.bodies("orders")) == (0, [RIGHT])


@PLACES
async def test_a_start_with_damaged_notes_of_transactions_asks_the_producer(tmp_path: Path, at: int) -> None:
    clock = ManualClock()
    async with running_broker(tmp_path, clock=clock) as broker, transactional(broker.address) as producer:
        open_half = await producer.send_half("orders", WRONG, {"UNIQ_KEY": "A"})
        half = await producer.send_half("orders", RIGHT, {"UNIQ_KEY": "B"})
        await producer.end(half, SysFlag.TRANSACTION_ROLLBACK)
        await producer.send("others")
    spoil(tmp_path, b"%d,%cRMQ_SYS_TRANS_OP" % (half.queue_offset, 27), min(at, 0))
    spoil(tmp_path, WRONG, at)
    async with running_broker(tmp_path, clock=clock) as broker, transactional(broker.address) as producer:
        await producer.join(producers=("P",))
        await clock.advance(120)
        _, asked = await producer.checked()
        again = await producer.end(open_half, SysFlag.TRANSACTION_COMMIT)

        assert asked.body == RIGHT
        assert again.code != 0
        assert await producer.bodies("orders") == []


@PLACES
async def test_a_damaged_message_that_was_popped_does_not_come_again(tmp_path: Path, at: int) -> None:
    clock = ManualClock()
    async with running_broker(tmp_path, clock=clock) as broker, consumer(broker.address, broker.name) as it:
        for body in (WRONG, RIGHT):
            await it.peer.send(it.topic, body)
        await it.pop(invisibleTime=10_000)
        spoil(tmp_path, WRONG, at)

        await clock.advance(11)
        again = await it.pop(invisibleTime=10_000)

        assert [one.body for one in again] == [RIGHT]
        # Now the copy: it would get a new checksum with its new properties.
        spoil(tmp_path, RIGHT, at)
        await clock.advance(11)
        assert await it.pop() == []


@PLACES
async def test_a_copy_in_the_retry_topic_that_was_damaged_gets_no_new_checksum(tmp_path: Path, at: int) -> None:
    clock = ManualClock()
    async with running_broker(tmp_path, clock=clock) as broker, consumer(broker.address, broker.name) as it:
        for body in (WRONG, RIGHT):
            await it.peer.send(it.topic, body)
        await it.pop(invisibleTime=10_000)
        await clock.advance(11)
        spoil(tmp_path, WRONG, at)

        assert [one.body for one in await it.pop()] == [RIGHT]


@PLACES
async def test_a_start_with_a_damaged_note_of_a_pop_finds_the_others(tmp_path: Path, at: int) -> None:
    clock = ManualClock()
    async with running_broker(tmp_path, clock=clock) as broker, consumer(broker.address, broker.name) as it:
        await it.peer.send(it.topic, WRONG)
        await it.pop(invisibleTime=10_000)
        log = (tmp_path / "commitlog" / f"{0:020}").read_bytes()
        note = log[log.rindex(b'{"') : log.rindex(b"rmq_sys_REVIVE_LOG") - 1]
        await it.peer.send(it.topic, RIGHT)
        await it.pop(invisibleTime=10_000)
    spoil(tmp_path, note, at)
    async with running_broker(tmp_path, clock=clock) as broker, consumer(broker.address, broker.name) as it:
        await clock.advance(11)

        assert [one.body for one in await it.pop()] == [RIGHT]
