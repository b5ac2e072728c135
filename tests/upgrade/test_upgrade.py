"""From one version to the next: the store of 0.1 is read whole, a newer one is refused, and other brokers serve."""

from __future__ import annotations

import sys
import tarfile
import tomllib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import anyio
import anyio.to_thread
import attrs
import orjson
import pytest
from click.testing import CliRunner

from tests.plugins.peer import served
from tests.plugins.pop.popper import consumer
from tests.plugins.txn import peers
from tests.upgrade.make_store import SETTINGS, START, make
from verniermq.cli import main
from verniermq.client import Admin, Message, Producer, PushConsumer, ReceivedMessage
from verniermq.kernel import RequestCode, SystemClock, VernierMQError
from verniermq.kernel.store.version import NAME, VERSION, NewerStore, StoreVersion
from verniermq.plugins.namesrv.server import NameServer
from verniermq.testing import BrokerProcess, ManualClock, running_broker

pytestmark = pytest.mark.anyio

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
NEWER = b'{"writtenBy":"9.1.0","readableFrom":"9.0.0"}\n'


async def made(tmp_path: Path, version: str) -> Path:
    """A store as a version leaves it."""
    if version == VERSION:
        await make(tmp_path / "store")
    else:
        with tarfile.open(HERE / f"store-{version}.tar.xz") as archive:
            archive.extractall(tmp_path, filter="data")
    return tmp_path / "store"


@pytest.mark.parametrize("version", ["0.1.0", VERSION])
async def test_everything_that_a_version_stored_is_there(tmp_path: Path, version: str) -> None:
    store = await made(tmp_path, version)
    clock = ManualClock(START + 20)
    async with served(store, clock, **SETTINGS) as (broker, client):
        orders = [await client.bodies("orders", queue) for queue in range(2)]
        committed = [broker.offsets.committed("readers", "orders", queue) for queue in range(2)]
        keys = await client.ask_well(
            RequestCode.QUERY_MESSAGE, topic="orders", key="k123", maxNum=32, beginTimestamp=0,
            endTimestamp=2_000_000_000_000,
        )  # fmt: skip
        deals = await client.bodies("deals")
        dead = await client.bodies("%DLQ%failed")
        retries = broker.groups.for_use("readers").retry_max_times

        async with peers.peer(broker.address) as producer:
            await producer.join(producers=("P",))
            await clock.advance(40)
            request, asked = await producer.checked()
            await producer.ask(
                RequestCode.END_TRANSACTION,
                {
                    "producerGroup": "P", "tranStateTableOffset": request.ext["tranStateTableOffset"],
                    "commitLogOffset": request.ext["commitLogOffset"], "commitOrRollback": 8,
                    "fromTransactionCheck": True, "msgId": request.ext["msgId"],
                },
            )  # fmt: skip
            ended = await client.bodies("deals")
        await clock.advance(1800)
        async with consumer(broker.address, broker.name, "poppers") as it:
            it.topic = "pops"
            popped = [popped.body for popped in await it.pop()]
        await clock.advance(1799)
        timed = await client.bodies("later")
        await clock.advance(3600)
        later = await client.bodies("later")

    expected = [b"%03d" % number + b"." * 600 for number in range(200)]
    assert orders == [expected[0::2], expected[1::2]]
    assert committed == [40, 41]
    assert keys.body.count(expected[123]) == 1
    assert (deals, asked.body, sorted(ended)) == ([b"committed"], b"open", [b"committed", b"open"])
    assert dead == [b"dead"]
    assert retries == 7
    assert popped == [b"popped"]
    assert timed == [b"at a time"]
    assert later == [b"at a time", b"by level"]


async def test_a_store_says_who_wrote_it(tmp_path: Path) -> None:
    store = await made(tmp_path, "0.1.0")
    arguments = ["store", "check", "--store", str(store), "--set=store.queue_entries=64"]

    before = CliRunner().invoke(main, arguments)
    async with running_broker(store, **SETTINGS):
        pass
    after = CliRunner().invoke(main, arguments)
    data = orjson.loads(CliRunner().invoke(main, [*arguments, "--json"]).stdout)

    assert "written by VernierMQ 0.1, or by an Apache broker" in before.output
    assert f"written by VernierMQ {VERSION}, readable from version 0.1.0 on" in after.output
    assert (before.exit_code, after.exit_code) == (0, 0)
    assert data["version"] == {"written_by": VERSION, "readable_from": "0.1.0"}


