"""A backup of a broker that is being sent to: restored, it has every message that was acknowledged before it began."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from click.testing import CliRunner

from tests.plugins.peer import Peer, peer
from verniermq.cli import main
from verniermq.cli.backup import UNFINISHED, back_up, restore
from verniermq.kernel.errors import StoreError
from verniermq.testing import running_broker

SMALL_SEGMENTS = {"store__segment_size": "64KiB", "store__max_message_size": "4KiB"}
SIZES = ["--set=store.segment_size=64KiB", "--set=store.max_message_size=4KiB", "--set=store.queue_entries=10000"]


async def fill(client: Peer, bodies: list[bytes], count: int) -> None:
    for _ in range(count):
        body = b"%06d" % len(bodies) + b"x" * 200
        await client.sent("orders", body)
        bodies.append(body)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.anyio
async def test_what_was_acknowledged_before_the_backup_is_in_what_is_restored(tmp_path: Path) -> None:
    store, backup, restored = tmp_path / "store", tmp_path / "backup", tmp_path / "restored"
    bodies: list[bytes] = []
    async with running_broker(store, **SMALL_SEGMENTS) as broker, peer(broker.address) as client:
        await fill(client, bodies, 500)
        acknowledged = len(bodies)

        async def go_on() -> None:
            while True:
                await fill(client, bodies, 20)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(go_on)
            copied = await anyio.to_thread.run_sync(back_up, store, backup)
            tasks.cancel_scope.cancel()
        before = contents(backup)
        await fill(client, bodies, 400)
        assert contents(backup) == before, "what is sent later does not change a backup"
    whole = restore(backup, restored)
    checked = CliRunner().invoke(main, ["store", "check", str(restored), "--json", *SIZES])
    async with running_broker(restored, **SMALL_SEGMENTS) as broker, peer(broker.address) as client:
        found = await client.bodies("orders")
        await client.sent("orders", b"and it goes on")

    assert copied.linked >= 1
    assert whole.linked == 0
    assert checked.exit_code == 0, checked.output
    assert len(found) >= acknowledged
    assert found[: len(bodies)] == bodies[: len(found)]


def test_the_commands_say_what_they_copied_and_refuse_what_is_there(tmp_path: Path) -> None:
    store, backup, restored = tmp_path / "store", tmp_path / "backup", tmp_path / "restored"

    async def run() -> None:
        async with running_broker(store) as broker, peer(broker.address) as client:
            await client.sent("orders", b"one")

    anyio.run(run)
    runner = CliRunner()
    done = runner.invoke(main, ["store", "backup", str(backup), "--store", str(store), "--json"])
    again = runner.invoke(main, ["store", "backup", str(backup), "--store", str(store)])
    nothing = runner.invoke(main, ["store", "backup", str(tmp_path / "x"), "--store", str(tmp_path / "nothing")])
    back = runner.invoke(main, ["store", "restore", str(backup), "--store", str(restored)])
    over = runner.invoke(main, ["store", "restore", str(backup), "--store", str(store)])

    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["bytes"] < 1 << 20, "holes are not written"
    assert (again.exit_code, "is there already" in again.output) == (2, True)
    assert (nothing.exit_code, "is no store" in nothing.output) == (2, True)
    assert (back.exit_code, over.exit_code) == (0, 2)
    assert (restored / "config" / "topics.json").read_bytes() == (store / "config" / "topics.json").read_bytes()


def test_a_backup_that_did_not_come_to_its_end_is_not_restored(tmp_path: Path) -> None:
    (tmp_path / "backup" / "commitlog").mkdir(parents=True)
    (tmp_path / "backup" / UNFINISHED).touch()

    with pytest.raises(StoreError, match="is not whole"):
        restore(tmp_path / "backup", tmp_path / "store")
