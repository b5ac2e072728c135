"""Popping over real sockets: what is taken, acknowledged, made visible again, and found after a restart."""

from __future__ import annotations

import base64
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import attrs
import orjson
import pytest

from tests.kernel.commitlog.disk import Disk
from tests.plugins.pop.popper import GROUP, RETRY, TOPIC, Consumer, consumer
from tests.plugins.txn.peers import peer
from tests.work import WorkPerTurn
from verniermq.kernel import Broker, Command, ConnectionLost, PendingMessage, RequestCode, ResponseCode
from verniermq.plugins.pop import inflight
from verniermq.plugins.pop.ack import ACKS_PER_STEP
from verniermq.plugins.pop.checkpoint import CheckPoint
from verniermq.plugins.pop.longpoll import ATTEMPTS_PER_STEP, BYTES_PER_ATTEMPT, HeldPops
from verniermq.plugins.pop.reader import TESTED_PER_POP
from verniermq.testing import ManualClock, running_broker

pytestmark = pytest.mark.anyio

LOG = "rmq_sys_REVIVE_LOG_DefaultCluster"


def in_flight(broker: Broker) -> int:
    return len(broker.host.active["pop"].instance._inflight)


def waiting(broker: Broker) -> int:
    return len(broker.host.active["pop"].instance._held)


async def until_waiting(broker: Broker, count: int) -> None:
    with anyio.fail_after(30):
        while waiting(broker) != count:  # noqa: ASYNC110 - a request on its way over a socket; nothing announces it
            await anyio.sleep(0.001)


async def send(it: Consumer, *bodies: bytes, queue_id: int = 0, **properties: str) -> None:
    for body in bodies:
        assert (await it.peer.send(it.topic, body, properties, queue_id=queue_id)).code == 0


# --- popping and acknowledging -------------------------------------------------------------


async def test_a_popped_message_is_invisible_and_an_acknowledged_one_is_done_with() -> None:
    clock = ManualClock()
    async with running_broker(clock=clock) as broker, consumer(broker.address, broker.name) as it:
        await send(it, b"a", b"b", queue_id=1)

        a, b = await it.pop()

        assert (a.body, b.body) == (b"a", b"b")
        assert await it.pop() == []
        assert (await it.ack(a)).code == 0
        assert (await it.ack(b)).code == 0
        assert in_flight(broker) == 0
        await clock.advance(3600)
        assert await it.pop() == []


async def test_the_answer_says_all_that_a_client_needs() -> None:
    clock = ManualClock()
    async with running_broker(clock=clock) as broker, consumer(broker.address, broker.name) as it:
        await send(it, b"a", b"b", b"c", queue_id=2)
        await it.pop(maxMsgNums=1)

        answer = await it.ask_pop(maxMsgNums=1, invisibleTime=5000)

        assert answer.ext["popTime"] == str(clock.now_ms())
        assert answer.ext["invisibleTime"] == "5000"
        assert 0 <= int(answer.ext["reviveQid"]) < 8
        assert answer.ext["restNum"] == "1"
        assert answer.ext["startOffsetInfo"] == "0 2 1"
        assert answer.ext["msgOffsetInfo"] == "0 2 1"


async def test_a_pop_gathers_from_all_queues() -> None:
    async with running_broker() as broker, consumer(broker.address, broker.name) as it:
        for queue_id in range(4):
            await send(it, str(queue_id).encode(), queue_id=queue_id)

        popped = await it.pop()

        assert sorted(one.body for one in popped) == [b"0", b"1", b"2", b"3"]
        for one in popped:
            assert (await it.ack(one)).code == 0
        assert in_flight(broker) == 0


async def test_one_queue_can_be_popped_alone() -> None:
    async with running_broker() as broker, consumer(broker.address, broker.name) as it:
        await send(it, b"other", queue_id=0)
        await send(it, b"wanted", queue_id=3)

        assert [one.body for one in await it.pop(queueId=3)] == [b"wanted"]


async def test_a_popped_message_that_is_sent_on_loses_its_handle() -> None:
    async with running_broker() as broker, consumer(broker.address, broker.name) as it:
        await it.peer.send(TOPIC, b"sent on", properties={"POP_CK": "0 1 2 3 1 other 0 0", "colour": "blue"})

        (popped,) = await it.pop()

        assert popped.message.properties["colour"] == "blue"
        assert "POP_CK" not in popped.message.properties
        assert (await it.ack(popped)).code == 0


async def test_two_consumers_share_a_queue_without_seeing_a_message_twice() -> None:
    async with (
        running_broker() as broker,
        consumer(broker.address, broker.name) as one,
        consumer(broker.address, broker.name) as two,
    ):
        await send(one, *[str(number).encode() for number in range(20)])

        seen = [popped.body for _ in range(5) for it in (one, two) for popped in await it.pop(maxMsgNums=2)]

        assert sorted(map(int, seen)) == list(range(20))


