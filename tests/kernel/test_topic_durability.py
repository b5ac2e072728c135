"""What an acknowledged message needs is as durable as the message: its topic, with all its queues."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Awaitable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import attrs
import orjson
import pytest

from tests.killed import copy_as_killed
from tests.plugins.peer import Peer, peer, served
from verniermq.kernel import (
    Broker,
    Command,
    PendingMessage,
    RequestCode,
    ResponseCode,
    SysFlag,
    TopicConfig,
    format_properties,
)
from verniermq.kernel.errors import RemotingError
from verniermq.kernel.handlers.acknowledgements import MOST_UNCONFIRMED
from verniermq.kernel.tables.unsaved import MOST_BYTES, MOST_WAITING
from verniermq.testing import BrokerProcess, ManualClock, broker_process, running_broker

pytestmark = pytest.mark.anyio

KINDS: dict[str, dict[str, object]] = {
    "plain": {},
    "delayed": {"DELAY": 1},
    "timed": {"TIMER_DELAY_MS": 1500},
    "half": {"TRAN_MSG": "true", "PGROUP": "producers", "flags": SysFlag.TRANSACTION_PREPARED},
}
"""What a first message may be: only the first is in a queue of its own topic at once."""


@attrs.define(eq=False)
class SlowDisk:
    """Holds every sync of topics.json until it is released."""

    reached: threading.Event = attrs.field(factory=threading.Event)
    released: threading.Event = attrs.field(factory=threading.Event)
    syncs: int = 0

    @contextmanager
    def holding(self, patch: pytest.MonkeyPatch) -> Iterator[SlowDisk]:
        real = os.fsync

        def fsync(descriptor: int) -> None:
            if os.readlink(f"/proc/self/fd/{descriptor}").endswith("topics.json.tmp"):
                self.syncs += 1
                self.reached.set()
                self.released.wait(30)
            real(descriptor)

        with patch.context() as changed:
            changed.setattr(os, "fsync", fsync)
            try:
                yield self
            finally:
                self.released.set()

    async def is_syncing(self) -> None:
        assert await anyio.to_thread.run_sync(self.reached.wait, 30)


async def queues_of(client: Peer, topic: str) -> int:
    answer = await client.ask(RequestCode.GET_TOPIC_CONFIG, topic=topic)
    return 0 if answer.code != ResponseCode.SUCCESS else int(orjson.loads(answer.body)["readQueueNums"])


@pytest.mark.parametrize("kind", KINDS)
async def test_the_first_message_of_a_topic_is_acknowledged_when_the_topic_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    disk = SlowDisk()
    answers: list[Command] = []
    async with served(tmp_path / "store") as (broker, client):
        await client.sent("known", b"first")

        async def send() -> None:
            answers.append(await client.send("orders", queue=3, **KINDS[kind]))  # type: ignore[arg-type]

        async with anyio.create_task_group() as tasks:
            with disk.holding(monkeypatch):
                tasks.start_soon(send)
                await disk.is_syncing()
                await client.sent("known", b"another")  # its answer would have come after that of the first
                held = list(answers)
                copy_as_killed(tmp_path / "store", tmp_path / "held")
        answer = answers[0]
        copy_as_killed(tmp_path / "store", tmp_path / "killed")

    async with running_broker(tmp_path / "killed") as broker:
        after = broker.topics.find("orders")
    async with running_broker(tmp_path / "held") as broker:
        never_acknowledged = broker.topics.find("orders")
    assert held == []
    assert answer.code == ResponseCode.SUCCESS
    assert after is not None
    assert after.queues == 4
    assert never_acknowledged is None, "the message was stored before its topic"


async def test_messages_that_waited_for_their_topic_keep_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SlowDisk()

    def send(client: Peer, number: int) -> None:
        fields = {"a": "p", "b": "orders", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0, "i": ""}
        ext = {name: str(value) for name, value in fields.items()}
        client.connection.oneway(Command.request(RequestCode.SEND_MESSAGE_V2, ext, b"%d" % number))

    async with served(tmp_path) as (_, client):
        with disk.holding(monkeypatch):
            for number in range(50):
                send(client, number)
            await disk.is_syncing()
            disk.released.set()
            for number in range(50, 500):
                send(client, number)
                if number % 10 == 0:
                    await anyio.lowlevel.checkpoint()
        await client.arrived("orders", 500)

        assert [int(body) for body in await client.bodies("orders")] == list(range(500))


async def test_messages_that_come_just_as_their_topic_is_saved_do_not_overtake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SlowDisk()
    async with running_broker(tmp_path) as broker, anyio.create_task_group() as tasks:
        order: list[int] = []

        def line_up() -> Awaitable[None] | None:
            return broker.before_append(PendingMessage("orders", 0, b"", {}), None)

        async def go(number: int, waiting: Awaitable[None] | None) -> None:
            if waiting is not None:
                await waiting
            order.append(number)

        async def wait_for_topic(number: int) -> None:
            await go(number, line_up())

        real = broker.topics_document._end_attempt

        def end_attempt(error: Exception | None) -> None:
            """The disk has it, and those who wait do not know yet: tasks begin before and after they go on."""
            monkeypatch.setattr(broker.topics_document, "_end_attempt", real)
            for number in range(3, 6):
                tasks.start_soon(wait_for_topic, number)
            real(error)
            for number in range(6, 9):
                tasks.start_soon(go, number, line_up())

        with disk.holding(monkeypatch):
            broker.topics.put(TopicConfig("orders", 4, 4))
            for number in range(3):
                tasks.start_soon(wait_for_topic, number)
            await disk.is_syncing()
            monkeypatch.setattr(broker.topics_document, "_end_attempt", end_attempt)
            disk.released.set()
            while len(order) < 9:  # noqa: ASYNC110 - a file tells
                await anyio.sleep(0.001)

    assert sorted(order) == list(range(9))
    for began_together in ((0, 1, 2, 6, 7, 8), (3, 4, 5)):  # who lines up in a task comes when the task does
        assert [number for number in order if number in began_together] == list(began_together)


async def test_many_new_topics_are_saved_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SlowDisk()
    async with served(tmp_path) as (broker, client):
        with disk.holding(monkeypatch):
            async with anyio.create_task_group() as tasks:
                for number in range(300):
                    tasks.start_soon(client.sent, f"topic-{number}")
                await disk.is_syncing()
                while len(broker.topics) < 300:  # noqa: ASYNC110 - the socket tells
                    await anyio.sleep(0.001)
                disk.released.set()

    assert disk.syncs <= 3  # the one that was held, and one for all the others; another if a chunk came late


async def test_a_batch_waits_for_its_topic_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SlowDisk()
    properties = format_properties({"KEYS": "k"}).encode()
    size = 22 + 4 + len(properties)
    one = size.to_bytes(4) + bytes(12) + (4).to_bytes(4) + b"body" + len(properties).to_bytes(2) + properties
    answers: list[Command] = []
    async with served(tmp_path) as (broker, client):
        await client.sent("known", b"first")

        async def send() -> None:
            answers.append(
                await client.ask(
                    RequestCode.SEND_BATCH_MESSAGE, one * 3,
                    a="p", b="orders", c="TBW102", d=4, e=0, f=0, g=1, h=0, i="", m="true",
                )
            )  # fmt: skip

        async with anyio.create_task_group() as tasks:
            with disk.holding(monkeypatch):
                tasks.start_soon(send)
                await disk.is_syncing()
                await client.sent("known", b"another")
                held = list(answers)
                stored = broker.store.max_offset("orders", 0)

        assert (held, stored) == ([], 0)
        assert answers[0].code == ResponseCode.SUCCESS
        assert len(await client.bodies("orders")) == 3


# --- killed -------------------------------------------------------------------------------


async def first_sends(process: BrokerProcess, names: list[str], kind: str) -> list[str]:
    """Send to new topics, all at once, to a broker that dies with the first acknowledgement; return which were."""
    acknowledged: list[str] = []

    async def send(client: Peer, name: str) -> None:
        answer = await client.send(name, name.encode(), queue=3, **KINDS[kind])  # type: ignore[arg-type]
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        if not acknowledged:
            process.kill()
        acknowledged.append(name)

    try:
        async with peer(process.broker) as client, anyio.create_task_group() as tasks:
            for name in names:
                tasks.start_soon(send, client, name)
    except* RemotingError:
        pass
    return acknowledged


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_topic_has_all_its_queues_after_a_kill_right_behind_its_first_acknowledgement(
    tmp_path: Path, kind: str
) -> None:
    with broker_process(tmp_path / "store") as process:
        for life in range(3):
            names = [f"topic-{life}-{number}" for number in range(5)]
            acknowledged = await first_sends(process, names, kind)
            process.start()
            async with peer(process.broker) as client:
                queues = {name: await queues_of(client, name) for name in acknowledged}
                if kind != "half":
                    if kind != "plain":
                        process.advance(5)
                    for name in acknowledged:
                        assert await client.arrived(name, 1, queue=3) == {name.encode()}

            assert acknowledged
            assert queues == dict.fromkeys(acknowledged, 4)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_lost_table_is_found_again_from_what_waits(tmp_path: Path, kind: str) -> None:
    with broker_process(tmp_path / "store") as process:
        async with peer(process.broker) as client:
            await client.sent("orders", queue=3, **KINDS[kind])
        process.kill()
        for path in (tmp_path / "store" / "config").glob("topics.json*"):
            path.unlink()
        process.start()
        async with peer(process.broker) as client:
            assert await queues_of(client, "orders") == 8


# --- deleted ------------------------------------------------------------------------------


async def test_a_deleted_topic_does_not_come_back_with_a_kill(tmp_path: Path) -> None:
    with broker_process(tmp_path / "store") as process:
        async with peer(process.broker) as client:
            await client.sent("orders", queue=2)
            await client.sent("orders", queue=3, DELAY=1)
            await client.ask_well(RequestCode.DELETE_TOPIC_IN_BROKER, topic="orders")
            await client.sent("others", queue=2)
        process.kill()
        process.start()
        async with peer(process.broker) as client:
            process.advance(5)
            await client.sent("others", b"later", queue=2, DELAY=1)
            process.advance(5)
            await client.arrived("others", 2, queue=2)

            assert await queues_of(client, "orders") == 0
            assert await queues_of(client, "others") == 4
    assert not (tmp_path / "store" / "consumequeue" / "orders").exists()


async def test_a_deleted_topic_does_not_come_back_when_all_of_the_log_is_read_again(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, client):
        await client.sent("orders")
        await client.sent("again", b"old")
        for topic in ("orders", "again"):
            await client.ask_well(RequestCode.DELETE_TOPIC_IN_BROKER, topic=topic)
        await client.sent("again", b"new")
    shutil.rmtree(tmp_path / "consumequeue")

    async with served(tmp_path) as (broker, client):
        assert "orders" not in broker.topics
        assert await client.bodies("again") == [b"new"]
    assert not (tmp_path / "consumequeue" / "orders").exists()


# --- fewer queues than when it was sent ---------------------------------------------------


@pytest.mark.parametrize("properties", [{"DELAY": 1}, {"TIMER_DELAY_MS": 1500}])
async def test_what_comes_to_a_topic_that_shrank_can_be_read(tmp_path: Path, properties: dict[str, object]) -> None:
    clock = ManualClock()
    async with served(tmp_path, clock) as (_, client):
        await client.sent("orders", b"later", queue=3, **properties)
        await client.ask_well(
            RequestCode.UPDATE_AND_CREATE_TOPIC, topic="orders", readQueueNums=2, writeQueueNums=2, perm=6,
            topicFilterType="SINGLE_TAG", order="false", defaultTopic="TBW102",
        )  # fmt: skip

        await clock.advance(5)

        assert await client.bodies("orders", 1) == [b"later"]


async def test_a_commit_to_a_topic_that_shrank_can_be_read(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, client):
        half = await client.sent("orders", b"paid", queue=3, **KINDS["half"])
        await client.ask_well(
            RequestCode.UPDATE_AND_CREATE_TOPIC, topic="orders", readQueueNums=2, writeQueueNums=2, perm=6,
            topicFilterType="SINGLE_TAG", order="false", defaultTopic="TBW102",
        )  # fmt: skip

        await client.ask_well(
            RequestCode.END_TRANSACTION, producerGroup="producers", tranStateTableOffset=half["queueOffset"],
            commitLogOffset=int(half["msgId"][-16:], 16), commitOrRollback=SysFlag.TRANSACTION_COMMIT, msgId="x",
        )  # fmt: skip

        assert await client.bodies("orders", 1) == [b"paid"]


# --- very many wait -----------------------------------------------------------------------

FLOODS, SENDS = 8, 1_500


def sends_to(topic: str, bodies: list[bytes]) -> bytes:
    frames = []
    for number, body in enumerate(bodies):
        fields = {"a": "p", "b": topic, "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0, "i": ""}
        ext = {name: str(value) for name, value in fields.items()}
        command = Command.request(RequestCode.SEND_MESSAGE_V2, ext, body)
        command.opaque = number
        frames.append(command.encode())
    return b"".join(frames)


def under_way(broker: Broker) -> int:
    """Requests that are objects with a task each."""
    return sum(len(connection.tasks) for connection in broker.server.connections)


async def test_a_flood_to_a_new_topic_waits_as_bytes_and_keeps_its_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SlowDisk()
    sent = [[b"%d-%d" % (flood, number) for number in range(SENDS)] for flood in range(FLOODS)]
    async with served(tmp_path) as (broker, client):
        await client.sent("known", b"first")
        async with AsyncExitStack() as stack:
            floods = [await stack.enter_async_context(peer(broker.address, f"f{n}")) for n in range(FLOODS)]
            with disk.holding(monkeypatch):
                for flood, bodies in zip(floods, sent, strict=True):
                    flood.connection.send(sends_to("orders", bodies))
                await disk.is_syncing()
                for _ in range(20):
                    await client.sent("known", b"between")  # others are served meanwhile
                waiting = under_way(broker)
                disk.released.set()
            await client.arrived("orders", FLOODS * SENDS)

            found = await client.bodies("orders")
    assert MOST_WAITING <= waiting <= MOST_WAITING + FLOODS
    assert [[body for body in found if body.startswith(b"%d-" % flood)] for flood in range(FLOODS)] == sent


async def test_large_messages_to_a_new_topic_wait_in_little_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SlowDisk()
    body = bytes(1 << 20)
    async with served(tmp_path) as (broker, client):
        await client.sent("known", b"first")
        async with peer(broker.address, "flood") as flood:
            with disk.holding(monkeypatch):
                flood.connection.send(sends_to("orders", [body] * 40))
                await disk.is_syncing()
                while under_way(broker) < MOST_BYTES // len(body):  # noqa: ASYNC110 - the socket tells
                    await anyio.sleep(0.001)
                for _ in range(50):
                    await client.sent("known", b"between")
                waiting = under_way(broker)
                disk.released.set()
            while broker.store.max_offset("orders", 0) < 40:  # noqa: ASYNC110 - the store tells
                await anyio.sleep(0.001)
    assert waiting == MOST_BYTES // len(body) + 1


async def test_a_topic_that_the_disk_refuses_is_refused_at_once_until_it_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = 0

    def refuse(descriptor: int) -> None:
        nonlocal attempts
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith("topics.json.tmp"):
            attempts += 1
            raise OSError(28, "No space left on device")

    async with served(tmp_path) as (_, client):
        await client.sent("known", b"first")
        with monkeypatch.context() as changed:
            changed.setattr(os, "fsync", refuse)
            refused = [await client.send("orders", b"%d" % number) for number in range(500)]
            tried = attempts
        with anyio.fail_after(60):
            while (await client.send("orders", b"later")).code != ResponseCode.SUCCESS:  # noqa: ASYNC110 - the disk tells
                await anyio.sleep(0.05)

        assert {answer.code for answer in refused} == {ResponseCode.SYSTEM_ERROR}
        assert {"topics.json cannot be written: No space left" in answer.remark for answer in refused} == {True}
        assert tried < 20  # one for each second, however many ask
        assert await client.bodies("orders") == [b"later"]


async def test_a_flood_that_waits_for_the_disk_waits_as_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reached, released, real = threading.Event(), threading.Event(), os.fdatasync

    def fdatasync(descriptor: int) -> None:
        reached.set()
        released.wait(120)
        real(descriptor)

    async with served(tmp_path, store__flush="sync", store__flush_timeout=120) as (broker, client):
        await client.sent("orders", b"first")
        async with AsyncExitStack() as stack:
            floods = [await stack.enter_async_context(peer(broker.address, f"f{n}")) for n in range(FLOODS)]
            monkeypatch.setattr(os, "fdatasync", fdatasync)
            for flood in floods:
                flood.connection.send(sends_to("orders", [b"%d" % number for number in range(SENDS)]))
            assert await anyio.to_thread.run_sync(reached.wait, 30)
            while broker.acknowledgements.unconfirmed < MOST_UNCONFIRMED:  # noqa: ASYNC110 - the socket tells
                await anyio.sleep(0.001)
            for _ in range(20):
                await client.ask_well(RequestCode.GET_MAX_OFFSET, topic="orders", queueId=0)
            waiting = broker.acknowledgements.unconfirmed
            released.set()
            with anyio.fail_after(60):
                while broker.store.max_offset("orders", 0) < 1 + FLOODS * SENDS:  # noqa: ASYNC110 - the store tells
                    await anyio.sleep(0.01)
    assert waiting <= MOST_UNCONFIRMED + FLOODS
