"""Old records that are on the disk only are fetched in a worker thread before anybody slices them."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.commitlog.disk import Disk
from tests.kernel.commitlog.stores import SEGMENT, open_store, pages_in_memory, pending
from tests.kernel.pulling import pull
from tests.plugins.peer import served
from verniermq.kernel import decode_records
from verniermq.kernel.commitlog import coldreads
from verniermq.kernel.commitlog.coldreads import NEAR, ColdReads
from verniermq.kernel.commitlog.log import CommitLog
from verniermq.kernel.commitlog.mapped import MappedFile
from verniermq.kernel.dispatch.consumequeue import BLANK_RECORD_SIZE
from verniermq.kernel.store import Store
from verniermq.testing import ManualClock

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def nothing_is_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coldreads, "FRESH", 0)


def forget(*files: Path) -> None:
    """Have the operating system drop a file's pages; it keeps those that somebody has mapped and touched."""
    gc.collect()  # a closed store's maps may still be there
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        for _ in range(25):  # pages that came a moment ago may still be on their way to where it looks for them
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            if not pages_in_memory(descriptor):
                break
            time.sleep(0.01)
        os.close(descriptor)


@pytest.fixture
def forgetful(tmp_path: Path) -> None:
    """Files in memory only (tmpfs) cannot be dropped from it."""
    probe = tmp_path / "probe"
    probe.write_bytes(bytes(8192))
    for _ in range(50):
        forget(probe)
        with probe.open("rb") as file:
            if pages_in_memory(file.fileno()):
                break
        if not MappedFile(probe, 8192).in_memory(0, 8192):
            return
    pytest.skip("this file system keeps everything in memory, or does not tell")


def fetching_again(store: Store, places: list[tuple[int, int]]) -> Coroutine[Any, Any, None]:
    """What :meth:`Store.fetching` says of places, of which those in the first segment are on the disk only.

    Asking has the disk begin to read. One that has answered before the question is over, as a busy machine's may,
    makes it look as if they had been in memory; so they are dropped, and asked about, until it was slower.
    """
    for _ in range(50):
        forget(store.segments()[0].path)
        fetching = store.fetching(places)
        if fetching is not None:
            return fetching
    raise AssertionError("the disk is always quicker than the question")


def written_and_forgotten(path: Path, count: int) -> tuple[Store, list[tuple[int, int]]]:
    """A store that was opened again, with none of its older pages in memory, and where its messages lie."""
    store = open_store(path)
    for number in range(count):
        store.append(pending(body=b"%d" % number * 50))
    store.close()
    forget(*sorted((path / "commitlog").iterdir()))
    store = open_store(path)
    queue = store.queue("T1", 0)
    assert queue is not None
    places = [entry[:2] for offset in range(count) for entry in queue.entries(offset, 1)]
    return store, [place for place in places if place[0] < store.end - store.end % SEGMENT]


async def test_what_is_on_the_disk_only_is_fetched(tmp_path: Path, forgetful: None) -> None:
    store, places = written_and_forgotten(tmp_path / "store", 200)

    await fetching_again(store, places)

    assert store.fetching(places) is None
    assert [store.read(*place) is not None for place in places] == [True] * len(places)
    store.close()


async def test_what_is_in_memory_is_not_waited_for(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    places = [(appended.commit_log_offset, appended.size) for appended in map(store.append, [pending()] * 200)]

    assert store.fetching(places) is None
    store.close()


async def test_fresh_records_are_not_even_asked_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coldreads, "FRESH", 1 << 20)
    store, places = written_and_forgotten(tmp_path / "store", 200)

    assert store.fetching(places) is None
    store.close()


async def test_records_that_are_gone_need_no_fetching(tmp_path: Path, forgetful: None) -> None:
    store, places = written_and_forgotten(tmp_path / "store", 200)
    (first, *_) = places
    fetching = fetching_again(store, [first])

    store.delete_first_segment()
    await fetching

    assert store.fetching([first]) is None
    assert store.read(*first) is None
    store.close()


def test_near_records_are_one_piece_and_segments_are_apart(tmp_path: Path) -> None:
    size = 4 * NEAR
    log = CommitLog(tmp_path, size)
    log.open_at(3 * size)
    places = [(0, 100), (100, 100), (300, 50), (350 + NEAR, 10), (3 * NEAR, 10), (size - 20, 20), (size, 30)]

    spans = ColdReads(log)._spans(places, 2 * size)

    assert spans == [(0, 360 + NEAR), (3 * NEAR, size), (size, size + 30)]
    assert ColdReads(log)._spans([(2 * size, 10)], 2 * size) == []
    assert ColdReads(log)._spans([(0, BLANK_RECORD_SIZE), (0, 10), (0, BLANK_RECORD_SIZE)], size) == [(0, 10)]
    log.close()


@pytest.mark.parametrize("expression", ["*", "odd"])
async def test_a_pull_of_old_messages_brings_them_all(tmp_path: Path, forgetful: None, expression: str) -> None:
    path = tmp_path / "store"
    # Without the key index, which would read the log when the broker starts.
    settings = {"store__segment_size": 64 << 10, "store__max_message_size": 16 << 10, "plugins__enable": ["filter"]}
    async with served(path, **settings) as (_, client):
        for number in range(300):
            await client.sent("orders", b"%d" % number * 100, TAGS="odd" if number % 2 else "even")

    async with served(path, **settings) as (broker, client):
        queue = broker.store.queue("orders", 0)
        assert queue is not None
        (first,) = queue.entries(0, 1)
        fetching_again(broker.store, [first[:2]]).close()
        forget(broker.store.segments()[0].path)
        answer = await pull(client, offset=0, maxMsgNums=100, subscription=expression)

    step = 1 if expression == "*" else 2
    expected = [b"%d" % number * 100 for number in range(step - 1, 300, step)][:100]
    assert [message.body for message in decode_records(answer.body)] == expected


async def test_the_longest_that_a_reader_waited_is_kept(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.append(pending(body=b"x"))
    store.dispatch()
    reads = ColdReads(store._log)
    assert store.longest_fetch == reads.longest == 0
    await reads.fetch([(0, store.end)])
    first = reads.longest
    await reads.fetch([])
    assert reads.longest >= first > 0
    store.close()


async def test_a_time_is_looked_up_without_reading_what_is_on_the_disk_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock(1_700_000_000.0)
    store = open_store(tmp_path, clock=clock)
    for _ in range(100):
        store.append(pending(body=b"x" * 100))
        await clock.advance(1)
    store.dispatch()
    times = [1_700_000_000_000 + 1000 * number for number in (-5, 0, 1, 50, 99, 200)]
    expected = [store.offset_by_time("T1", 0, time, upper) for time in times for upper in (False, True)]
    disk = Disk(store, monkeypatch)

    with pytest.raises(AssertionError):
        store.offset_by_time("T1", 0, times[3])
    found = [await store.find_by_time("T1", 0, time, upper) for time in times for upper in (False, True)]

    assert found == expected
    assert disk.fetched
    assert await store.find_by_time("unknown", 0, 0) == 0
    monkeypatch.undo()
    store.close()


async def test_a_message_is_looked_up_without_reading_what_is_on_the_disk_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path)
    appended = [store.append(pending(body=b"%d" % number * 50)) for number in range(20)]
    store.dispatch()
    expected = [store.message_at(one.commit_log_offset) for one in appended]
    Disk(store, monkeypatch)

    assert [await store.find_message(one.commit_log_offset) for one in appended] == expected
    assert await store.find_message(-1) is None
    monkeypatch.undo()
    store.close()