async def test_only_what_the_filter_wants_is_popped() -> None:
    clock = ManualClock()
    async with running_broker(clock=clock) as broker, consumer(broker.address, broker.name) as it:
        await send(it, b"red", TAGS="red")
        await send(it, b"blue", TAGS="blue")
        await send(it, b"red too", TAGS="red")

        popped = await it.pop(exp="red", expType="TAG")

        assert [one.body for one in popped] == [b"red", b"red too"]
        assert await it.pop(exp="red") == []
        await clock.advance(61)
        assert [one.body for one in await it.pop(exp="red")] == [b"red", b"red too"]
        sql = await it.ask_pop(exp="a >", expType="SQL92")
        assert sql.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"maxMsgNums": 33}, ResponseCode.INVALID_PARAMETER),
        ({"maxMsgNums": 0}, ResponseCode.INVALID_PARAMETER),
        ({"queueId": 4}, ResponseCode.INVALID_PARAMETER),
        ({"topic": "absent"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"invisibleTime": "soon"}, ResponseCode.INVALID_PARAMETER),
        ({"consumerGroup": "a b"}, ResponseCode.INVALID_PARAMETER),
    ],
)
async def test_a_wrong_pop_is_refused(changes: dict[str, Any], code: ResponseCode) -> None:
    async with running_broker() as broker, consumer(broker.address, broker.name) as it:
        await send(it, b"a")

        assert (await it.ask_pop(**changes)).code == code
        assert in_flight(broker) == 0


async def test_a_group_may_begin_at_the_end() -> None:
    async with running_broker() as broker, consumer(broker.address, broker.name) as it:
        await send(it, b"young")

        # A queue whose first message is still fresh is given from its beginning, as a pull would be.
        assert [one.body for one in await it.pop(initMode=1)] == [b"young"]


async def test_a_group_that_begins_at_the_end_keeps_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("verniermq.kernel.store.store.RECENT_BYTES", -1)  # nothing counts as fresh
    async with running_broker() as broker, consumer(broker.address, broker.name) as it:
        await send(it, b"old")

        before = await it.pop(initMode=1)
        await send(it, b"new")

        assert before == []
        assert [one.body for one in await it.pop(initMode=1)] == [b"new"]


async def test_a_batch_of_acknowledgements_is_bits() -> None:
    clock = ManualClock()
    async with running_broker(clock=clock) as broker, consumer(broker.address, broker.name) as it:
        await send(it, *[str(number).encode() for number in range(10)])
        answer = await it.ask_pop()
        assert base64.b64decode("BQI=") == b"\x05\x02"
        ack = {"b": "BQI=", "c": GROUP, "it": 60_000, "pt": int(answer.ext["popTime"]), "q": 0, "r": "0",
               "rq": int(answer.ext["reviveQid"]), "so": 0, "t": TOPIC}  # fmt: skip

        done = await it.peer.ask(RequestCode.BATCH_ACK_MESSAGE, {}, orjson.dumps({"acks": [ack], "brokerName": "x"}))

        assert done.code == 0, done.remark
        await clock.advance(61)
        assert [one.body for one in await it.pop()] == [b"1", b"3", b"4", b"5", b"6", b"7", b"8"]


@pytest.mark.parametrize(
    ("bits", "left"),
    [
        ([5, 2, 0, 0, 0, 0, 0, 0], [1, 3, 4, 5, 6, 7, 8]),  # 64 bits as a machine has them: Rust's client
        ([-128], [0, 1, 2, 3, 4, 5, 6, 8, 9]),
        ([], list(range(10))),
    ],
)
async def test_the_bits_of_a_batch_may_be_an_array_of_bytes(bits: list[int], left: list[int]) -> None:
    clock = ManualClock()
    async with running_broker(clock=clock) as broker, consumer(broker.address, broker.name) as it:
        await send(it, *[str(number).encode() for number in range(10)])
        answer = await it.ask_pop()
        ack = {"b": bits, "c": GROUP, "it": 60_000, "pt": int(answer.ext["popTime"]), "q": 0, "r": "0",
               "rq": int(answer.ext["reviveQid"]), "so": 0, "t": TOPIC}  # fmt: skip

        done = await it.peer.ask(RequestCode.BATCH_ACK_MESSAGE, {}, orjson.dumps({"acks": [ack]}))

        assert done.code == 0, done.remark
        await clock.advance(61)
        assert [int(one.body) for one in await it.pop()] == left


@pytest.mark.parametrize("bits", [[256], [-129], ["5"], [1.5, 2], {"5": 2}, 5])
async def test_bits_that_are_no_bytes_are_refused(bits: object) -> None:
    async with running_broker() as broker, consumer(broker.address, broker.name) as it:
        ack = {"b": bits, "c": GROUP, "it": 60_000, "pt": 1, "q": 0, "r": "0", "rq": 0, "so": 0, "t": TOPIC}

        refused = await it.peer.ask(RequestCode.BATCH_ACK_MESSAGE, {}, orjson.dumps({"acks": [ack]}))

        assert refused.code == ResponseCode.INVALID_PARAMETER