async def test_a_newer_store_is_refused_in_one_line_and_left_as_it_is(tmp_path: Path) -> None:
    store = await made(tmp_path, "0.1.0")
    (store / NAME).write_bytes(NEWER)
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file() and path.name != "timerwheel"}

    with pytest.raises(NewerStore) as refused:
        async with running_broker(store, **SETTINGS):
            pass
    command = [sys.executable, "-m", "verniermq.cli", "broker", "--port=0", "--namesrv-port=0", f"--store={store}"]
    broker = await anyio.run_process(command, check=False)
    told = broker.stderr.decode()
    tools = [CliRunner().invoke(main, ["store", what, "--store", str(store)]) for what in ("check", "repair")]

    assert str(refused.value) == (
        f"the store {store} was written by VernierMQ 9.1.0 and can be read from version 9.0.0 on, "
        f"but this is {VERSION}; install 9.1.0 or later"
    )
    assert broker.returncode != 0
    assert [line for line in told.splitlines() if "9.1.0" in line] == [f"verniermq: {refused.value}"]
    assert "Traceback" not in told
    assert all(tool.exit_code != 0 and "9.1.0" in tool.output for tool in tools)
    assert before == {path: path.read_bytes() for path in before}


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"writtenBy":1,"readableFrom":"x"}', b"\xff"])
async def test_a_file_that_says_nothing_is_passed_over(tmp_path: Path, content: bytes) -> None:
    (tmp_path / NAME).write_bytes(content)

    async with running_broker(tmp_path):
        pass

    assert StoreVersion.of(tmp_path) == StoreVersion()


def test_a_later_version_that_this_one_reads_is_taken(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b'{"writtenBy":"9.1.0rc2","readableFrom":"0.2"}')
    found = StoreVersion.of(tmp_path)

    assert found is not None
    found.refuse_newer(tmp_path)


def test_the_version_is_that_of_the_package() -> None:
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == VERSION


# --- one of two brokers is upgraded --------------------------------------------------------


@asynccontextmanager
async def name_server() -> AsyncIterator[NameServer]:
    server = NameServer(SystemClock())
    await server.start("127.0.0.1", 0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.run)
        yield server
        tasks.cancel_scope.cancel()
    await server.stop()


@attrs.define
class Traffic:
    """Messages that go on being sent and received."""

    sent: set[bytes] = attrs.Factory(set)
    got: set[bytes] = attrs.Factory(set)
    is_over: bool = False

    async def produce(self, producer: Producer) -> None:
        for number in count():
            if self.is_over:
                return
            try:
                await producer.send(Message("orders", b"%d" % number))
            except VernierMQError:
                continue  # not acknowledged: nothing is promised
            self.sent.add(b"%d" % number)

    async def send_more(self) -> None:
        """Wait until some more were sent."""
        enough = len(self.sent) + 30
        await until(lambda: len(self.sent) >= enough)

    async def receive_all(self) -> None:
        """Wait until all arrived that were sent up to now."""
        sent = set(self.sent)
        await until(lambda: sent <= self.got)


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(90):
        while not condition():  # noqa: ASYNC110 - other processes tell nobody
            await anyio.sleep(0.02)


async def test_of_two_brokers_each_is_upgraded_while_the_other_serves(tmp_path: Path) -> None:
    traffic = Traffic()
    async with name_server() as server:
        address = f"127.0.0.1:{server.port}"
        settings = [f"--set=broker.namesrv={address}", "--set=topics.default_queues=2"]
        brokers = [BrokerProcess(tmp_path / name, [f"--set=broker.name={name}", *settings]) for name in ("a", "b")]
        reader = PushConsumer("readers", namesrv=address, start="first")
        reader.subscribe("orders")

        @reader.on_message
        async def take(message: ReceivedMessage) -> None:
            traffic.got.add(message.body)

        try:
            for broker in brokers:
                await anyio.to_thread.run_sync(broker.start)
                (broker.store / NAME).unlink()  # as 0.1 leaves it
            await until(lambda: len(server.table.broker_names()) == 2)
            async with Admin(namesrv=address) as admin:
                await admin.create_topic("orders", queues=2)
            async with Producer("writers", namesrv=address) as producer, reader, anyio.create_task_group() as tasks:
                tasks.start_soon(traffic.produce, producer)
                await traffic.send_more()
                await traffic.receive_all()
                for broker in brokers:
                    await anyio.to_thread.run_sync(broker.stop)
                    await traffic.send_more()  # the other one serves
                    await anyio.to_thread.run_sync(broker.start)
                    await traffic.send_more()
                    await traffic.receive_all()
                traffic.is_over = True
            versions = [StoreVersion.of(broker.store) for broker in brokers]
        finally:
            for broker in brokers:
                broker.kill()

    assert versions == [StoreVersion()] * 2
