"""The victims of the crash test: each appends as fast as it can and notes what it may acknowledge, until it is killed.

For each line ``store-path notes-path flush first-number`` on its input, this program forks a victim (which saves
importing everything again), prints its process id, and prints ``dead`` when it is. A note is
``topic queue_id queue_offset number``.
"""

from __future__ import annotations

import itertools
import os
import random
import sys
from pathlib import Path

import anyio
import anyio.lowlevel

from tests.kernel.commitlog.stores import append_encoded, append_run, open_store, pending
from verniermq.kernel.clock import SystemClock
from verniermq.kernel.commitlog import mapped
from verniermq.kernel.message import PendingMessage
from verniermq.kernel.store import Appended, Store

SETTINGS = {"segment_size": 64 << 10, "checkpoint_interval": 0.02, "flush_interval": 0.01, "queue_entries": 200}


def message(number: int) -> PendingMessage:
    body = b"%d:" % number + b"x" * random.randrange(400)
    return pending(f"T{number % 3}", number % 4, body, properties={"TAGS": "tag", "KEYS": f"key{number}"})


def acknowledge(notes: int, messages: list[PendingMessage], appended: list[Appended]) -> None:
    lines = [
        f"{m.topic} {m.queue_id} {a.queue_offset} {bytes(m.body).partition(b':')[0].decode()}\n"
        for m, a in zip(messages, appended, strict=True)
    ]
    os.write(notes, "".join(lines).encode())


def append(store: Store, messages: list[PendingMessage]) -> list[Appended]:
    """In one of the four ways there are; as a run, and encoded before, all go to the queue of the first."""
    way = random.choice(["messages", "run", "encoded"])
    if way == "messages":
        return [store.append(messages[0])] if len(messages) == 1 else list(store.append_batch(messages))
    first = messages[0]
    for other in messages:
        other.topic, other.queue_id = first.topic, first.queue_id
    place = store, first.topic, first.queue_id, [bytes(m.body) for m in messages]
    return list((append_encoded(*place) if way == "encoded" else None) or append_run(*place))


async def produce(store: Store, notes: int, numbers: itertools.count[int]) -> None:
    while True:
        size = random.choice([1, 1, 1, 5])
        taken = [next(numbers) for _ in range(size)]
        messages = [message(number) for number in taken]
        appended = append(store, messages)
        if await store.durable(appended[-1].end):
            acknowledge(notes, messages, appended)
        await anyio.lowlevel.checkpoint()


async def main(path: str, notes_path: str, flush: str, first: str) -> None:
    notes = os.open(notes_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    if random.random() < 0.5:
        mapped.AMPLE_ROOM = 1 << 62  # as on a disk that is nearly full: calls write the log, and not stores into a map
    store = open_store(Path(path), flush=flush, clock=SystemClock(), **SETTINGS)
    # Queues are synced, and the checkpoint written, far more often than usual: both must be met half done.
    numbers = itertools.count(int(first))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store.run)
        for _ in range(4):
            tasks.start_soon(produce, store, notes, numbers)
        while True:
            await anyio.sleep(0.01)
            await store.save_checkpoint()


def serve() -> None:
    for line in sys.stdin:
        victim = os.fork()
        if victim == 0:
            anyio.run(main, *line.split())
        print(victim, flush=True)
        os.waitpid(victim, 0)
        print("dead", flush=True)


if __name__ == "__main__":
    serve()