@pytest.mark.parametrize("body", [b"", b"{}", b'{"acks":[]}'])
async def test_an_empty_batch_of_acknowledgements_has_no_message(body: bytes) -> None:
    async with running_broker() as broker, consumer(broker.address, broker.name) as it:
        assert (await it.peer.ask(RequestCode.BATCH_ACK_MESSAGE, {}, body)).code == ResponseCode.NO_MESSAGE


async def test_a_wrong_acknowledgement_is_refused() -> None:
    async with running_broker() as broker, consumer(broker.address, broker.name) as it:
        await send(it, b"a")
        (a,) = await it.pop()

        async def ack(**changes: object) -> int:
            return (await it.peer.ask(RequestCode.ACK_MESSAGE, {**it.about(a), **changes})).code

        assert await ack(queueId=9) == ResponseCode.MESSAGE_ILLEGAL
        assert await ack(offset=7) == ResponseCode.NO_MESSAGE
        assert await ack(topic="absent") == ResponseCode.TOPIC_NOT_EXIST
        assert await ack(extraInfo="1 2 3") == ResponseCode.INVALID_PARAMETER
        assert in_flight(broker) == 1
        assert await ack() == 0
        assert await ack() == 0, "a second acknowledgement is late, not wrong"


# --- coming again --------------------------------------------------------------------------


async def test_a_message_that_nobody_acknowledged_comes_again_by_the_retry_topic() -> None:
    clock = ManualClock()
    async with running_broker(clock=clock) as broker, consumer(broker.address, broker.name) as it:
        await send(it, b"done", b"failed", queue_id=1, mine="yes")
        done, _ = await it.pop(invisibleTime=10_000)
        await it.ack(done)
        first_popped = clock.now_ms()
        await clock.advance(9.9)
        assert await it.pop() == []

        await clock.advance(0.2)
        (again,) = await it.pop(invisibleTime=10_000)

        assert again.body == b"failed"
        assert again.message.topic == TOPIC, "it looks like a message of the topic itself"
        assert again.topic == RETRY
        assert again.message.reconsume_times == 1
        assert again.message.properties["mine"] == "yes"
        assert again.message.properties["1ST_POP_TIME"] == str(first_popped)
        await clock.advance(10.1)
        (third,) = await it.pop()
        assert third.message.reconsume_times == 2
        assert third.message.properties["1ST_POP_TIME"] == str(first_popped)
        assert (await it.ack(third)).code == 0
        await clock.advance(3600)
        assert await it.pop() == []
        assert in_flight(broker) == 0


async def test_groups_do_not_see_each_others_retries() -> None:
    clock = ManualClock()
    async with (
        running_broker(clock=clock) as broker,
        consumer(broker.address, broker.name, "G") as one,
        consumer(broker.address, broker.name, "H") as two,
    ):
        await send(one, b"m")
        await one.pop(invisibleTime=1000)
        (seen,) = await two.pop(invisibleTime=100_000)
        await two.ack(seen)
        await clock.advance(2)

        assert await two.pop() == []
        assert [popped.body for popped in await one.pop()] == [b"m"]


async def test_the_invisible_time_can_be_made_longer_and_shorter() -> None:
    clock = ManualClock()
    async with running_broker(clock=clock) as broker, consumer(broker.address, broker.name) as it:
        await send(it, b"slow", b"quick")
        slow, quick = await it.pop(invisibleTime=10_000)
        await clock.advance(1)

        longer = await it.change(slow, 100_000)
        shorter = await it.change(quick, 1_000)

        assert longer.code == 0
        assert longer.ext["invisibleTime"] == "100000"
        assert longer.ext["popTime"] == str(clock.now_ms())
        assert shorter.code == 0
        await clock.advance(1.1)
        assert [one.body for one in await it.pop(invisibleTime=500_000)] == [b"quick"]
        await clock.advance(90)
        assert await it.pop() == []
        old = await it.change(slow, 1_000)
        assert old.code == ResponseCode.NO_MESSAGE, "the old handle is worth nothing any more"
        assert (await it.ack(it.renewed(slow, longer))).code == 0
        await clock.advance(100)
        assert await it.pop() == []


async def test_a_reset_of_the_group_is_followed() -> None:
    async with running_broker() as broker, consumer(broker.address, broker.name) as it:
        await send(it, b"a", b"b")
        for one in await it.pop():
            await it.ack(one)

        broker.offsets.reset(GROUP, TOPIC, 0, 0)

        assert [one.body for one in await it.pop()] == [b"a", b"b"]
        assert await it.pop() == []


# --- waiting -------------------------------------------------------------------------------


async def test_a_pop_waits_for_a_message() -> None:
    clock = ManualClock()
    async with (
        running_broker(clock=clock) as broker,
        consumer(broker.address, broker.name) as it,
        consumer(broker.address, broker.name) as other,
    ):
        await send(other, b"first")
        await other.pop()
        async with anyio.create_task_group() as tasks:

            async def wait() -> None:
                assert [one.body for one in await it.pop(pollTime=15_000)] == [b"late"]

            tasks.start_soon(wait)
            await until_waiting(broker, 1)
            info = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": -1}
            assert (await other.peer.ask(RequestCode.POLLING_INFO, info)).ext["pollingNum"] == "1"
            await send(other, b"late", queue_id=3)
        assert waiting(broker) == 0


