"""How fast the store appends, reads back and recovers, beside a bare write and read of the same bytes.

    python bench/store.py [--messages 100000] [--size 300] [--directory DIR]
    python bench/store.py --large [--messages 10000000]        4 GiB, a few minutes: see large.py

All figures come from one run on one machine, so that their ratio means something: the bare file is the limit
that no log can beat, and Python's share is what lies between.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import anyio
import anyio.lowlevel
import large

from verniermq.kernel.clock import SystemClock
from verniermq.kernel.config.schema import StoreSettings
from verniermq.kernel.message import PendingMessage, format_properties, pack_host
from verniermq.kernel.store import Store

TURN = 64
"""Messages per turn of the event loop: what a busy broker finds in its connections' buffers."""
QUEUES = 8
HOST = pack_host("127.0.0.1", 10911)


def new_store(path: Path) -> Store:
    return Store(StoreSettings(path=str(path)), clock=SystemClock(), store_host=HOST)


def message(number: int, body: bytes) -> PendingMessage:
    properties = {"TAGS": "TagA", "UNIQ_KEY": f"7F00000100002A9F{number:016X}", "WAIT": "true"}
    return PendingMessage("bench", number % QUEUES, body, properties, format_properties(properties), born_host=HOST)


async def append(store: Store, count: int, body: bytes) -> tuple[float, float]:
    """Seconds until all are appended and dispatched, and until they are on the disk as well."""
    messages = [message(number, body) for number in range(TURN)]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store.run)
        await anyio.lowlevel.checkpoint()
        start = time.perf_counter()
        for _ in range(count // TURN):
            for each in messages:
                store.append(each)
            await anyio.lowlevel.checkpoint()
        appended = time.perf_counter() - start
        await store.save_checkpoint()
        durable = time.perf_counter() - start
        tasks.cancel_scope.cancel()
    return appended, durable


def read_back(store: Store) -> int:
    """Read every record by way of its queue, 32 at a time, as pulls do."""
    read = 0
    for queue in store.queues():
        offset = queue.min_offset
        while offset < queue.max_offset:
            entries = queue.entries(offset, 32)
            for commit_log_offset, size, _ in entries:
                record = store.read(commit_log_offset, size)
                assert record is not None
                read += len(record)
            offset += len(entries)
    return read


def bare_write(path: Path, record: bytes, count: int) -> None:
    chunk = record * TURN
    with open(path, "wb", buffering=0) as file:
        for _ in range(count // TURN):
            file.write(chunk)
        os.fsync(file.fileno())


def bare_read(path: Path) -> None:
    with open(path, "rb", buffering=0) as file:
        while file.read(1 << 16):
            pass


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def opened(path: Path) -> tuple[Store, float]:
    store = new_store(path)
    return store, timed(store.open)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, help="100,000 unless given; with --large, 10,000,000")
    parser.add_argument("--size", type=int, default=300, help="bytes of a body")
    parser.add_argument("--directory", type=Path, help="where the disk to measure is mounted")
    parser.add_argument("--large", action="store_true", help="how a store of ten million messages opens and recovers")
    arguments = parser.parse_args()
    count = arguments.messages or (10_000_000 if arguments.large else 100_000)
    count -= count % TURN
    work = Path(tempfile.mkdtemp(dir=arguments.directory))
    try:
        if arguments.large:
            large.measure(work / "store", count)
        else:
            measure(work, count, bytes(arguments.size))
    finally:
        shutil.rmtree(work)


def measure(work: Path, count: int, body: bytes) -> None:
    store, _ = opened(work / "store")
    appended, durable = anyio.run(append, store, count, body)
    end = store.end

    def show(what: str, seconds: float, limit: float | None = None) -> None:
        ratio = f"{limit / seconds:8.0%} of bare" if limit else ""
        print(f"{what:34}{end / seconds / 1e6:9.1f} MB/s{count / seconds:12,.0f} records/s{ratio}")

    bare = work / "bare"
    writing = timed(lambda: bare_write(bare, bytes(end // count), count))
    reading = timed(lambda: bare_read(bare))
    print(f"{count:,} records of {end // count} bytes, {end / 1e6:.0f} MB, {QUEUES} queues")
    show("bare sequential write + fsync", writing)
    show("append and dispatch", appended, writing)
    show("append, dispatch, all on disk", durable, writing)
    show("bare sequential read", reading)
    show("read back by queue", timed(lambda: read_back(store)), reading)
    store.close()

    store, seconds = opened(work / "store")
    print(f"{'open after an orderly stop':34}{seconds * 1000:9.1f} ms")
    store.close()
    # A crash before the first checkpoint: everything is read, checked and listed again.
    shutil.rmtree(work / "store" / "consumequeue")
    (work / "store" / "checkpoint").unlink()
    (work / "store" / "abort").write_text("0")
    store, seconds = opened(work / "store")
    show("recover everything from the log", seconds, reading)
    store.close()


if __name__ == "__main__":
    main()
