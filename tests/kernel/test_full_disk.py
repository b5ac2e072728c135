"""The disk is full: what was acknowledged is neither lost nor hidden, and it is said what to do."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import anyio
import pytest

from tests.kernel.commitlog.fulldisk import FullDisk
from tests.kernel.commitlog.stores import abandon, bodies, open_store, pending
from tests.plugins.peer import served
from verniermq.kernel.codes import RequestCode, ResponseCode
from verniermq.kernel.commitlog.mapped import write_all
from verniermq.kernel.errors import CannotOpenStore, StoreNotWritable
from verniermq.kernel.store import Store

pytestmark = pytest.mark.anyio

TOPICS = 5
ROOM = 1990
"""For the entries of all queues but half of the last one: 100 entries have 2000 bytes."""


def fill(store: Store, count: int) -> dict[tuple[str, int], list[bytes]]:
    """Messages on several topics, all of them taken."""
    for number in range(count):
        store.append(pending(f"T{number % TOPICS}", body=b"%d" % number))
    store.dispatch()
    return bodies(store)


# --- one write -----------------------------------------------------------------------------


def test_a_write_that_the_system_did_half_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, position: real(descriptor, bytes(data)[:3], position))

    with open(tmp_path / "file", "wb") as file:
        write_all(file.fileno(), b"0123456789", 5)

    assert (tmp_path / "file").read_bytes() == bytes(5) + b"0123456789"


def test_a_write_that_the_disk_took_only_half_of_is_an_error_that_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FullDisk(monkeypatch).room = 4

    with open(tmp_path / "file", "wb") as file, pytest.raises(OSError, match="No space left") as raised:
        write_all(file.fileno(), b"0123456789", 0)

    assert (raised.value.errno, raised.value.filename) == (errno.ENOSPC, str(tmp_path / "file"))


def test_a_write_of_nothing_without_an_error_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, position: 0)

    with open(tmp_path / "file", "wb") as file, pytest.raises(OSError, match="No space left"):
        write_all(file.fileno(), b"0123456789", 0)


def test_no_other_place_writes_to_a_descriptor() -> None:
    root = Path(__file__).parents[2]
    sources = [
        path
        for folder in ("kernel", "protocol", "plugins", "client", "contrib")
        for path in (root / folder).rglob("*.py")
    ]
    writes = re.compile(r"\bos\.(p?writev?)\(")

    found = [str(path.relative_to(root)) for path in sources for _ in writes.finditer(path.read_text())]

    assert found == ["kernel/commitlog/mapped.py"]


# --- consume queues ------------------------------------------------------------------------


async def test_queue_entries_that_found_no_room_are_written_when_there_is_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FullDisk(monkeypatch)
    store = open_store(tmp_path, checkpoint_interval=0.01)
    expected = fill(store, 100)
    disk.room = ROOM

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store.run)
        with anyio.fail_after(30):
            while not store._refusals:  # noqa: ASYNC110 - what is waited for has no event
                await anyio.sleep(0.01)
        with pytest.raises(StoreNotWritable, match="No space left"):
            store.append(pending())
        assert bodies(store) == expected
        disk.room = None
        with anyio.fail_after(30):
            while store._refusals:  # noqa: ASYNC110 - as above
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()

    assert bodies(store) == expected
    store.close()
    assert not (tmp_path / "abort").exists()
    again = open_store(tmp_path)
    assert bodies(again) == expected
    again.close()


@pytest.mark.parametrize("orderly", [True, False])
async def test_a_stop_on_a_full_disk_loses_no_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, orderly: bool
) -> None:
    disk = FullDisk(monkeypatch)
    store = open_store(tmp_path)
    fill(store, 20)
    await store.save_checkpoint()
    expected = fill(store, 100)
    disk.room = ROOM

    if orderly:
        store.close()
    else:
        with pytest.raises(OSError, match="No space left"):
            store._dispatcher.write_now()
        abandon(store)

    assert (tmp_path / "abort").exists()
    disk.room = None
    again = open_store(tmp_path)
    assert bodies(again) == expected
    again.close()


# --- on a real file system -----------------------------------------------------------------


def on_a_small_disk(script: str, root: Path) -> str:
    """Run a script with a file system of 2 MiB at ``root``, and return what it printed."""
    if (
        shutil.which("unshare") is None
        or subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("this system allows no private mounts")
    prelude = """
        import os, subprocess, sys
        from pathlib import Path
        sys.path.insert(0, sys.argv[2])
        from tests.kernel.commitlog.stores import abandon, bodies, open_store, pending
        from verniermq.kernel.errors import VernierMQError
        root = Path(sys.argv[1])
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(root)], check=True)
    """
    here = Path(__file__).parents[2]
    done = subprocess.run(
        ["unshare", "-rm", sys.executable, "-c", dedent(prelude) + dedent(script), str(root), str(here)],
        capture_output=True, check=False, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


SEVERAL_TOPICS = """
    settings = {"segment_size": 1 << 20, "queue_entries": 2000}
    for stopped in (True, False):
        store = open_store(root / "store", **settings)
        for number in range(3000):
            store.append(pending(f"T{number % 4}", body=b"%d" % number))
        store.dispatch()
        expected = bodies(store)
        with open(root / "ballast", "wb", buffering=0) as ballast:
            try:
                while True:
                    ballast.write(bytes(4096))
            except OSError:
                pass
            # Room for a part of what the queues need.
            ballast.truncate(ballast.tell() - 6 * 4096)
        for _ in range(2):
            try:
                store._dispatcher.write_now()
            except OSError as error:
                print("refused", error.filename)
        assert bodies(store) == expected
        store.close() if stopped else abandon(store)
        assert (root / "store" / "abort").exists()
        (root / "ballast").unlink()
        again = open_store(root / "store", **settings)
        assert bodies(again) == expected
        again.close()
