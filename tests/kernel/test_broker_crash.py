"""A whole broker is killed at random moments under load, again and again, and keeps all it acknowledged.

Two brokers suffer side by side, one with synchronous and one with asynchronous flush. Each round of each::

    start ──> everything acknowledged so far is there, once, at the place that the answer named
          ──> the consumer finds the offsets it committed
          ──> producers of every kind and a consumer work ──> kill -9, at any moment of it
"""

from __future__ import annotations

import itertools
import random
import struct
from collections import defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import anyio.to_thread
import attrs
import pytest

from tests.kernel.frames import unique_key
from tests.kernel.pulling import COMMIT, INCLUDED, pull
from tests.kernel.test_lane import Counting, compiled_only
from tests.plugins.peer import Peer, peer
from verniermq.kernel import Command, RequestCode, ResponseCode, decode_records, format_properties
from verniermq.kernel.errors import RemotingError
from verniermq.testing import BrokerProcess, broker_process, running_broker

pytestmark = pytest.mark.anyio

ROUNDS = 16
LONGEST_SECONDS = 0.5
TOPIC = "orders"
QUEUES = 4
# Segments roll, tables are saved and checkpoints written many times a round: the kill must meet them half done.
SETTINGS = {
    "store.segment_size": "256KiB",
    "store.max_message_size": "64KiB",
    "store.checkpoint_interval": "50ms",
    "store.flush_interval": "20ms",
    "offsets.persist_interval": "50ms",
}


@attrs.define(eq=False)
class Ledger:
    """What a broker promised: the number of the message at each place, by queue and queue offset."""

    acknowledged: dict[int, dict[int, int]] = attrs.field(factory=lambda: defaultdict(dict))
    consumed: dict[int, dict[int, int]] = attrs.field(factory=lambda: defaultdict(dict))
    committed: dict[int, int] = attrs.field(factory=lambda: defaultdict(int))
    """The last offset that the consumer told the broker, by queue."""
    kept: dict[int, int] = attrs.field(factory=lambda: defaultdict(int))
    """The offset that the broker still knew at its last start."""
    kinds: dict[str, int] = attrs.field(factory=lambda: defaultdict(int))
    """How many messages of each kind were acknowledged."""
    numbers: itertools.count[int] = attrs.field(factory=itertools.count)
    first_of_round: anyio.Event = attrs.field(factory=anyio.Event)

    def note(self, kind: str, answer: Command, *numbers: int) -> None:
        assert answer.code == ResponseCode.SUCCESS, f"{kind}: {answer.code} {answer.remark}"
        queue, first = int(answer.ext["queueId"]), int(answer.ext["queueOffset"])
        for offset, number in enumerate(numbers, first):
            assert offset not in self.acknowledged[queue], "a place was given away twice"
            self.acknowledged[queue][offset] = number
        self.kinds[kind] += len(numbers)
        self.first_of_round.set()


# --- the producers and the consumer -------------------------------------------------------


def body(number: int) -> bytes:
    return b"%d:" % number + bytes(random.randrange(600))


def keys(number: int) -> dict[str, str]:
    """As clients write them; without a unique key no send is for the compiled path."""
    return {"KEYS": f"k{number}", "UNIQ_KEY": unique_key(number)}


def number_in(stored: bytes) -> int:
    return int(stored.partition(b":")[0])


async def send(client: Peer, ledger: Ledger, kind: str, **properties: object) -> None:
    number = next(ledger.numbers)
    answer = await client.send(TOPIC, body(number), queue=number % QUEUES, **keys(number), **properties)
    ledger.note(kind, answer, number)


async def one_by_one(client: Peer, ledger: Ledger) -> None:
    await send(client, ledger, "one by one")


async def pipelined(client: Peer, ledger: Ledger) -> None:
    async with anyio.create_task_group() as burst:
        for _ in range(20):
            burst.start_soon(send, client, ledger, "pipelined")


async def without_waiting_for_the_disk(client: Peer, ledger: Ledger) -> None:
    await send(client, ledger, "WAIT=false", WAIT="false")


async def one_way(client: Peer, ledger: Ledger) -> None:
    """Nothing is promised, but even these are never there twice."""
    number = next(ledger.numbers)
    fields = {
        "a": "p", "b": TOPIC, "c": "TBW102", "d": 4, "e": number % QUEUES, "f": 0, "g": 1, "h": 0,
        "i": format_properties(keys(number)),
    }  # fmt: skip
    ext = {name: str(value) for name, value in fields.items()}
    client.connection.oneway(Command.request(RequestCode.SEND_MESSAGE_V2, ext, body(number)))
    await anyio.sleep(0.002)


async def batch(client: Peer, ledger: Ledger) -> None:
    numbers = [next(ledger.numbers) for _ in range(random.randrange(2, 12))]
    entries = b""
    for number in numbers:
        content, properties = body(number), format_properties(keys(number)).encode()
        size = 22 + len(content) + len(properties)
        entries += struct.pack(">iiiii", size, 0, 0, 0, len(content)) + content
        entries += struct.pack(">h", len(properties)) + properties
    answer = await client.ask(
        RequestCode.SEND_BATCH_MESSAGE, entries,
        a="p", b=TOPIC, c="TBW102", d=4, e=numbers[0] % QUEUES, f=0, g=1, h=0, i="", m="true",
    )  # fmt: skip
    ledger.note("batch", answer, *numbers)


