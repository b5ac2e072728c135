"""Transactions over real sockets: what is seen, what is refused, who is asked, what a restart finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.plugins.txn.peers import BORN_MS, HalfSent, peer
from verniermq.kernel import Broker, Command, RequestCode, ResponseCode
from verniermq.plugins.txn.table import GROUP, parse_offsets
from verniermq.testing import ManualClock, running_broker

pytestmark = pytest.mark.anyio

COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
HALF, OPERATIONS, GIVEN_UP = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"


def open_count(broker: Broker) -> int:
    return len(broker.host.active["txn"].instance._table)


def answer_of(request: Command) -> HalfSent:
    """What a producer that is asked about a transaction answers with."""
    return HalfSent(int(request.ext["tranStateTableOffset"]), int(request.ext["commitLogOffset"]), request)


# --- half, commit, rollback ----------------------------------------------------------------


async def test_a_half_message_is_not_seen_until_it_is_committed() -> None:
    async with running_broker() as broker, peer(broker.address) as producer:
        half = await producer.send_half("orders", b"paid", {"KEYS": "k", "TAGS": "t"}, queue_id=2)
        assert await producer.bodies("orders", 2) == []

        answer = await producer.end(half, COMMIT)

        assert answer.code == 0
        (message,) = await producer.pull("orders", 2)
        assert (message.body, message.topic, message.queue_id) == (b"paid", "orders", 2)
        assert message.sys_flag & 0xC == 8
        assert message.prepared_transaction_offset == half.log_offset
        assert message.born_timestamp == BORN_MS
        assert (message.properties["KEYS"], message.properties["TAGS"]) == ("k", "t")
        assert open_count(broker) == 0


async def test_the_answer_to_a_half_message_names_the_half_record_and_the_wanted_queue() -> None:
    async with running_broker() as broker, peer(broker.address) as producer:
        await producer.send_half("orders")
        half = await producer.send_half("orders", properties={"UNIQ_KEY": "K1"}, queue_id=3)

        assert half.answer.ext["queueId"] == "3"
        assert half.queue_offset == 1
        assert half.answer.ext["transactionId"] == "K1"
        stored = broker.store.message_at(half.log_offset)
        assert stored is not None
        assert (stored.topic, stored.queue_id, stored.sys_flag & 0xC) == (HALF, 0, 0)
        assert stored.properties["REAL_TOPIC"] == "orders"
        assert stored.properties["REAL_QID"] == "3"
        assert stored.properties["__transactionId__"] == "K1"


async def test_a_rolled_back_message_is_never_seen_and_leaves_a_note() -> None:
    async with running_broker() as broker, peer(broker.address) as producer:
        half = await producer.send_half("orders")

        assert (await producer.end(half, ROLLBACK)).code == 0

        assert await producer.bodies("orders") == []
        (note,) = await producer.pull(OPERATIONS)
        assert (note.body, note.tags) == (b"0,", "d")
        late = await producer.end(half, COMMIT)
        assert late.code == ResponseCode.SYSTEM_ERROR
        assert "ended already" in late.remark
        assert await producer.bodies("orders") == []


async def test_a_second_commit_delivers_no_second_message() -> None:
    async with running_broker() as broker, peer(broker.address) as producer:
        half = await producer.send_half("orders")
        await producer.end(half, COMMIT)

        again = await producer.end(half, COMMIT, fromTransactionCheck="true")

        assert again.code == ResponseCode.SYSTEM_ERROR
        assert len(await producer.bodies("orders")) == 1


async def test_unknown_gets_no_answer_and_changes_nothing() -> None:
    async with running_broker() as broker, peer(broker.address) as producer:
        half = await producer.send_half("orders")
        fields = {"producerGroup": "P", "tranStateTableOffset": str(half.queue_offset), "msgId": "x",
                  "commitLogOffset": str(half.log_offset), "commitOrRollback": str(UNKNOWN)}  # fmt: skip
        producer.connection.oneway(Command.request(RequestCode.END_TRANSACTION, fields))

        await producer.send("orders", b"plain")

        assert await producer.bodies("orders") == [b"plain"]
        assert open_count(broker) == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"commitLogOffset": 999_999}, "no half message at commit-log offset 999999"),
        ({"commitLogOffset": -1}, "no half message"),
        ({"group": "other"}, "belongs to producer group 'P', not to 'other'"),
        ({"tranStateTableOffset": 7}, "queue offset 0, not 7"),
    ],
)
async def test_an_answer_that_does_not_fit_the_half_message_is_refused(changes: dict[str, Any], words: str) -> None:
    async with running_broker() as broker, peer(broker.address) as producer:
        half = await producer.send_half("orders")

        answer = await producer.end(half, COMMIT, **changes)

        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert words in answer.remark
        assert await producer.bodies("orders") == []
        assert open_count(broker) == 1


async def test_an_ordinary_message_cannot_be_committed() -> None:
    async with running_broker() as broker, peer(broker.address) as producer:
        properties = {"PGROUP": "P", "REAL_TOPIC": "x", "REAL_QID": "0"}
        plain = HalfSent.of(await producer.send("orders", properties=properties))

        assert (await producer.end(plain, COMMIT)).code == ResponseCode.SYSTEM_ERROR


async def test_after_its_immunity_only_the_answer_to_a_check_counts() -> None:
    clock = ManualClock()
    async with running_broker(clock=clock) as broker, peer(broker.address) as producer:
        half = await producer.send_half("orders", properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "20"})
        await clock.advance(20.001)

        late = await producer.end(half, COMMIT)
        assert late.code == ResponseCode.ILLEGAL_OPERATION
        assert await producer.bodies("orders") == []

        assert (await producer.end(half, COMMIT, fromTransactionCheck="true")).code == 0
        assert len(await producer.bodies("orders")) == 1


async def test_a_message_tried_before_is_no_transaction_again() -> None:
    async with running_broker() as broker, peer(broker.address) as consumer:
        properties = {"TRAN_MSG": "true", "PGROUP": "P", "DELAY": "3"}
        await consumer.send("orders", b"again", properties, j=1)

        assert broker.store.max_offset(HALF, 0) == 0


async def test_the_delay_of_a_transaction_begins_with_its_commit() -> None:
    clock = ManualClock()
    async with running_broker(clock=clock) as broker, peer(broker.address) as producer:
        half = await producer.send_half("orders", b"later", {"DELAY": "1"})
        await clock.advance(2)
        await producer.end(half, COMMIT)
        assert await producer.bodies("orders") == []

        await clock.advance(1.5)

        assert await producer.bodies("orders") == [b"later"]


async def test_without_the_plugin_a_half_message_is_refused_by_its_name() -> None:
    async with running_broker(plugins__enable=[]) as broker, peer(broker.address) as producer:
        answer = await producer.send("orders", b"x", {"TRAN_MSG": "true", "PGROUP": "P"})
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "'txn'" in answer.remark

        fields = {"producerGroup": "P", "tranStateTableOffset": 0, "commitLogOffset": 0, "commitOrRollback": 8}
        ending = await producer.ask(RequestCode.END_TRANSACTION, fields)
        assert "END_TRANSACTION (37) needs the plugin 'txn'" in ending.remark


# --- asking back ---------------------------------------------------------------------------


async def test_another_producer_of_the_group_is_asked_after_the_first_one_died() -> None:
    clock = ManualClock()
    async with running_broker(clock=clock) as broker:
        async with peer(broker.address, "dead@1") as first:
            await first.join(producers=("P",))
            await first.send_half("orders", b"paid", {"UNIQ_KEY": "K1", "mine": "yes"}, queue_id=1)
        async with peer(broker.address, "alive@2") as second:
            await second.join(producers=("P",))
            await clock.advance(30)

            request, shown = await second.checked()

            assert (shown.topic, shown.queue_id, shown.body) == ("orders", 1, b"paid")
            assert shown.properties["mine"] == "yes"
            assert (request.ext["msgId"], request.ext["transactionId"]) == ("K1", "K1")
            assert request.ext["bname"] == broker.name
            assert request.is_oneway
            assert (await second.end(answer_of(request), COMMIT, fromTransactionCheck="true")).code == 0
            assert await second.bodies("orders", 1) == [b"paid"]
            await clock.advance(300)
            assert second.checks.statistics().current_buffer_used == 0


async def test_a_young_transaction_is_not_asked_about() -> None:
    clock = ManualClock()
    async with running_broker(clock=clock) as broker, peer(broker.address) as producer:
        await producer.join(producers=("P",))
        await clock.advance(25)
        await producer.send_half("orders", b"young", born=clock.now_ms())
        await clock.advance(5)  # a round, but the message is 5 s old and the time-out is 6 s
        await producer.send("other")
        assert producer.checks.statistics().current_buffer_used == 0

        await clock.advance(30)

        _, shown = await producer.checked()
        assert shown.body == b"young"


async def test_a_message_may_ask_to_be_left_alone_for_longer() -> None:
    clock = ManualClock()
    async with running_broker(clock=clock) as broker, peer(broker.address) as producer:
        await producer.join(producers=("P",))
        await producer.send_half("orders", b"immune", {"CHECK_IMMUNITY_TIME_IN_SECONDS": "100"})
        await producer.send_half("orders", b"normal", {"CHECK_IMMUNITY_TIME_IN_SECONDS": "-1"})

        await clock.advance(90)
        assert [(await producer.checked())[1].body for _ in range(3)] == [b"normal"] * 3
        await clock.advance(30)

        assert {(await producer.checked())[1].body for _ in range(2)} == {b"normal", b"immune"}


async def test_a_late_answer_about_the_first_copy_ends_the_transaction() -> None:
    clock = ManualClock()
    async with running_broker(clock=clock) as broker, peer(broker.address) as producer:
        await producer.join(producers=("P",))
        half = await producer.send_half("orders")
        await clock.advance(60)  # two checks: the half message now exists three times
        assert broker.store.max_offset(HALF, 0) == 3

        assert (await producer.end(half, COMMIT)).code == 0

        assert len(await producer.bodies("orders")) == 1
        assert open_count(broker) == 0
        (note,) = await producer.pull(OPERATIONS)
        assert parse_offsets(note.body) == [0, 1, 2]


async def test_checks_go_around_among_the_producers_of_a_group() -> None:
    clock = ManualClock()
    async with (
        running_broker(clock=clock) as broker,
        peer(broker.address, "a") as one,
        peer(broker.address, "b") as two,
    ):
        await one.join(producers=("P",))
        await two.join(producers=("P",))
        await one.send_half("orders")

        await clock.advance(60)

        await one.checked()
        await two.checked()


async def test_a_number_that_nobody_can_read_does_not_keep_others_from_being_asked() -> None:
    clock = ManualClock()
    async with running_broker(clock=clock) as broker, peer(broker.address) as producer:
        await producer.join(producers=("P",))
        await producer.send_half("orders", b"bad", {"UNIQ_KEY": "K1", "TRANSACTION_CHECK_TIMES": "9" * 5000})
        await producer.send_half("orders", b"good", {"UNIQ_KEY": "K2"})

        await clock.advance(60)

        assert {(await producer.checked())[1].body for _ in range(2)} == {b"bad", b"good"}
        assert broker.host.active["txn"].failures == 0


async def test_a_transaction_checked_too_often_is_moved_and_can_be_opened_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    async with running_broker(clock=clock, plugins__txn__check_max=2) as broker, peer(broker.address) as producer:
        await producer.join(producers=("P",))
        await producer.send_half("orders", b"stuck", {"UNIQ_KEY": "K9"})

        await clock.advance(90)

        seen = [(await producer.checked())[1].properties for _ in range(2)]
        assert [properties.get("TRANSACTION_CHECK_TIMES") for properties in seen] == [None, "1"]
        (given_up,) = await producer.pull(GIVEN_UP)
        assert given_up.body == b"stuck"
        assert open_count(broker) == 0
        assert "gave up a transaction" in caplog.text
        assert "K9" in caplog.text

        resumed = await producer.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"msgId": given_up.offset_message_id})
        assert resumed.code == 0
        await clock.advance(30)
        request, _ = await producer.checked()
        assert (await producer.end(answer_of(request), COMMIT, fromTransactionCheck="true")).code == 0
        assert await producer.bodies("orders") == [b"stuck"]


async def test_transactions_that_nobody_can_be_asked_about_are_one_line_for_each_group_and_round(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    async with running_broker(clock=clock) as broker, peer(broker.address) as producer:
        for number in range(24):
            await producer.send_half("orders", b"open", {"UNIQ_KEY": f"K{number}"}, group="AB"[number % 2])
        await clock.advance(90)

    told = [record.getMessage() for record in caplog.records if "no live producer" in record.message]
    assert sorted(told) == sorted(3 * [f"no live producer to ask about transactions group={g} open=12" for g in "AB"])


async def test_transactional_messages_may_be_refused() -> None:
    async with running_broker(plugins__txn__reject=True) as broker, peer(broker.address) as producer:
        refused = await producer.send("orders", b"half", {"TRAN_MSG": "true", "PGROUP": "P"}, sys_flag=4)
        assert refused.code == ResponseCode.NO_PERMISSION
        assert "set reject = false in [plugins.txn]" in refused.remark
        assert (await producer.send("orders", b"plain", {})).code == 0


async def test_checks_without_a_producer_count_unless_told_otherwise() -> None:
    for counts, left in ((True, 0), (False, 1)):
        clock = ManualClock()
        settings: dict[str, Any] = {"plugins__txn__check_max": 2, "plugins__txn__count_without_producer": counts}
        async with running_broker(clock=clock, **settings) as broker, peer(broker.address) as producer:
            await producer.send_half("orders")
            await clock.advance(120)
            assert open_count(broker) == left


async def test_the_cost_of_a_round_is_what_is_open_not_what_was() -> None:
    clock = ManualClock()
    async with running_broker(clock=clock) as broker, peer(broker.address) as producer:
        await producer.join(producers=("P",))
        await producer.send_half("orders", b"old", {"CHECK_IMMUNITY_TIME_IN_SECONDS": "86400"})
        for _ in range(1500):
            half = await producer.send_half("orders", born=clock.now_ms())
            await producer.end(half, ROLLBACK)
        await clock.advance(60)

        committed = broker.offsets.committed(GROUP, HALF, 0)
        needed = broker.offsets.committed(GROUP, OPERATIONS, 0)

        # The old one was carried to the end of the queue, so nothing before it has to be read again.
        assert committed == broker.store.max_offset(HALF, 0) - 1 == 1501
        assert needed == 1500
        assert open_count(broker) == 1


# --- restarts ------------------------------------------------------------------------------


async def test_open_transactions_are_found_again_after_a_restart(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running_broker(tmp_path, clock=clock) as broker, peer(broker.address) as producer:
        done = await producer.send_half("orders", b"done")
        left = await producer.send_half("orders", b"left")
        gone = await producer.send_half("orders", b"gone")
        await producer.end(done, COMMIT)
        await producer.end(gone, ROLLBACK)
    async with running_broker(tmp_path, clock=clock) as broker, peer(broker.address) as producer:
        assert open_count(broker) == 1
        assert (await producer.end(done, COMMIT)).code == ResponseCode.SYSTEM_ERROR
        assert (await producer.end(gone, COMMIT)).code == ResponseCode.SYSTEM_ERROR
        assert await producer.bodies("orders") == [b"done"]

        assert (await producer.end(left, COMMIT)).code == 0

        assert await producer.bodies("orders") == [b"done", b"left"]


async def test_the_count_of_checks_survives_a_restart(tmp_path: Path) -> None:
    clock = ManualClock()
    for expected_open in (1, 1, 0):
        async with running_broker(tmp_path, clock=clock, plugins__txn__check_max=2) as broker:
            async with peer(broker.address) as producer:
                await producer.join(producers=("P",))
                if broker.store.max_offset(HALF, 0) == 0:
                    await producer.send_half("orders")
                await clock.advance(30)
            assert open_count(broker) == expected_open


async def test_a_restart_reads_from_the_low_mark_only(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running_broker(tmp_path, clock=clock) as broker, peer(broker.address) as producer:
        for _ in range(200):
            await producer.end(await producer.send_half("orders"), ROLLBACK)
    async with running_broker(tmp_path, clock=clock) as broker:
        assert broker.offsets.committed(GROUP, HALF, 0) == 200
        assert broker.offsets.committed(GROUP, OPERATIONS, 0) == 200
        assert open_count(broker) == 0


async def test_copies_found_after_lost_offsets_are_one_transaction(tmp_path: Path) -> None:
    """A crash may lose the newest low mark; then the old copies of a half message are found too."""
    clock = ManualClock()
    async with running_broker(tmp_path, clock=clock) as broker, peer(broker.address) as producer:
        half = await producer.send_half("orders")
        await clock.advance(90)
        assert broker.store.max_offset(HALF, 0) == 4
    for file in (tmp_path / "config").glob("consumerOffset.json*"):
        file.unlink()
    async with running_broker(tmp_path, clock=clock) as broker, peer(broker.address) as producer:
        assert open_count(broker) == 1
        assert (await producer.end(half, COMMIT)).code == 0
        assert open_count(broker) == 0
    for file in (tmp_path / "config").glob("consumerOffset.json*"):
        file.unlink()
    async with running_broker(tmp_path, clock=clock) as broker, peer(broker.address) as producer:
        assert open_count(broker) == 0
        assert len(await producer.bodies("orders")) == 1


async def test_many_transactions_at_once_end_as_they_should() -> None:
    async with running_broker() as broker, peer(broker.address) as producer:

        async def one(number: int) -> None:
            half = await producer.send_half("orders", str(number).encode(), queue_id=number % 4)
            await producer.end(half, ROLLBACK if number % 3 == 0 else COMMIT)

        async with anyio.create_task_group() as tasks:
            for number in range(90):
                tasks.start_soon(one, number)

        seen = [int(body) for queue in range(4) for body in await producer.bodies("orders", queue)]
        assert sorted(seen) == [number for number in range(90) if number % 3]
        assert open_count(broker) == 0


async def test_a_commit_is_answered_only_when_it_is_on_the_disk() -> None:
    async with running_broker(store__flush="sync") as broker, peer(broker.address) as producer:
        half = await producer.send_half("orders", b"safe")

        assert (await producer.end(half, COMMIT)).code == 0

        assert broker.store._flusher.flushed >= broker.store.end
        assert await producer.bodies("orders") == [b"safe"]


async def test_a_half_message_may_be_ended_before_it_is_dispatched() -> None:
    async with running_broker(store__flush="sync") as broker, peer(broker.address) as producer:
        await producer.send("orders", b"first")
        guess = HalfSent(0, broker.store.end, Command.request(0))
        codes = []

        async def end() -> None:
            codes.append((await producer.end(guess, COMMIT)).code)

        async with anyio.create_task_group() as tasks:
            # Both requests travel in one piece: the half message is in the log, but not on the disk nor in its queue.
            tasks.start_soon(producer.send_half, "orders", b"hasty", {"WAIT": "false"})
            tasks.start_soon(end)

        assert codes == [0]
        assert await producer.bodies("orders") == [b"first", b"hasty"]
        assert open_count(broker) == 0