"""


def test_on_a_real_full_disk_every_entry_is_found_again(tmp_path: Path) -> None:
    printed = on_a_small_disk(SEVERAL_TOPICS, tmp_path)

    assert printed.count(f"refused {tmp_path}/store/consumequeue/T") == 4


# --- starting, and changing tables ---------------------------------------------------------


@pytest.mark.parametrize("room", [0, 1])
def test_a_start_that_finds_no_room_is_refused_with_what_to_do_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    store = open_store(tmp_path)
    expected = fill(store, 100)
    store.close()
    disk = FullDisk(monkeypatch)
    disk.room = room

    with pytest.raises(CannotOpenStore) as refused:
        open_store(tmp_path)

    assert str(refused.value) == (
        f"the store {tmp_path} cannot be opened: No space left on device ({tmp_path}/abort); "
        "free some disk space, and start again: nothing is lost"
    )
    disk.room = None
    again = open_store(tmp_path)
    assert again.was_clean
    assert bodies(again) == expected
    again.close()


@pytest.mark.parametrize("inside", [".", "store"])
def test_a_store_whose_place_is_a_file_says_which(tmp_path: Path, inside: str) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"")

    with pytest.raises(CannotOpenStore) as refused:
        open_store(file / inside)

    assert str(refused.value) == (
        f"the store {file / inside} cannot be opened: {file} is not a folder; move it away, or set [store] path"
    )


def test_a_recovery_that_finds_no_room_is_refused_and_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path)
    expected = fill(store, 100)
    abandon(store)
    monkeypatch.setattr("verniermq.kernel.store.recovery.KEPT", 1)  # more entries than may wait in memory
    disk = FullDisk(monkeypatch)
    disk.room = ROOM

    with pytest.raises(CannotOpenStore, match=r"No space left on device \(.*/consumequeue/T./0/.*free some disk space"):
        open_store(tmp_path)

    disk.room = None
    again = open_store(tmp_path)
    assert not again.was_clean
    assert bodies(again) == expected
    again.close()


START = """
    import contextlib
    store = root / "store"
    open_store(store, segment_size=1 << 20).close()
    with open(root / "ballast", "wb", buffering=0) as ballast, contextlib.suppress(OSError):
        while True:
            ballast.write(bytes(4096))
    for path in (store, root / "new"):
        command = [sys.executable, "-m", "verniermq.cli", "broker", "--port", "0", "--namesrv-port", "0"]
        command += ["--store", str(path), "--set", "store.segment_size=1MiB", "--set", "store.max_message_size=64KiB"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        print(done.returncode, done.stderr.count("\\n"), done.stderr, end="")
"""


def test_a_broker_that_is_started_on_a_full_disk_says_so_in_one_line(tmp_path: Path) -> None:
    existing, new = on_a_small_disk(START, tmp_path).splitlines()

    told = "cannot be opened: No space left on device"
    assert existing == (
        f"2 1 verniermq: the store {tmp_path}/store {told} ({tmp_path}/store/abort); "
        "free some disk space, and start again: nothing is lost"
    )
    assert new.startswith(f"2 1 verniermq: the store {tmp_path}/new {told}")


async def test_a_topic_that_cannot_be_written_is_answered_with_an_error_and_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = {"readQueueNums": 4, "writeQueueNums": 4, "perm": 6, "defaultTopic": "TBW102"}
    table = tmp_path / "config" / "topics.json"
    full, real = True, os.replace

    def replace(source: Any, target: Any) -> None:
        if full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(source, target)

    monkeypatch.setattr("verniermq.kernel.tables.document.RETRY_SECONDS", 0.01)
    async with served(tmp_path) as (_, client):
        monkeypatch.setattr(os, "replace", replace)
        refused = await client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic="orders", **fields)
        known = await client.ask(RequestCode.GET_TOPIC_CONFIG, topic="orders")
        full = False
        with anyio.fail_after(30):
            create = RequestCode.UPDATE_AND_CREATE_TOPIC
            while (await client.ask(create, topic="bills", **fields)).code != ResponseCode.SUCCESS:
                pass  # an attempt was under way that met the full disk
        written = table.read_bytes()

    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert refused.remark == (
        f"the change is in effect, but not on the disk: {table} cannot be written: No space left on device; "
        "the broker keeps trying: free some disk space, or the change is lost when it stops"
    )
    assert known.code == ResponseCode.SUCCESS
    assert b"orders" in written
    assert b"bills" in written


async def test_a_first_send_whose_topic_cannot_be_written_is_refused_and_nothing_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full, real = True, os.replace

    def replace(source: Any, target: Any) -> None:
        if full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(source, target)

    monkeypatch.setattr("verniermq.kernel.tables.document.RETRY_SECONDS", 0.01)
    async with served(tmp_path) as (broker, client):
        monkeypatch.setattr(os, "replace", replace)
        refused = await client.send("orders", b"one")
        stored = broker.store.end
        full = False
        with anyio.fail_after(30):
            while (await client.send("orders", b"two")).code != ResponseCode.SUCCESS:
                pass  # an attempt was under way that met the full disk

        assert await client.bodies("orders") == [b"two"]
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "No space left on device" in refused.remark
    assert stored == 0