async def consume(client: Peer, ledger: Ledger) -> None:
    """One pull of each queue, from where the group is, committing what was read before."""
    for queue in range(QUEUES):
        offset = ledger.committed[queue]
        answer = await pull(client, TOPIC, offset, queueId=queue, sysFlag=COMMIT | INCLUDED, commitOffset=offset)
        if answer.code == ResponseCode.SUCCESS:
            for message in decode_records(answer.body):
                ledger.consumed[queue][message.queue_offset] = number_in(message.body)
            ledger.committed[queue] = int(answer.ext["nextBeginOffset"])
    await anyio.sleep(0.01)


PRODUCERS = (one_by_one, pipelined, without_waiting_for_the_disk, one_way, batch)


async def again_and_again(work: Callable[[Peer, Ledger], Awaitable[None]], address: str, ledger: Ledger) -> None:
    """Until the broker is dead, each on a connection of its own."""
    try:
        async with peer(address) as client:
            while not client.connection.closed:
                await work(client, ledger)
    except* RemotingError:
        pass


# --- what must be true after each restart -------------------------------------------------


async def check(client: Peer, ledger: Ledger) -> None:
    seen: set[int] = set()
    for queue in range(QUEUES):
        stored = await client.pull(TOPIC, queue)
        assert [message.queue_offset for message in stored] == list(range(len(stored))), "queue offsets have gaps"
        numbers = [number_in(message.body) for message in stored]
        for promised in (ledger.acknowledged[queue], ledger.consumed[queue]):
            assert {offset: numbers[offset] for offset in promised if offset < len(numbers)} == promised
        assert len(set(numbers)) == len(numbers), "a message is there twice"
        assert seen.isdisjoint(numbers), "a message is in two queues"
        seen.update(numbers)


async def go_on_from_the_committed_offsets(client: Peer, ledger: Ledger) -> None:
    for queue in range(QUEUES):
        answer = await client.ask(
            RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup="readers", topic=TOPIC, queueId=queue
        )
        found = int(answer.ext["offset"]) if answer.code == ResponseCode.SUCCESS else 0
        # Commits are written a moment later, so the newest may be lost; what was written once is not.
        assert ledger.kept[queue] <= found <= ledger.committed[queue]
        ledger.kept[queue] = ledger.committed[queue] = found


async def one_round(process: BrokerProcess, ledger: Ledger, chance: random.Random) -> None:
    ledger.first_of_round = anyio.Event()
    async with anyio.create_task_group() as work:
        for kind in (*PRODUCERS, consume):
            work.start_soon(again_and_again, kind, process.broker, ledger)
        await ledger.first_of_round.wait()
        await anyio.sleep(chance.uniform(0, LONGEST_SECONDS))
        await anyio.to_thread.run_sync(process.kill)
    await anyio.to_thread.run_sync(process.start)
    async with peer(process.broker) as client:
        await check(client, ledger)
        await go_on_from_the_committed_offsets(client, ledger)


async def suffer(store: Path, flush: str, ledger: Ledger) -> None:
    chance = random.Random()
    settings = {**SETTINGS, "store.flush": flush}
    with broker_process(store, *[f"--set={name}={value}" for name, value in settings.items()]) as process:
        for _ in range(ROUNDS):
            await one_round(process, ledger, chance)
        async with peer(process.broker) as client:
            while any(ledger.committed[queue] <= max(ledger.acknowledged[queue]) for queue in range(QUEUES)):
                await consume(client, ledger)
            await check(client, ledger)


# Starting Python 34 times takes a while on a busy machine.
@pytest.mark.timeout(600)
async def test_a_broker_killed_under_load_keeps_what_it_acknowledged_and_its_consumers_go_on(tmp_path: Path) -> None:
    ledgers = {"sync": Ledger(), "async": Ledger()}
    async with anyio.create_task_group() as brokers:
        for flush, ledger in ledgers.items():
            brokers.start_soon(suffer, tmp_path / flush, flush, ledger)

    for ledger in ledgers.values():
        assert set(ledger.kinds) == {"one by one", "pipelined", "WAIT=false", "batch"}
        assert all(ledger.consumed[queue].keys() >= ledger.acknowledged[queue].keys() for queue in range(QUEUES))
        assert sum(ledger.kept.values()) > 0


@compiled_only
@pytest.mark.parametrize("kind", PRODUCERS)
async def test_what_the_victims_are_sent_takes_the_compiled_path(
    tmp_path: Path, kind: Callable[[Peer, Ledger], Awaitable[None]]
) -> None:
    ledger = Ledger()
    settings = {name.replace(".", "__"): value for name, value in SETTINGS.items()}
    async with running_broker(tmp_path, **settings) as broker:
        assert broker.path == "compiled"
        counting = Counting(broker)
        async with peer(broker.address) as client:
            for _ in range(QUEUES):
                await one_by_one(client, ledger)  # each queue has its first message
            counting.bytes = 0
            await kind(client, ledger)
            await client.pull(TOPIC)  # is served after what was sent without waiting

            assert counting.bytes > 0
