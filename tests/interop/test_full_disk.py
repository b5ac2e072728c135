"""A broker on a small ext4 that fills up: it refuses, lives, loses nothing, and goes on when there is room.

A real file system, since what happens to a store into a map is between it and the kernel: a tmpfs behaves otherwise.
Mounting takes root, so somebody else sees these skipped; root for whom the mount fails sees them fail.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.commitlog.stores import bodies, open_store
from verniermq.kernel import Command, Connection, RequestCode, connect

from .verniermq_process import VernierMQBroker

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(180),
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting a file system takes root"),
]

DISK = 200 << 20
SEGMENT = 64 << 20
CONFIG = f"""
[store]
segment_size = {SEGMENT}

[plugins.retention]  # it would refuse, or delete, before the disk is full
disk_force_at = 100
disk_refuse_at = 100
interval = "1h"
"""


@pytest.fixture(params=[4096, 1024], ids=lambda size: f"blocks of {size}")
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """An empty ext4; on small ones ``mkfs`` chooses blocks smaller than a page."""
    image, place = tmp_path / "image", tmp_path / "disk"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(DISK)
    subprocess.run(["mkfs.ext4", "-q", "-b", str(request.param), str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(place)], check=True)
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


class Sender:
    """Sends messages of any size, and remembers what was acknowledged."""

    def __init__(self, connection: Connection) -> None:
        self.acknowledged: list[bytes] = []
        self.refusals: set[str | None] = set()
        self._connection = connection
        self._chance = random.Random(4711)
        self._sent = 0

    async def send(self, largest: int = 60_000) -> bool:
        self._sent += 1
        body = b"%d:" % self._sent + self._chance.randbytes(1000) * self._chance.randrange(largest // 1000)
        fields = {
            "a": "group", "b": "full", "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "0", "h": "0",
            "i": f"KEYS\x01key-{self._sent}\x02", "j": "0", "k": "false", "m": "false", "n": "broker-a",
        }  # fmt: skip
        answer = await self._connection.request(Command.request(RequestCode.SEND_MESSAGE_V2, fields, body), timeout=20)
        if answer.code == 0:
            self.acknowledged.append(body)
        else:
            self.refusals.add(answer.remark)
        return answer.code == 0

    async def send_until(self, taken: bool) -> None:
        deadline = time.monotonic() + 60
        while await self.send() != taken:
            assert time.monotonic() < deadline, self.refusals


def fill(path: Path) -> None:
    """Take all the room that is left, to the last block."""
    with path.open("wb", buffering=0) as file:
        size = 1 << 20
        while size >= 512:
            try:
                file.write(bytes(size))
            except OSError:
                size //= 2
        os.fsync(file.fileno())


async def test_a_full_disk_is_an_error_for_senders_and_nothing_is_lost(disk: Path, tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    config.write_text(CONFIG)
    with VernierMQBroker(tmp_path, store=disk / "store", config=config) as broker:
        sender = Sender(await connect(broker.broker))
        for _ in range(200):
            assert await sender.send()

        # Somebody else takes the rest of the disk, and what was reserved before is all that can be written.
        fill(disk / "ballast")
        await sender.send_until(taken=False)
        for largest in (1_000, 10_000, 100_000, 1_000_000):
            for _ in range(10):
                await sender.send(largest)
        (disk / "ballast").unlink()
        await sender.send_until(taken=True)

        # And once more, with messages alone.
        with (disk / "ballast").open("wb") as ballast:
            ballast.write(bytes(16 << 20))
        await sender.send_until(taken=False)
        for largest in (1_000, 10_000, 100_000, 1_000_000):
            for _ in range(10):
                await sender.send(largest)
        (disk / "ballast").unlink()
        await sender.send_until(taken=True)

    store = open_store(disk / "store", segment_size=SEGMENT, queue_entries=300_000)
    assert bodies(store)["full", 0] == sender.acknowledged
    store.close()
