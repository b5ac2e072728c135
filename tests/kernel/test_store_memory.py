"""A store's heap holds what is new, not what is stored.

Mapped files do not count: the operating system takes their pages back when it needs them.
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest

from tests.kernel.commitlog.stores import abandon, make_store, pending
from verniermq.kernel.commitlog.log import CommitLog
from verniermq.kernel.store import Store

SETTINGS = {"segment_size": 4 << 20, "queue_entries": 5_000, "mapped_queue_files": 16}
BEFORE, MORE = 40_000, 160_000
TURN = 500


def append(store: Store, count: int) -> None:
    messages = [pending(f"T{number % 2}", number % 4, b"x" * 40) for number in range(TURN)]
    for done in range(0, count, TURN):
        for message in messages:
            store.append(message)
        store.dispatch()
        if done % (20 * TURN) == 0:
            store.flush()  # as the broker's background work does every second
    store.flush()


def read_everything(store: Store) -> None:
    for queue in store.queues():
        offset = queue.min_offset
        while offset < queue.max_offset:
            entries = queue.entries(offset, 32)
            for commit_log_offset, size, _ in entries:
                assert store.read(commit_log_offset, size) is not None
            offset += len(entries)


def heap() -> tuple[int, int]:
    """Small objects, and KiB of the process's own memory, which has the large ones too."""
    gc.collect()
    (own,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon")]
    return sys.getallocatedblocks(), int(own.split()[1])


def grown(before: tuple[int, int], after: tuple[int, int]) -> tuple[int, int]:
    return after[0] - before[0], after[1] - before[1]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux to tell a process's own memory")
def test_the_heap_does_not_grow_with_what_is_stored_read_or_recovered(tmp_path: Path) -> None:
    store = make_store(tmp_path, **SETTINGS)
    store.open()
    append(store, BEFORE)
    abandon(store)
    store = make_store(tmp_path, **SETTINGS)
    store.open()
    read_everything(store)
    after_some = heap()

    append(store, MORE)
    read_everything(store)
    after_all = heap()
    abandon(store)
    recovered = make_store(tmp_path, **SETTINGS)
    recovered.open()
    after_recovery = heap()

    assert sum(queue.max_offset for queue in recovered.queues()) == BEFORE + MORE
    for objects, kib in (grown(after_some, after_all), grown(after_all, after_recovery)):
        assert objects < MORE / 50
        # The allocator keeps some megabytes of what recovery read; a message has 153 bytes in the log and its queue.
        assert kib < MORE * 64 / 1024, "64 bytes for each message"
    recovered.close()


def mapped_mib() -> float:
    (mapped,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssFile")]
    return int(mapped.split()[1]) / 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux to tell a process's own memory")
def test_what_was_written_and_read_long_ago_is_let_go_and_still_there(tmp_path: Path) -> None:
    log = CommitLog(tmp_path, 64 << 20)
    log.load()
    log.open_at(0)
    before = mapped_mib()
    places = []
    for number in range(150):  # 150 MiB: two full segments, and more in the third than stays in memory
        data = number.to_bytes(8, "big") * (1 << 17)
        log.make_room(len(data))
        places.append((log.end, len(data)))
        log.write(data)

    def is_all_there() -> bool:
        return all(log.read(*place) == number.to_bytes(8, "big") * (1 << 17) for number, place in enumerate(places))

    assert is_all_there()
    assert mapped_mib() - before > 100
    log.sync()
    log.let_go()
    assert mapped_mib() - before < 40

    assert is_all_there()
    log.close()
