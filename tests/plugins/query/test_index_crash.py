"""The index is killed at every step, and its disk loses what was not synced: afterwards every key is found.

A kill leaves what was written up to then, in the order in which it was written; it is made by an exception out of the
system call at which it happens. A power cut leaves of each sector what it had at the last sync or what it has now, and
of each new or removed name either.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import attrs
import pytest

from tests.plugins.peer import Peer, peer
from tests.plugins.query.test_index import Sent
from tests.plugins.query.test_requests import bodies
from verniermq.kernel import ResponseCode
from verniermq.kernel.errors import RemotingError
from verniermq.plugins.query.index import Index
from verniermq.testing import broker_process

SECTOR = 64
CALLS = ("open", "pwrite", "ftruncate", "unlink", "fsync", "fdatasync", "posix_fallocate")
NOW_MS = 1_700_000_000_000


class Killed(BaseException):
    """The process is gone."""


@attrs.define(eq=False)
class History:
    """A commit log, an index that follows it, and what the checkpoint says of it."""

    folder: Path
    chance: random.Random
    log: list[Sent] = attrs.field(factory=list)
    full_before: int = 0
    index: Index = attrs.field(init=False)

    def start(self, *, clean: bool) -> None:
        """Open the index and bring it up to the log, as a broker does."""
        self.index = Index(self.folder, slots=7, entries=12, now_ms=lambda: NOW_MS)
        self.index.load(clean=clean, full_before=self.full_before)
        self.index.trim(self.end)
        self.index.add([message for message in self.log if message.commit_log_offset >= self.index.resume])

    @property
    def end(self) -> int:
        return self.log[-1].commit_log_offset + self.log[-1].size if self.log else 0

    def send(self) -> None:
        """Some messages, of which some have no key and some more than are left of a file."""
        new = []
        for _ in range(self.chance.randrange(1, 9)):
            number = len(self.log)
            keys = " ".join(f"key-{number}-{k}" for k in range(self.chance.choice((0, 0, 1, 2, 3, 30))))
            size = self.chance.randrange(100, 200)
            # The clock stands still, goes on, or is set back.
            time = NOW_MS + self.chance.choice((0, 0, number, -number * 1000))
            properties = {"KEYS": keys} if keys else {}
            self.log.append(Sent(self.end, properties, size=size, store_timestamp=time))
            new.append(self.log[-1])
        self.index.add(new)

    def sync(self) -> None:
        self.full_before = max(self.full_before, self.index.note_synced(self.index.sync()))

    def work(self, steps: int) -> None:
        for _ in range(steps):
            self.chance.choice((self.send, self.send, self.sync))()

    def missing(self) -> list[str]:
        """The keys by which their message is not found."""
        return [
            key
            for message in self.log
            for key in message.properties.get("KEYS", "").split()
            if message.commit_log_offset not in self.index.offsets("orders", key, 0, 2**62)
        ]


@contextmanager
def killed_at(call: int, patch: pytest.MonkeyPatch, *, after: bool) -> Iterator[Callable[[], int]]:
    """Let the process die at its so-many-th system call, before or after that is done; says how many there were."""
    made = 0

    def counting(real: Any) -> Any:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            nonlocal made
            made += 1
            if made == call and not after:
                raise Killed
            result = real(*args, **kwargs)
            if made == call:
                raise Killed
            return result

        return wrapped

    with patch.context() as changed:
        for name in CALLS:
            changed.setattr(os, name, counting(getattr(os, name)))
        yield lambda: made


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill loses nothing that was written, and the power here fails for a disk of our own."""
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda descriptor: None)


def live_and_die(folder: Path, seed: int, call: int, patch: pytest.MonkeyPatch) -> int:
    """One life that ends at a system call, and the one after it; returns how many calls the first one made."""
    history = History(folder, random.Random(seed))
    with killed_at(call, patch, after=bool(call % 2)) as made:
        try:
            history.start(clean=True)
            history.work(8)
        except Killed:
            pass
        calls = made()
    history.start(clean=False)
    assert history.missing() == [], f"seed {seed}, killed at call {call} of {calls}"
    history.work(3)
    history.index.finish()
    history.start(clean=True)
    assert history.missing() == [], f"seed {seed}, killed at call {call}, then stopped in order"
    return calls


@pytest.mark.parametrize("seed", range(3))
def test_every_key_is_found_after_a_kill_at_any_system_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    calls = live_and_die(tmp_path / "whole", seed, 0, monkeypatch)

    assert calls > 20
    for call in range(1, calls + 1):
        live_and_die(tmp_path / str(call), seed, call, monkeypatch)


@pytest.mark.parametrize("seed", range(3))
def test_every_key_is_found_after_a_kill_while_the_index_was_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    calls = 1_000
    call = 0
    while call < calls:
        call += 1
        folder = tmp_path / str(call)
        history = History(folder, random.Random(seed))
        history.start(clean=True)
        history.work(8)
        with killed_at(call, monkeypatch, after=bool(call % 2)) as made:
            try:
                history.start(clean=False)
            except Killed:
                pass
            calls = min(calls, made() + 1 if made() < call else calls)

        history.start(clean=False)

        assert history.missing() == [], f"seed {seed}, killed at call {call} of the start"
        shutil.rmtree(folder)