async def test_one_message_wakes_one_of_many() -> None:
    clock = ManualClock()
    async with (
        running_broker(clock=clock) as broker,
        consumer(broker.address, broker.name) as one,
        consumer(broker.address, broker.name) as two,
        consumer(broker.address, broker.name) as sender,
    ):
        await send(sender, b"first")
        await sender.pop()
        got: list[bytes] = []

        async def wait(it: Consumer) -> None:
            got.extend([popped.body for popped in await it.pop(pollTime=15_000)])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait, one)
            tasks.start_soon(wait, two)
            await until_waiting(broker, 2)
            await send(sender, b"m")
            await until_waiting(broker, 1)
            await clock.advance(16)
        assert got == [b"m"]


async def test_a_revived_message_wakes_a_waiting_pop() -> None:
    clock = ManualClock()
    async with running_broker(clock=clock) as broker, consumer(broker.address, broker.name) as it:
        await send(it, b"m")
        await it.pop(invisibleTime=5_000)
        async with anyio.create_task_group() as tasks:

            async def wait() -> None:
                assert [one.body for one in await it.pop(pollTime=15_000)] == [b"m"]

            tasks.start_soon(wait)
            await until_waiting(broker, 1)
            await clock.advance(6)


async def test_when_the_time_is_over_the_answer_is_that_there_was_nothing() -> None:
    clock = ManualClock()
    async with running_broker(clock=clock) as broker, consumer(broker.address, broker.name) as it:
        await send(it, b"m")
        await it.pop(invisibleTime=500_000)
        async with anyio.create_task_group() as tasks:

            async def wait() -> None:
                answer = await it.ask_pop(pollTime=15_000)
                assert answer.code == ResponseCode.POLLING_TIMEOUT
                assert {"popTime", "invisibleTime", "reviveQid", "restNum"} <= answer.ext.keys()

            tasks.start_soon(wait)
            await until_waiting(broker, 1)
            await clock.advance(15)


async def test_too_many_waiting_pops_are_refused() -> None:
    async with (
        running_broker(plugins__pop__max_waiting=1) as broker,
        consumer(broker.address, broker.name) as one,
        consumer(broker.address, broker.name) as two,
    ):
        await send(one, b"m")
        await one.pop()
        async with anyio.create_task_group() as tasks:

            async def wait() -> None:
                await one.ask_pop(pollTime=60_000)

            tasks.start_soon(wait)
            await until_waiting(broker, 1)
            assert (await two.ask_pop(pollTime=15_000)).code == ResponseCode.POLLING_FULL
            tasks.cancel_scope.cancel()


async def test_who_is_gone_waits_no_longer() -> None:
    async with running_broker() as broker, consumer(broker.address, broker.name) as other:
        await send(other, b"m")
        await other.pop()
        async with consumer(broker.address, broker.name) as it, anyio.create_task_group() as tasks:
            tasks.start_soon(_ignore_loss, it)
            await until_waiting(broker, 1)
            it.peer.connection.close()
        await until_waiting(broker, 0)
        await send(other, b"for others")
        assert [one.body for one in await other.pop()] == [b"for others"]


async def _ignore_loss(it: Consumer) -> None:
    with pytest.raises(ConnectionLost):
        await it.ask_pop(pollTime=15_000)


async def test_a_notification_says_that_there_is_something_and_takes_nothing() -> None:
    clock = ManualClock()
    async with (
        running_broker(clock=clock) as broker,
        consumer(broker.address, broker.name) as it,
        consumer(broker.address, broker.name) as other,
    ):
        await send(other, b"m")
        await other.pop()
        fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": -1, "bornTime": 0}
        nothing = await it.peer.ask(RequestCode.NOTIFICATION, {**fields, "pollTime": 0})
        assert (nothing.code, nothing.ext["hasMsg"]) == (0, "false")
        async with anyio.create_task_group() as tasks:

            async def wait() -> None:
                answer = await it.peer.ask(RequestCode.NOTIFICATION, {**fields, "pollTime": 15_000})
                assert (answer.ext["hasMsg"], answer.ext["pollingFull"]) == ("true", "false")

            tasks.start_soon(wait)
            await until_waiting(broker, 1)
            await send(other, b"new")
        assert [one.body for one in await it.pop()] == [b"new"]


