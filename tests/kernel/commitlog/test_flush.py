"""When a message is durable, and who waits for it."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import pytest

from tests.kernel.commitlog.stores import abandon, bodies, open_store, pending
from verniermq.kernel.errors import StoreError, StoreNotWritable
from verniermq.kernel.store import Store

pytestmark = pytest.mark.anyio

NOBODY = 65534


@asynccontextmanager
async def running(store: Store) -> AsyncIterator[Store]:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store.run)
        yield store
        tasks.cancel_scope.cancel()


class Syncs:
    """The calls that reach the disk, with a switch that makes them fail as a broken one does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.fail: int | None = None
        real = os.fdatasync

        def fdatasync(descriptor: int) -> None:
            self.count += 1
            if self.fail is not None:
                raise OSError(self.fail, os.strerror(self.fail))
            real(descriptor)

        monkeypatch.setattr(os, "fdatasync", fdatasync)


async def test_with_asynchronous_flush_nobody_waits(tmp_path: Path) -> None:
    store = open_store(tmp_path)

    assert not store.waits_for_disk
    assert await store.durable(store.append(pending()).end)
    assert store.durable_end == 0
    store.close()


async def test_asynchronous_flush_follows_by_itself(tmp_path: Path) -> None:
    store = open_store(tmp_path, flush_interval=0.01, flush_pages=0)
    async with running(store):
        end = store.append(pending()).end
        with anyio.fail_after(30):
            while store.durable_end < end:  # noqa: ASYNC110 - the flush happens in its own time
                await anyio.sleep(0.01)
    store.close()


async def test_with_synchronous_flush_the_answer_waits_for_the_disk(tmp_path: Path) -> None:
    store = open_store(tmp_path, flush="sync")
    async with running(store):
        appended = store.append(pending())
        assert store.durable_end == 0

        assert await store.durable(appended.end)

        assert store.durable_end >= appended.end
    store.close()


async def test_one_sync_serves_all_who_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path, flush="sync", segment_size=1 << 20)
    syncs = Syncs(monkeypatch)
    answered = 0

    async def send() -> None:
        nonlocal answered
        appended = store.append(pending())
        assert await store.durable(appended.end)
        answered += 1

    async with running(store), anyio.create_task_group() as producers:
        for _ in range(200):
            producers.start_soon(send)

    assert answered == 200
    assert syncs.count < 20
    store.close()


async def test_consumers_see_only_what_is_durable_with_synchronous_flush(tmp_path: Path) -> None:
    store = open_store(tmp_path, flush="sync", flush_timeout=0.05)
    appended = store.append(pending())
    await anyio.sleep(0.01)
    assert store.max_offset("T1", 0) == 0
    assert not await store.durable(appended.end)

    async with running(store):
        with anyio.fail_after(30):
            while store.max_offset("T1", 0) == 0:  # noqa: ASYNC110 - nobody asked for the answer: the store acts alone
                await anyio.sleep(0.01)
    store.close()


async def test_a_disk_that_does_not_answer_in_time_is_reported(tmp_path: Path) -> None:
    store = open_store(tmp_path, flush="sync", flush_timeout=0.02)

    assert await store.durable(store.append(pending()).end) is False

    store.close()
    again = open_store(tmp_path)
    assert bodies(again) == {("T1", 0): [b"hello"]}
    again.close()


async def test_each_waits_its_own_time_and_who_gives_up_harms_nobody(tmp_path: Path) -> None:
    store = open_store(tmp_path, flush="sync", flush_timeout=1.5)
    waited: list[float] = []
    much_later = anyio.Event()

    async def wait(end: int) -> None:
        began = anyio.current_time()
        assert await store.durable(end) is False
        waited.append(anyio.current_time() - began)
        assert not much_later.is_set()

    async def count_on() -> None:
        await anyio.sleep(2.5)
        much_later.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait, store.append(pending()).end)
        with anyio.move_on_after(0.05):
            await store.durable(store.append(pending()).end)
        tasks.start_soon(wait, store.append(pending()).end)
        tasks.start_soon(count_on)  # had the second one's time begun when the first one's ended, it would be 2.95 s

    assert len(waited) == 2
    assert min(waited) >= 1.49
    store.close()