# --- the power fails ----------------------------------------------------------------------


@attrs.define(eq=False)
class Disk:
    """Knows what each file and directory had at its last sync."""

    root: Path
    files: dict[str, bytes] = attrs.field(factory=dict)
    names: set[str] = attrs.field(factory=set)

    @contextmanager
    def watched(self, patch: pytest.MonkeyPatch) -> Iterator[None]:
        def synced(descriptor: int) -> None:
            path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
            if path == self.root:
                self.names = set(os.listdir(path))
            elif path.parent == self.root and path.exists():
                self.files[path.name] = path.read_bytes()

        with patch.context() as changed:
            for name in ("fsync", "fdatasync"):
                changed.setattr(os, name, synced)
            yield

    def lose_power(self, target: Path, chance: random.Random) -> None:
        target.mkdir(parents=True)
        there = set(os.listdir(self.root)) if self.root.exists() else set()
        luck = chance.choice((0.0, 0.1, 0.5, 0.9, 1.0))
        for name in self.names | there:
            if (name in self.names and name in there) or chance.random() < (luck if name in there else 1 - luck):
                self._leave(name, target / name, chance, luck, gone=name not in there)

    def _leave(self, name: str, target: Path, chance: random.Random, luck: float, *, gone: bool) -> None:
        durable = self.files.get(name, b"")
        now = durable if gone else (self.root / name).read_bytes()
        content = bytearray(durable.ljust(len(now), b"\0"))
        for start in range(0, len(now), SECTOR):
            if chance.random() < luck:
                content[start : start + SECTOR] = now[start : start + SECTOR]
        target.write_bytes(content)


@pytest.mark.parametrize("seed", range(60))
def test_every_key_is_found_after_the_power_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    chance = random.Random(seed)
    history = History(tmp_path / "0", chance)
    clean = True
    for life in range(4):
        disk = Disk(history.folder)
        if history.folder.exists():  # found after the last cut: all of it is on the disk
            disk.names = set(os.listdir(history.folder))
            disk.files = {name: (history.folder / name).read_bytes() for name in disk.names}
        with disk.watched(monkeypatch), killed_at(chance.randrange(5, 150), monkeypatch, after=False):
            try:
                history.start(clean=clean)
                assert history.missing() == []
                history.work(15)
            except Killed:
                pass
        disk.lose_power(tmp_path / str(life + 1), chance)
        history.folder, clean = tmp_path / str(life + 1), False
        if chance.random() < 0.5 and history.log:
            # The log lost what was not synced of it, too, and the index may know more.
            del history.log[chance.randrange(max(1, len(history.log) - 10), len(history.log)) :]

    history.start(clean=False)

    assert history.missing() == []


# --- a whole broker -----------------------------------------------------------------------

SETTINGS = (
    "--set=plugins.query.slots=100",
    "--set=plugins.query.entries=60",
    "--set=plugins.query.sync_interval=20ms",
    "--set=store.segment_size=256KiB",
    "--set=store.max_message_size=64KiB",
    "--set=store.checkpoint_interval=50ms",
)


@pytest.mark.anyio
@pytest.mark.timeout(300)
async def test_a_killed_broker_finds_every_acknowledged_message_by_its_key(tmp_path: Path) -> None:
    chance = random.Random()
    acknowledged: list[int] = []
    numbers = iter(range(10**9))

    async def produce(address: str) -> None:
        async def one(client: Peer) -> None:
            number = next(numbers)
            answer = await client.send("orders", b"%d" % number, KEYS=f"k{number} every", UNIQ_KEY=f"U{number}")
            if answer.code == ResponseCode.SUCCESS:
                acknowledged.append(number)

        try:
            async with peer(address) as client:
                while not client.connection.closed:
                    async with anyio.create_task_group() as burst:
                        for _ in range(20):
                            burst.start_soon(one, client)
                    await anyio.sleep(0.02)
        except* RemotingError:
            pass

    with broker_process(tmp_path / "store", *SETTINGS) as process:
        for _ in range(4):
            async with anyio.create_task_group() as work:
                enough = len(acknowledged) + 30
                work.start_soon(produce, process.broker)
                with anyio.fail_after(60):
                    while len(acknowledged) < enough:  # noqa: ASYNC110 - the socket tells
                        await anyio.sleep(0.005)
                await anyio.sleep(chance.uniform(0, 0.25))
                await anyio.to_thread.run_sync(process.kill)
            await anyio.to_thread.run_sync(process.start)
        async with peer(process.broker) as client:
            lost = [
                number
                for number in acknowledged
                for key in (f"k{number}", f"U{number}")
                if await bodies(client, "orders", key) != [b"%d" % number]
            ]

    assert len(acknowledged) >= 120
    assert lost == []