@pytest.mark.parametrize(("expression", "kind"), [("paid", "TAG"), ("price > 10", "SQL92")])
async def test_a_notification_tells_of_messages_that_its_filter_lets_pass(expression: str, kind: str) -> None:
    fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": -1, "bornTime": 0, "exp": expression, "expType": kind}
    async with (
        running_broker(clock=ManualClock()) as broker,
        consumer(broker.address, broker.name) as it,
        consumer(broker.address, broker.name) as other,
    ):
        await other.peer.send(TOPIC, b"first", {}, queue_id=0)
        await other.pop()
        await other.peer.send(TOPIC, b"other", {"TAGS": "new", "price": "5"}, queue_id=0)
        at_once = await it.peer.ask(RequestCode.NOTIFICATION, {**fields, "pollTime": 0})
        answers: list[Command] = []
        async with anyio.create_task_group() as tasks:

            async def wait() -> None:
                answers.append(await it.peer.ask(RequestCode.NOTIFICATION, {**fields, "pollTime": 15_000}))

            tasks.start_soon(wait)
            await until_waiting(broker, 1)
            await other.peer.send(TOPIC, b"another", {"TAGS": "new", "price": "6"}, queue_id=0)
            waiting_still = not answers
            await other.peer.send(TOPIC, b"wanted", {"TAGS": "paid", "price": "50"}, queue_id=0)

    assert at_once.ext["hasMsg"] == "false"
    assert waiting_still
    assert [answer.ext["hasMsg"] for answer in answers] == ["true"]


async def test_a_peek_takes_nothing() -> None:
    async with running_broker() as broker, consumer(broker.address, broker.name) as it:
        await send(it, b"m")
        fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": -1, "maxMsgNums": 8}

        for _ in range(2):
            answer = await it.peer.ask(RequestCode.PEEK_MESSAGE, fields)
            assert answer.code == 0
            assert b"m" in answer.body
        assert [one.body for one in await it.pop()] == [b"m"]


# --- restarts ------------------------------------------------------------------------------


