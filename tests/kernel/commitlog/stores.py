"""Small stores for tests: segments of a few kilobytes, so that a handful of messages rolls over."""

from __future__ import annotations

import ctypes
import mmap
import os
from itertools import groupby
from pathlib import Path
from typing import Any

from verniermq.kernel.clock import Clock
from verniermq.kernel.commitlog.record import pack_record
from verniermq.kernel.config.schema import StoreSettings
from verniermq.kernel.dispatch.run import Run
from verniermq.kernel.message import PendingMessage, pack_host
from verniermq.kernel.store import Store
from verniermq.kernel.store.appender import Columns
from verniermq.testing import ManualClock

HOST = pack_host("10.0.0.5", 10911)
BORN = pack_host("192.168.1.10", 50000)
BORN_AT = 1_700_000_000_000
SEGMENT = 8192


def make_store(path: Path, *, clock: Clock | None = None, host: bytes = HOST, **settings: Any) -> Store:
    """A closed store; ``clock`` stands still unless given."""
    chosen: dict[str, Any] = {"segment_size": SEGMENT, "queue_entries": 100, "max_message_size": 4096, **settings}
    return Store(StoreSettings(path=str(path), **chosen), clock=clock or ManualClock(), store_host=host)


def open_store(path: Path, **settings: Any) -> Store:
    store = make_store(path, **settings)
    store.open()
    return store


def pending(topic: str = "T1", queue_id: int = 0, body: bytes = b"hello", **fields: Any) -> PendingMessage:
    fields.setdefault("properties", {})
    return PendingMessage(topic, queue_id, body, born_timestamp=BORN_AT, born_host=BORN, **fields)


def _columns(bodies: list[bytes]) -> Columns:
    """What stands before the colon of each body is its key."""
    keys = [body.partition(b":")[0] for body in bodies]
    pads = [b"PAD\x01%b\x02" % (b"p" * (len(body) % 440 + 1)) for body in bodies]
    texts = [
        b"UNIQ_KEY\x01U%d\x02KEYS\x01%b\x02%b" % (number, key, pad)
        for number, (key, pad) in enumerate(zip(keys, pads, strict=True))
    ]
    return (
        bodies, [0] * len(bodies), [len(text).to_bytes(2, "big") + text for text in texts], [0] * len(bodies),
        [b"U%d" % number for number in range(len(bodies))], keys, [pad for pad, _ in groupby(pads)],
    )  # fmt: skip


def append_run(store: Store, topic: str, queue_id: int, bodies: list[bytes]) -> Run:
    """Messages as a plain batch is stored; what stands before the colon of each body is its key."""
    return store.appender.append_run(
        topic, queue_id, _columns(bodies), sys_flag=0, born_timestamp=BORN_AT, born_host=BORN, reconsume_times=0
    )


def append_encoded(store: Store, topic: str, queue_id: int, bodies: list[bytes]) -> Run | None:
    """The same as the compiled lane stores them: encoded before, for the log's end.

    ``None``, and nothing is stored, where the lane stores nothing either: they are the first messages of a queue, or do
    not fit into the room that the log has.
    """
    queue = store.queue_table.get((topic, queue_id))
    if queue is None:
        return None
    _, flags, texts, codes, uniques, keys, rests = _columns(bodies)
    offset, offsets, records = store.end, [], []
    magic, field = queue.magic, queue.topic_field
    now = store.appender._now()
    for number, (body, flag, text) in enumerate(zip(bodies, flags, texts, strict=True)):
        record = pack_record(
            magic, field, body, text[2:], queue_id=queue_id,
            queue_offset=queue.next_offset + number, commit_log_offset=offset,
            store_timestamp=now, store_host=store.store_host, flag=flag, sys_flag=0, born_timestamp=BORN_AT,
            born_host=BORN, reconsume_times=0, prepared_transaction_offset=0,
        )  # fmt: skip
        offsets.append(offset)
        records.append(record)
        offset += len(record)
    if offset - store.end > store.room:
        return None
    sizes = list(map(len, records))
    run = Run(
        topic, queue_id, queue.next_offset, offsets, sizes, codes, uniques, keys, texts, rests,
        head_size=sizes[0] - len(bodies[0]) - len(texts[0]), store_timestamp=now, store_host=store.store_host,
        sys_flag=0, born_timestamps=[BORN_AT] * len(bodies), reconsume_times=0,
    )  # fmt: skip
    store.append_encoded(b"".join(records), [run])
    return run


def abandon(store: Store) -> None:
    """What a killed process leaves: no file is written any more, and the lock is free."""
    store._let_go()


def bodies(store: Store) -> dict[tuple[str, int], list[bytes]]:
    """Every message that a consumer could read, by topic and queue, having checked that each lies where it says."""
    found: dict[tuple[str, int], list[bytes]] = {}
    for queue in store.queues():
        read = found[queue.topic, queue.queue_id] = []
        for offset in range(queue.min_offset, queue.max_offset):
            ((commit_log_offset, size, _),) = queue.entries(offset, 1)
            message = store.message_at(commit_log_offset)
            assert message is not None, (queue, offset)
            assert (message.topic, message.queue_id, message.queue_offset) == (queue.topic, queue.queue_id, offset)
            assert (message.commit_log_offset, message.size) == (commit_log_offset, size)
            read.append(message.body)
    return found


def pages_in_memory(descriptor: int) -> int:
    """How many pages of a file the system has; unlike a read, asking this way does not make it fetch any."""
    size = os.fstat(descriptor).st_size
    pages = (ctypes.c_ubyte * (-(-size // mmap.PAGESIZE)))()
    with mmap.mmap(descriptor, size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE) as mapped:
        address = ctypes.addressof(ctypes.c_ubyte.from_buffer(mapped))
        ctypes.CDLL(None).mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), pages)
    return sum(page & 1 for page in pages)
