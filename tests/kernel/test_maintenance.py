"""How often a store notes how far its queues are durable: what came since is read again after a crash."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from tests.kernel.commitlog.stores import open_store, pending
from verniermq.kernel.commitlog.checkpoint import Checkpoint
from verniermq.kernel.store import maintenance

pytestmark = pytest.mark.anyio


async def test_a_log_that_grows_fast_gets_its_checkpoint_sooner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "SYNC_QUEUES_SECONDS", 3600.0)
    monkeypatch.setattr(maintenance, "SYNC_QUEUES_BYTES", 4096)
    monkeypatch.setattr(maintenance, "MOST_SYNCING", 1e9)
    store = open_store(tmp_path, checkpoint_interval=0.01)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store.run)
        with anyio.fail_after(30):
            for _ in range(3):
                for _ in range(6):
                    store.append(pending(body=b"x" * 1000))
                store.dispatch()
                end = store.end
                while (Checkpoint.load(tmp_path / "checkpoint").queues_durable or 0) < end:  # noqa: ASYNC110
                    await anyio.sleep(0.005)
        tasks.cancel_scope.cancel()
    store.close()


@pytest.mark.parametrize(
    ("grown", "since", "took", "due"),
    [
        (0, 4.9, 0.0, False),
        (0, 5.0, 100.0, True),
        (maintenance.SYNC_QUEUES_BYTES - 1, 1.0, 0.0, False),
        (maintenance.SYNC_QUEUES_BYTES, 1.0, 0.2, True),
        (maintenance.SYNC_QUEUES_BYTES, 1.0, 0.3, False),
        (maintenance.SYNC_QUEUES_BYTES, 2.0, 0.3, True),
    ],
)
async def test_syncing_takes_a_small_part_of_the_time(
    tmp_path: Path, grown: int, since: float, took: float, due: bool
) -> None:
    store = open_store(tmp_path)
    keeping = store._maintenance
    keeping._saved = store._dispatcher.dispatched - grown

    assert keeping._sync_is_due(since, took) is due
    store.close()