async def test_after_a_restart_the_popped_comes_again_and_the_acknowledged_does_not(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running_broker(tmp_path, clock=clock) as broker, consumer(broker.address, broker.name) as it:
        await send(it, b"done", b"open", b"next")
        done, _ = await it.pop(maxMsgNums=2)
        await it.ack(done)
    async with running_broker(tmp_path, clock=clock) as broker, consumer(broker.address, broker.name) as it:
        assert in_flight(broker) == 1
        assert [one.body for one in await it.pop()] == [b"next"]

        await clock.advance(61)

        assert sorted(one.body for one in await it.pop()) == [b"next", b"open"]


async def test_a_handle_outlives_a_restart(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running_broker(tmp_path, clock=clock) as broker, consumer(broker.address, broker.name) as it:
        await send(it, b"m")
        (m,) = await it.pop()
    async with running_broker(tmp_path, clock=clock) as broker, consumer(broker.address, broker.name) as it:
        assert (await it.ack(m)).code == 0
        await clock.advance(61)
        assert await it.pop() == []


async def test_what_was_due_while_the_broker_was_down_comes_at_once(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running_broker(tmp_path, clock=clock) as broker, consumer(broker.address, broker.name) as it:
        await send(it, b"m")
        await it.pop(invisibleTime=10_000)
    await clock.advance(3600)
    async with running_broker(tmp_path, clock=clock) as broker, consumer(broker.address, broker.name) as it:
        await clock.advance(0.1)
        assert [one.body for one in await it.pop()] == [b"m"]


async def test_a_restart_reads_what_is_in_flight_and_not_what_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inflight, "REWRITE_AFTER", 50)
    clock = ManualClock()
    async with running_broker(tmp_path, clock=clock) as broker, consumer(broker.address, broker.name) as it:
        await send(it, b"long a", b"long b")
        long_a, _ = await it.pop(invisibleTime=3_600_000)
        await it.ack(long_a)
        for number in range(600):
            await send(it, str(number).encode())
            (one,) = await it.pop()
            await it.ack(one)
        await clock.advance(10)
        in_log = sum(broker.store.max_offset(LOG, queue) for queue in range(8))
        assert in_log >= 1202
    async with running_broker(tmp_path, clock=clock) as broker, consumer(broker.address, broker.name) as it:
        unread = sum(
            broker.store.max_offset(LOG, queue) - (broker.offsets.committed(inflight.GROUP, LOG, queue) or 0) - 1
            for queue in range(8)
        )
        assert unread <= 52
        assert in_flight(broker) == 1
        await clock.advance(3600)
        assert [one.body for one in await it.pop()] == [b"long b"]


async def test_offsets_lost_in_a_crash_are_found_in_the_revive_log(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running_broker(tmp_path, clock=clock) as broker, consumer(broker.address, broker.name) as it:
        await send(it, b"done", b"open")
        done, _ = await it.pop()
        await it.ack(done)
    for file in (tmp_path / "config").glob("consumerOffset.json*"):
        file.unlink()
    async with running_broker(tmp_path, clock=clock) as broker, consumer(broker.address, broker.name) as it:
        assert await it.pop() == []
        await clock.advance(61)
        assert [one.body for one in await it.pop()] == [b"open"]


# --- in order ------------------------------------------------------------------------------


async def test_an_ordered_queue_gives_nothing_more_until_all_is_acknowledged() -> None:
    clock = ManualClock()
    async with running_broker(clock=clock) as broker, consumer(broker.address, broker.name) as it:
        await send(it, b"1", b"2", b"3")
        first, second = await it.pop(order="true", maxMsgNums=2, queueId=0)
        assert first.handle.split(" ")[3] == "999"
        assert await it.pop(order="true", queueId=0) == []

        assert (await it.ack(second)).code == 0
        assert await it.pop(order="true", queueId=0) == []
        assert (await it.ack(first)).code == 0

        assert [one.body for one in await it.pop(order="true", queueId=0)] == [b"3"]
        assert in_flight(broker) == 0, "order needs no checkpoints"


async def test_an_ordered_pop_comes_again_in_order_with_its_count() -> None:
    clock = ManualClock()
    async with running_broker(clock=clock) as broker, consumer(broker.address, broker.name) as it:
        await send(it, b"1", b"2")
        first, _ = await it.pop(order="true", invisibleTime=10_000, queueId=0)
        await it.ack(first)
        await clock.advance(10)

        answer = await it.ask_pop(order="true", queueId=0)

        assert answer.ext["msgOffsetInfo"] == "0 0 1"
        assert answer.ext["orderCountInfo"] == "0 0 1;0 qo0%1 1"


async def test_the_same_attempt_gets_the_same_messages() -> None:
    async with running_broker() as broker, consumer(broker.address, broker.name) as it:
        await send(it, b"1", b"2")
        await it.pop(order="true", attemptId="x", maxMsgNums=1, queueId=0)

        again = await it.pop(order="true", attemptId="x", maxMsgNums=1, queueId=0)

        assert [one.body for one in again] == [b"1"]


async def test_a_lost_answer_to_an_ordered_pop_uses_up_no_retry() -> None:
    clock = ManualClock()
    async with running_broker(clock=clock) as broker, consumer(broker.address, broker.name) as it:
        await send(it, b"1")
        ordered = {"order": "true", "queueId": 0, "invisibleTime": 10_000}
        first = await it.ask_pop(**ordered, attemptId="x")
        repeated = await it.ask_pop(**ordered, attemptId="x")
        await clock.advance(11)
        second = await it.ask_pop(**ordered, attemptId="y")
        repeated_second = await it.ask_pop(**ordered, attemptId="y")

        counts = [answer.ext["orderCountInfo"] for answer in (first, repeated, second, repeated_second)]
        assert counts == ["0 0 0;0 qo0%0 0", "0 0 0;0 qo0%0 0", "0 0 1;0 qo0%0 1", "0 0 1;0 qo0%0 1"]


async def test_an_acknowledged_message_that_comes_again_with_its_batch_counts_too() -> None:
    clock = ManualClock()
    async with running_broker(clock=clock) as broker, consumer(broker.address, broker.name) as it:
        await send(it, b"1", b"2", b"3")
        _, second, _ = await it.pop(order="true", invisibleTime=10_000, queueId=0)
        await it.ack(second)
        await clock.advance(11)

        answer = await it.ask_pop(order="true", queueId=0)

        assert answer.ext["orderCountInfo"] == "0 0 1;0 qo0%0 1;0 qo0%1 1;0 qo0%2 1"


async def test_what_is_popped_and_not_acknowledged_is_listed() -> None:
    clock = ManualClock()
    async with running_broker(clock=clock) as broker, consumer(broker.address, broker.name) as it:
        await send(it, b"1", b"2", b"3")
        await send(it, b"4", queue_id=1)
        one, two, three = await it.pop(queueId=0, invisibleTime=30_000)
        await it.ack(two)
        (four,) = await it.pop(queueId=1, order="true", attemptId="x", invisibleTime=5_000)

        async def listed() -> list[tuple[int, int, int, bool]]:
            answer = await it.peer.ask(RequestCode.POP_ROLLBACK)
            records = orjson.loads(answer.body)["records"]
            assert all((record["groupId"], record["topicId"]) == (GROUP, TOPIC) for record in records)
            return [(one["queueId"], one["offset"], one["invisibleTime"], one["fifo"]) for one in records]

        assert await listed() == [(0, 0, 30_000, False), (0, 2, 30_000, False), (1, 0, 5_000, True)]
        for popped in (one, three, four):
            await it.ack(popped)
        assert await listed() == []


async def test_an_ordered_pop_waits_until_the_queue_opens_by_itself() -> None:
    clock = ManualClock()
    async with running_broker(clock=clock) as broker, consumer(broker.address, broker.name) as it:
        await send(it, b"1")
        (one,) = await it.pop(order="true", invisibleTime=60_000, queueId=0)
        changed = await it.change(one, 5_000)
        assert changed.code == 0
        assert (changed.ext["invisibleTime"], changed.ext["reviveQid"]) == ("5000", "999")
        async with anyio.create_task_group() as tasks:

            async def wait() -> None:
                assert [popped.body for popped in await it.pop(order="true", pollTime=15_000, queueId=0)] == [b"1"]

            tasks.start_soon(wait)
            await until_waiting(broker, 1)
            await clock.advance(6)


async def test_an_ordered_pop_outlives_its_topic(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    async with running_broker(clock=clock) as broker, consumer(broker.address, broker.name) as it:
        await send(it, b"1")
        await it.pop(order="true", invisibleTime=5_000, queueId=0)
        async with anyio.create_task_group() as tasks:

            async def wait() -> None:
                assert await it.pop(order="true", pollTime=15_000, queueId=0) == []

            tasks.start_soon(wait)
            await until_waiting(broker, 1)
            deleted = await it.peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": it.topic})
            assert deleted.code == ResponseCode.SUCCESS
            await clock.advance(30)
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_the_order_is_kept_over_a_restart(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running_broker(tmp_path, clock=clock) as broker, consumer(broker.address, broker.name) as it:
        await send(it, b"1", b"2", b"3")
        first, _ = await it.pop(order="true", maxMsgNums=2, queueId=0)
        await it.ack(first)
    async with running_broker(tmp_path, clock=clock) as broker, consumer(broker.address, broker.name) as it:
        assert await it.pop(order="true", queueId=0) == []
        await clock.advance(60)
        assert [one.body for one in await it.pop(order="true", queueId=0)] == [b"2", b"3"]


# --- without the plugin --------------------------------------------------------------------


async def test_without_the_plugin_its_requests_are_refused_by_its_name() -> None:
    async with running_broker(plugins__enable=[]) as broker, peer(broker.address) as it:
        for code in (RequestCode.POP_MESSAGE, RequestCode.ACK_MESSAGE, RequestCode.QUERY_ASSIGNMENT):
            assert f"{code.name} ({code.value}) needs the plugin 'pop'" in (await it.ask(code)).remark


async def test_checkpoints_that_somebody_else_wrote_are_found(tmp_path: Path) -> None:
    """An Apache broker's timer delivers its checkpoints late, maybe when this broker has taken over its store."""
    clock = ManualClock()
    async with running_broker(tmp_path, clock=clock) as broker, consumer(broker.address, broker.name) as it:
        await send(it, b"a", b"b")
        broker.offsets.commit(GROUP, TOPIC, 0, 2)
        started = clock.now_ms()
        theirs = {"so": 0, "pt": started, "it": 20_000, "bm": 0, "n": 2, "q": 0, "t": TOPIC, "c": GROUP, "ro": 0,
                  "d": [0, 1], "bn": "other"}  # fmt: skip
        ack = {"ao": 0, "so": 0, "c": GROUP, "t": TOPIC, "q": 0, "pt": started, "bn": "other"}
        for tag, data in (("ck", theirs), ("ack", ack), ("ck", {"so": "nonsense"})):
            broker.store.append(PendingMessage(LOG, 3, orjson.dumps(data), {"TAGS": tag}))

        await clock.advance(21)

        assert [one.body for one in await it.pop()] == [b"b"]


@pytest.mark.parametrize("milliseconds", [-1, 2**63 - 1])
async def test_a_time_that_the_tables_cannot_hold_is_refused(milliseconds: int) -> None:
    async with running_broker() as broker, consumer(broker.address, broker.name) as it:
        await send(it, b"a")
        (popped,) = await it.pop()
        answers = [await it.ask_pop(invisibleTime=milliseconds), await it.change(popped, milliseconds)]

    for answer in answers:
        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert f"field 'invisibleTime' is {milliseconds}, expected 0 to " in answer.remark


@pytest.mark.parametrize(
    "more", [{"n": 1_000_000}, {"d": [0] * 33}, {"so": 1e308}, {"pt": "soon"}, {"d": [1e308]}, {"c": ["g"]}]
)
def test_a_checkpoint_that_no_pop_can_have_made_is_refused(more: dict[str, Any]) -> None:
    """Anybody can write into the revive log; a list of as many messages as it says would fill the memory."""
    data = {"so": 0, "pt": 1, "it": 20_000, "bm": 0, "n": 2, "q": 0, "t": TOPIC, "c": GROUP, "d": [], **more}

    with pytest.raises((ValueError, TypeError)):
        CheckPoint.decode(orjson.dumps(data))


# --- much at once --------------------------------------------------------------------------


def acknowledgement(start: int, bits: bytes) -> dict[str, object]:
    encoded = base64.b64encode(bits).decode()
    return {"b": encoded, "c": GROUP, "it": 60_000, "pt": 1, "q": 0, "r": "0", "rq": 1, "so": start, "t": TOPIC}


async def test_more_acknowledgements_than_a_pop_has_messages_are_refused() -> None:
    async with running_broker() as broker, consumer(broker.address, broker.name) as it:
        body = orjson.dumps({"acks": [acknowledgement(0, b"\xff" * 5)]})

        answer = await it.peer.ask(RequestCode.BATCH_ACK_MESSAGE, {}, body)

        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert "40 messages at once, but one pop has at most 32" in answer.remark


async def test_a_large_batch_of_acknowledgements_lets_others_have_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = WorkPerTurn().watch(monkeypatch, inflight.InFlight, "find")
    async with running_broker() as broker, consumer(broker.address, broker.name) as it:
        body = orjson.dumps({"acks": [acknowledgement(start, b"\xff") for start in range(1000)]})

        assert (await it.peer.ask(RequestCode.BATCH_ACK_MESSAGE, {}, body)).code == 0

    assert looks.total == 1000
    assert looks.most <= ACKS_PER_STEP


async def test_a_message_for_many_groups_that_wait_lets_others_have_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = WorkPerTurn().watch(monkeypatch, HeldPops, "_attempt")
    async with (
        running_broker() as broker,
        consumer(broker.address, broker.name) as it,
        anyio.create_task_group() as tasks,
    ):
        await send(it, b"first")
        for number in range(100):
            other = attrs.evolve(it, group=f"group-{number}")
            await other.pop()
            tasks.start_soon(partial(other.ask_pop, pollTime=30_000))
        await until_waiting(broker, 100)
        await send(it, b"second")
        await until_waiting(broker, 0)

    assert attempts.total == 100
    assert attempts.most <= ATTEMPTS_PER_STEP


async def test_large_messages_that_wake_many_pops_let_others_have_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts, body = WorkPerTurn().watch(monkeypatch, HeldPops, "_attempt"), bytes(1 << 20)
    async with (
        running_broker() as broker,
        consumer(broker.address, broker.name) as it,
        anyio.create_task_group() as tasks,
    ):
        await send(it, b"first")
        for number in range(20):
            other = attrs.evolve(it, group=f"group-{number}")
            await other.pop()
            tasks.start_soon(partial(other.ask_pop, pollTime=30_000))
        await until_waiting(broker, 20)
        await send(it, body)
        await until_waiting(broker, 0)

    assert attempts.total == 20
    assert attempts.most * len(body) <= ATTEMPTS_PER_STEP * BYTES_PER_ATTEMPT + len(body)


async def test_a_connection_lets_so_many_pops_wait() -> None:
    settings = {"plugins__pop__max_waiting_per_connection": 1}
    async with (
        running_broker(clock=ManualClock(), **settings) as broker,
        consumer(broker.address, broker.name) as it,
        anyio.create_task_group() as tasks,
    ):
        await send(it, b"first")
        await it.pop()
        tasks.start_soon(partial(it.ask_pop, pollTime=30_000))
        await until_waiting(broker, 1)

        assert (await it.ask_pop(pollTime=30_000)).code == ResponseCode.POLLING_FULL
        tasks.cancel_scope.cancel()


async def test_many_checkpoints_that_stay_open_are_not_written_anew_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inflight, "REWRITE_AFTER", 8)
    written = WorkPerTurn().watch(monkeypatch, inflight.InFlight, "_append")
    clock = ManualClock()
    async with running_broker(clock=clock) as broker, consumer(broker.address, broker.name) as it:
        for number in range(200):
            await send(it, str(number).encode())
            await it.pop(maxMsgNums=1, invisibleTime=3_600_000)
        assert in_flight(broker) == 200
        for _ in range(20):
            await clock.advance(5)

    assert written.total < 400


async def test_a_pop_has_its_filter_test_so_many_messages_and_is_answered_at_once() -> None:
    async with running_broker(clock=ManualClock()) as broker, consumer(broker.address, broker.name) as it:
        await send(it, b"first")
        await it.pop()
        for queue in range(3):
            messages = [PendingMessage(TOPIC, queue, b"cheap", {"price": "5"}) for _ in range(300)]
            broker.store.append_batch(messages)
        broker.store.append(PendingMessage(TOPIC, 2, b"dear", {"price": "50"}))
        broker.store.dispatch()

        found: list[bytes] = []
        pops = 0
        while not found:
            pops += 1
            found = [one.body for one in await it.pop(exp="price > 10", expType="SQL92", pollTime=30_000)]

    assert found == [b"dear"]
    assert pops > 300 // TESTED_PER_POP, "whichever queue came first"


# --- messages that are on the disk only ----------------------------------------------------


async def test_a_pop_reads_nothing_on_the_loop_that_is_on_the_disk_only(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    async with running_broker(clock=clock) as broker, consumer(broker.address, broker.name) as it:
        await send(it, b"a", b"b", queue_id=1)
        await send(it, b"c", queue_id=2)
        broker.store._dispatcher.write_now()
        disk = Disk(broker.store, monkeypatch)

        peeked = await it.peer.ask(
            RequestCode.PEEK_MESSAGE, {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 1, "maxMsgNums": 8}
        )
        assert (peeked.code, bool(disk.fetched)) == (0, True)
        disk.fetched.clear()
        popped = [one for _ in range(2) for one in await it.pop()]
        assert sorted(one.body for one in popped) == [b"a", b"b", b"c"]

        # They come again after a while, and the system has dropped their pages meanwhile.
        disk.fetched.clear()
        await clock.advance(61)
        with anyio.fail_after(30):
            while in_flight(broker):  # noqa: ASYNC110 - nothing announces it
                await anyio.sleep(0.01)
        assert disk.fetched
        monkeypatch.undo()
        again = [one.body for _ in range(2) for one in await it.pop()]
        assert sorted(again) == [b"a", b"b", b"c"]
