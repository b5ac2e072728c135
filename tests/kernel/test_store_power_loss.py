"""The power fails: with synchronous flush nothing that was acknowledged is lost, and the store always opens."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from tests.kernel.commitlog import stores
from tests.kernel.commitlog.powercut import Recorder
from tests.kernel.commitlog.stores import abandon, append_encoded, append_run, open_store, pending
from verniermq.kernel.commitlog import mapped
from verniermq.kernel.store import Appended, Store

pytestmark = pytest.mark.anyio

SETTINGS: dict[str, Any] = {
    "segment_size": 16 << 10,
    "queue_entries": 40,
    "checkpoint_interval": 0.01,
    "flush_interval": 0.005,
}
CUTS = 270
MESSAGES = 250


async def produce(
    store: Store, recorder: Recorder, first: int, count: int, chance: random.Random, ways: Counter[str]
) -> None:
    """Send singly, in batches and as the compiled lane does, and acknowledge what the store says is durable."""
    number = first
    while number < first + count:
        size, way = chance.choice([1, 1, 4]), chance.choice(["messages", "run", "encoded"])
        bodies = [b"%d:" % i + chance.randbytes(chance.randrange(700)) for i in range(number, number + size)]
        messages = [
            pending(f"T{i % 2}", i % 3, body, properties={"PAD": "p" * chance.randrange(1, 900), "KEYS": f"{i}"})
            for i, body in enumerate(bodies, number)
        ]
        number += size
        if way == "messages":
            appended: Sequence[Appended] = [store.append(messages[0])] if size == 1 else store.append_batch(messages)
        else:
            for message in messages:
                message.topic, message.queue_id = messages[0].topic, messages[0].queue_id
            place = store, messages[0].topic, messages[0].queue_id, bodies
            run = append_encoded(*place) if way == "encoded" else None
            if run is not None:
                ways["encoded"] += 1
            appended = list(run or append_run(*place))
        if await store.durable(appended[-1].end) and store.waits_for_disk:
            for message, answer in zip(messages, appended, strict=True):
                recorder.acknowledge((message.topic, message.queue_id, answer.queue_offset, bytes(message.body)))
        await anyio.lowlevel.checkpoint()


async def record(
    path: Path, flush: str, patch: pytest.MonkeyPatch, chance: random.Random, ways: Counter[str]
) -> Recorder:
    """A life of a store: started, used, stopped, started again, used, still running when the power fails.

    ``ways`` gets how often messages were stored as the compiled lane does.
    """
    recorder = Recorder(path)
    with recorder.active(patch), patch.context() as changed:
        for life in range(2):
            if life == 1:
                changed.setattr(mapped, "AMPLE_ROOM", 1 << 62)  # so near the end of a disk, calls write the log
            store = open_store(path, flush=flush, **SETTINGS)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(store.run)
                async with anyio.create_task_group() as producers:
                    for producer in range(3):
                        first = (life * 3 + producer) * 10 * MESSAGES
                        producers.start_soon(produce, store, recorder, first, MESSAGES // 6, chance, ways)
                    for _ in range(5):
                        await anyio.sleep(0.005)
                        await store.save_checkpoint()
                tasks.cancel_scope.cancel()
            if life == 0:
                store.close()
            else:
                abandon(store)
    return recorder


@pytest.mark.parametrize("flush", ["sync", "async"])
async def test_whenever_the_power_fails_nothing_acknowledged_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flush: str
) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)  # shown when it fails
    chance = random.Random(seed)
    ways: Counter[str] = Counter()
    recorder = await record(tmp_path / "recorded", flush, monkeypatch, chance, ways)
    assert ways["encoded"] > 5
    promised = len(recorder.acknowledged(len(recorder.events)))
    assert promised > 100 if flush == "sync" else promised == 0

    for cut in range(CUTS):
        moment = chance.randrange(len(recorder.events) + 1)
        left = tmp_path / f"cut{cut}"
        left.mkdir()
        recorder.leave(moment, left, chance)
        survives(left, recorder.acknowledged(moment))


def survives(path: Path, acknowledged: list[tuple[str, int, int, bytes]]) -> None:
    store = open_store(path, **SETTINGS)
    found = stores.bodies(store)
    for topic, queue_id, offset, body in acknowledged:
        assert found[topic, queue_id][offset] == body
    for queue in store.queues():
        for offset, _, _ in queue.entries(0, SETTINGS["queue_entries"]):
            message = store.message_at(offset)
            assert message is not None
            # No checksum covers the properties: a hole in them must be noticed all the same.
            assert message.body.split(b":")[0].decode() == message.properties["KEYS"]
            assert set(message.properties["PAD"]) == {"p"}
    # Nothing is there that was not written whole, and the numbers go on without a gap.
    for (topic, queue_id), read in found.items():
        assert store.min_offset(topic, queue_id) == 0
        assert len(set(read)) == len(read)
        assert store.append(pending(topic, queue_id, b"next")).queue_offset == len(read)
    end = store.end
    store.close()
    again = open_store(path, **SETTINGS)
    assert again.end == end
    assert {key: read[:-1] for key, read in stores.bodies(again).items()} == found
    again.close()
