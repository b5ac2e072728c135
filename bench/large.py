"""A store of ten million messages: how long it takes to open, what a crash costs, and how much memory it needs.

Each measurement is a process of its own that finds none of the store's pages in memory. The crash is a real one: a
process appends as fast as it can, with its checkpoints, and is killed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel

from verniermq.kernel.clock import SystemClock
from verniermq.kernel.config.schema import StoreSettings
from verniermq.kernel.message import PendingMessage, format_properties, pack_host
from verniermq.kernel.store import Store

QUEUES = 8
TURN = 64
BODY = 260
"""With topic and properties a record of 430 bytes: ten million fill four gibibytes."""
HOST = pack_host("127.0.0.1", 10911)
SECONDS_UNTIL_KILLED = 12.0
"""Time for two checkpoints."""


def new_store(path: Path) -> Store:
    return Store(StoreSettings(path=str(path)), clock=SystemClock(), store_host=HOST)


def messages() -> list[PendingMessage]:
    properties = {"TAGS": "TagA", "UNIQ_KEY": f"7F00000100002A9F{0:016X}", "WAIT": "true"}
    text = format_properties(properties)
    return [PendingMessage("large", n % QUEUES, bytes(BODY), properties, text, born_host=HOST) for n in range(TURN)]


# --- in processes of their own ------------------------------------------------------------


def fill(path: Path, count: int) -> None:
    store = new_store(path)
    store.open()
    turn = messages()
    for done in range(0, count, TURN):
        for message in turn:
            store.append(message)
        store.dispatch()
        if done % (TURN << 12) == 0:
            store.flush()
    store.close()


def open_and_close(path: Path) -> None:
    store = new_store(path)
    before = memory()
    start = time.perf_counter()
    store.open()
    seconds = time.perf_counter() - start
    after = memory()
    stored = sum(queue.max_offset for queue in store.queues())
    store.close()
    grown = after["RssAnon"] - before["RssAnon"]
    print(json.dumps({"seconds": seconds, "stored": stored, "heap": grown, "resident": after["VmRSS"]}))


async def write_until_killed(path: Path) -> None:
    store = new_store(path)
    store.open()
    turn = messages()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store.run)
        print("ready", flush=True)
        while True:
            for message in turn:
                store.append(message)
            await anyio.lowlevel.checkpoint()


def memory() -> dict[str, int]:
    """What this process has in memory, in KiB: ``VmRSS`` with mapped files, ``RssAnon`` without."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return {name: int(value.split()[0]) for name, _, value in (line.partition(":") for line in lines) if "kB" in value}


# --- the measurement ----------------------------------------------------------------------


def run(what: str, path: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, __file__, what, str(path), *arguments], stdout=subprocess.PIPE, text=True)


def forget_pages(path: Path) -> None:
    """Have the operating system read the files from the disk again."""
    for file in path.rglob("*"):
        if file.is_file():
            descriptor = os.open(file, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def opened(path: Path) -> dict[str, Any]:
    forget_pages(path)
    with run("open", path) as process:
        output, _ = process.communicate()
    found: dict[str, Any] = json.loads(output)
    return found


def show(what: str, found: dict[str, Any]) -> None:
    print(
        f"{what:28}{found['seconds']:8.2f} s, {found['stored']:,} messages; "
        f"heap +{found['heap'] / 1024:.1f} MiB, resident {found['resident'] / 1024:.0f} MiB",
        flush=True,
    )


def measure(path: Path, count: int) -> None:
    start = time.perf_counter()
    with run("fill", path, str(count)) as process:
        process.wait()
    seconds = time.perf_counter() - start
    size = sum(file.stat().st_blocks * 512 for file in path.rglob("*") if file.is_file())
    print(f"filled with {count:,} messages, {size / 2**30:.2f} GiB, in {seconds:.0f} s", flush=True)
    show("open after an orderly stop", opened(path))
    before = opened(path)
    with run("write", path) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(SECONDS_UNTIL_KILLED)
        process.send_signal(signal.SIGKILL)
    recovered = opened(path)
    show("open after a crash", recovered)
    print(f"  {recovered['stored'] - before['stored']:,} were written in the {SECONDS_UNTIL_KILLED:g} s before it")
    show("open after that", opened(path))


def main(what: str, path: str, *arguments: str) -> None:
    match what:
        case "fill":
            fill(Path(path), int(arguments[0]))
        case "open":
            open_and_close(Path(path))
        case "write":
            anyio.run(write_until_killed, Path(path))


if __name__ == "__main__":
    main(*sys.argv[1:])
