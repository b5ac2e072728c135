"""A log of which only a part may be dispatched, and the rest may be cut off."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from tests.kernel.commitlog.stores import SEGMENT, abandon, append_run, bodies, make_store, open_store, pending
from verniermq.kernel.errors import StoreError
from verniermq.kernel.store import Store

pytestmark = pytest.mark.anyio

END: dict[str, Callable[[Store], None]] = {"orderly": Store.close, "killed": abandon}


def open_limited(path: Path) -> Store:
    store = make_store(path)
    store.dispatch_limit = 0
    store.open()
    return store


def append(store: Store, *numbers: int) -> list[int]:
    """Where each message ends."""
    ends = [store.append(pending(body=b"%06d" % number * 50)).end for number in numbers]
    store.dispatch()
    return ends


def numbers(store: Store) -> list[int]:
    return [int(body[:6]) for body in bodies(store).get(("T1", 0), [])]


def test_what_lies_behind_the_limit_is_in_no_queue_until_the_limit_is_raised(tmp_path: Path) -> None:
    store = open_limited(tmp_path)
    first, second, third = append(store, 0, 1, 2)
    assert (numbers(store), store.dispatched_end) == ([], 0)

    store.dispatch_limit = second + 1
    assert (numbers(store), store.dispatched_end) == ([0, 1], second)
    assert [event.end for event in store.undispatched] == [third]

    store.dispatch_limit = None
    assert numbers(store) == [0, 1, 2]
    store.close()
    assert first < second < third


@pytest.mark.parametrize("end", END)
def test_a_start_dispatches_no_more_than_was_dispatched_before(tmp_path: Path, end: str) -> None:
    store = open_limited(tmp_path)
    ends = append(store, *range(40))
    store.dispatch_limit = ends[9]
    store.flush()
    store._maintenance._note(store.dispatched_end, 1, store._dispatcher.entries, 0)
    END[end](store)

    store = open_limited(tmp_path)
    assert (store.end, store.dispatch_limit, store.dispatched_end) == (ends[-1], ends[9], ends[9])
    assert numbers(store) == list(range(10))
    store.dispatch_limit = ends[-1]
    assert numbers(store) == list(range(40))
    END[end](store)

    store = open_store(tmp_path)  # alone
    assert numbers(store) == list(range(40))
    store.close()


@pytest.mark.parametrize("end", END)
def test_a_store_that_held_something_back_opens_alone_with_all_of_it(tmp_path: Path, end: str) -> None:
    store = open_limited(tmp_path)
    ends = append(store, *range(30))
    store.dispatch_limit = ends[4]
    END[end](store)

    store = open_store(tmp_path)
    assert numbers(store) == list(range(30))
    assert store.append(pending()).queue_offset == 30
    store.close()


@pytest.mark.parametrize("left", [1, 12, 20, 39])
@pytest.mark.parametrize("end", END)
async def test_a_cut_log_goes_on_where_it_was_cut(tmp_path: Path, left: int, end: str) -> None:
    store = open_limited(tmp_path)
    ends = append(store, *range(40))
    assert ends[-1] > SEGMENT
    store.dispatch_limit = ends[0]
    append_run(store, "T1", 0, [b"x" * 40] * 3)

    await store.cut(ends[left - 1])
    store.take_over()

    assert store.end == store.copied_end == ends[left - 1]
    again = append(store, *range(100, 110))
    store.dispatch_limit = store.end
    expected = [*range(left), *range(100, 110)]
    assert numbers(store) == expected
    END[end](store)
    store = open_store(tmp_path)
    assert (store.end, numbers(store)) == (again[-1], expected)
    store.close()


async def test_a_batch_may_be_cut_in_two(tmp_path: Path) -> None:
    store = open_limited(tmp_path)
    run = append_run(store, "T1", 0, [b"%06d" % number for number in range(5)])

    await store.cut(run.event(2).end)
    store.take_over()

    assert store.append(pending(body=b"000077")).queue_offset == 3
    store.dispatch_limit = store.end
    assert numbers(store) == [0, 1, 2, 77]
    store.close()


async def test_what_is_in_the_queues_is_not_cut_off(tmp_path: Path) -> None:
    store = open_limited(tmp_path)
    ends = append(store, 0, 1, 2)
    store.dispatch_limit = ends[1]

    with pytest.raises(StoreError, match=f"cannot be cut off at {ends[0]}: messages up to {ends[1]} are in"):
        await store.cut(ends[0])

    assert store.end == ends[2]
    store.close()


@pytest.mark.parametrize("dispatched", [0, 3, 15])
def test_a_copy_that_becomes_the_original_numbers_behind_what_it_copied(tmp_path: Path, dispatched: int) -> None:
    master, slave = open_store(tmp_path / "master"), open_limited(tmp_path / "slave")
    ends = append(master, *range(15))
    append_run(master, "T2", 1, [b"a", b"b"])
    block = master.read_block(0, master.end)
    assert block
    slave.append_raw(0, block)
    torn = master.append(pending(body=b"z" * 100))
    part = master.read_block(torn.commit_log_offset, 50)
    assert part
    slave.append_raw(slave.end, part)
    slave.dispatch_limit = ends[dispatched - 1] if dispatched else 0

    slave.take_over()

    assert slave.end == torn.commit_log_offset
    assert slave.append(pending(body=b"000015")).queue_offset == 15
    assert append_run(slave, "T2", 1, [b"c", b"d"]).queue_offset == 2
    slave.dispatch_limit = slave.end
    assert numbers(slave) == list(range(16))
    assert bodies(slave)["T2", 1] == [b"a", b"b", b"c", b"d"]
    master.close()
    slave.close()


def test_own_batches_and_a_masters_messages_may_wait_together(tmp_path: Path) -> None:
    """A master that is replaced, and whose last messages the new one has."""
    old, new = open_limited(tmp_path / "old"), open_store(tmp_path / "new")
    append_run(old, "T1", 0, [b"000000", b"000001"])
    block = old.read_block(0, old.end)
    assert block
    new.append_raw(0, block)
    new.dispatch()
    append(new, 2, 3)

    more = new.read_block(old.end, 1 << 20)
    assert more
    old.append_raw(old.end, more)
    old.dispatch_limit = old.end

    assert numbers(old) == numbers(new) == [0, 1, 2, 3]
    old.close()
    new.close()


async def test_whoever_insists_waits_for_the_disk_although_flushes_are_asynchronous(tmp_path: Path) -> None:
    store = open_store(tmp_path, flush="async", flush_interval=3600.0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store.run)
        (end,) = append(store, 0)
        assert await store.durable(end)
        assert store.durable_end < end

        with anyio.fail_after(30):
            assert await store.durable(end, force=True)

        assert store.durable_end == end
        tasks.cancel_scope.cancel()
    store.close()


def test_where_whole_records_end_is_known_after_own_appends_too(tmp_path: Path) -> None:
    master, slave = open_store(tmp_path / "master"), open_store(tmp_path / "slave")
    (end,) = append(master, 0)
    block = master.read_block(0, end - 1)
    assert block
    slave.append_raw(0, block)
    assert (slave.copied_end, slave.end) == (0, end - 1)
    slave.take_over()

    append(slave, 1, 2)

    assert slave.copied_end == slave.end == 2 * end
    master.close()
    slave.close()


@pytest.mark.parametrize("way", ["cut", "take over"])
async def test_a_limit_within_a_record_that_goes_is_lowered(tmp_path: Path, way: str) -> None:
    """Or the next record would count as confirmed before anybody else has it."""
    master, slave = open_store(tmp_path / "master"), open_limited(tmp_path / "slave")
    first, second = append(master, 0, 1)
    block = master.read_block(0, second - 1)
    assert block
    slave.append_raw(0, block)
    slave.dispatch_limit = second - 1

    if way == "cut":
        await slave.cut(slave.copied_end)
    slave.take_over()

    assert slave.end == slave.dispatch_limit == first
    append(slave, 7)
    assert numbers(slave) == [0]
    master.close()
    slave.close()