@pytest.mark.parametrize("reason", [errno.EIO, errno.ENOSPC, errno.EDQUOT], ids=lambda reason: errno.errorcode[reason])
async def test_after_a_failed_sync_nothing_is_taken_for_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: int
) -> None:
    """The kernel drops what it could not write; a later sync that works proves nothing about it."""
    store = open_store(tmp_path, flush="sync", flush_timeout=60, flush_interval=0.01)
    syncs = Syncs(monkeypatch)
    async with running(store):
        syncs.fail = reason
        first = store.append(pending())
        with anyio.fail_after(30):
            assert not await store.durable(first.end)  # at once: there is nothing to wait for
        syncs.fail = None
        await anyio.sleep(0.1)

        with pytest.raises(StoreNotWritable, match="restart the broker"):
            store.append(pending())
        assert not await store.durable(first.end)
        await store.save_checkpoint()
    assert store.durable_end == 0
    store.close()

    again = open_store(tmp_path)
    assert not again.was_clean  # so the log is read again, and what is whole of it is what there is
    assert bodies(again) == {("T1", 0): [b"hello"]}
    again.close()


async def test_a_sync_that_works_right_after_one_that_failed_proves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path, flush="sync")
    first = store.append(pending())
    real, outcomes = store._log.sync, iter([OSError(errno.EIO, "Input/output error"), None])

    def sync() -> int:
        if (error := next(outcomes)) is not None:
            raise error
        return real()

    monkeypatch.setattr(store._log, "sync", sync)
    async with anyio.create_task_group() as tasks:
        for _ in range(2):  # as the log's own loop and the checkpoint's do
            tasks.start_soon(store._flusher.flush)

    assert next(outcomes, "both were tried") == "both were tried"
    assert store.durable_end == 0
    assert not await store.durable(first.end)
    store.close()


async def test_queues_and_checkpoint_follow_by_themselves(tmp_path: Path) -> None:
    store = open_store(tmp_path, checkpoint_interval=0.01)
    async with running(store):
        for i in range(50):
            store.append(pending(body=b"%d" % i))
        with anyio.fail_after(30):
            while (queue := store.queue("T1", 0)) is None or queue.tail:  # noqa: ASYNC110 - as above
                await anyio.sleep(0.01)
    assert bodies(store)["T1", 0] == [b"%d" % i for i in range(50)]
    entries = (tmp_path / "consumequeue" / "T1" / "0" / f"{0:020d}").read_bytes()
    assert any(entries[49 * 20 : 50 * 20])
    abandon(store)


FULL_DISK = """
import os, subprocess, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from tests.kernel.commitlog.stores import abandon, bodies, open_store, pending
from verniermq.kernel.errors import StoreNotWritable

root = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(root)], check=True)
settings = {"segment_size": 1 << 20}
store = open_store(root / "store", **settings)
ballast = root / "ballast"
ballast.write_bytes(bytes(1600 << 10))
stored = 0
try:
    while True:
        store.append(pending(body=b"%d" % stored * 100))
        stored += 1
except StoreNotWritable as error:
    assert "No space left" in str(error), error
assert stored > 100, stored
ballast.unlink()
for _ in range(50):
    store.append(pending(body=b"%d" % stored * 100))
    stored += 1
expected = {("T1", 0): [b"%d" % i * 100 for i in range(stored)]}
store.dispatch()
assert bodies(store) == expected
abandon(store)
again = open_store(root / "store", **settings)
assert bodies(again) == expected
again.close()
third = open_store(root / "store", **settings)
assert bodies(third) == expected
third.close()
print("stored", stored)
"""


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs Linux namespaces to mount a small file system")
def test_a_full_disk_refuses_writes_loses_nothing_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    allowed = subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False)
    if allowed.returncode:
        pytest.skip("this system allows no private mounts")
    here = Path(__file__).parents[3]

    result = subprocess.run(
        ["unshare", "-rm", sys.executable, "-c", FULL_DISK, str(tmp_path), str(here)],
        capture_output=True,
        check=False,
        text=True,
    )

    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("stored")


@contextmanager
def bound_by_permissions() -> Iterator[None]:
    """As somebody who may not write anywhere he likes, which the superuser may."""
    if os.geteuid():
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_read_only_directory_is_a_clear_error() -> None:
    # Not in tmp_path: nobody but its owner could even look into that, which is another error.
    with TemporaryDirectory() as directory:
        store = Path(directory)
        store.chmod(0o555)
        with bound_by_permissions(), pytest.raises(StoreError, match="cannot be opened: Permission denied"):
            open_store(store)
        store.chmod(0o700)
        open_store(store).close()
