"""The dispatcher: one batch per turn, and recovery that adds only what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from verniermq.kernel.dispatch.dispatcher import Dispatcher
from verniermq.kernel.dispatch.event import DispatchEvent
from verniermq.kernel.message import SysFlag


def event(number: int, queue_offset: int, *, topic: str = "T", sys_flag: int = 0) -> DispatchEvent:
    return DispatchEvent(
        commit_log_offset=number * 100,
        size=100,
        queue_id=0,
        queue_offset=queue_offset,
        store_timestamp=1000 + number,
        store_host=bytes(8),
        topic=topic,
        tags_code=number,
        sys_flag=sys_flag,
        prepared_transaction_offset=0,
        properties={},
        born_timestamp=0,
        body_size=0,
        reconsume_times=0,
    )


@pytest.fixture
def dispatcher(tmp_path: Path) -> Dispatcher:
    return Dispatcher(tmp_path, queue_entries=10, open_files=10)


def codes(dispatcher: Dispatcher, topic: str = "T") -> list[int]:
    queue = dispatcher.queues[topic, 0]
    return [queue.entries(i, 1)[0][2] for i in range(queue.min_offset, queue.max_offset)]


def replay(dispatcher: Dispatcher, *events: DispatchEvent, fill_gaps: bool = False) -> list[bool]:
    return [dispatcher.replay(e, fill_gaps=fill_gaps) for e in events]


def test_only_what_is_durable_is_dispatched(dispatcher: Dispatcher) -> None:
    heard: list[int] = []
    dispatcher.listeners.append(lambda events: heard.extend(e.queue_offset for e in events))
    dispatcher.add_queue("T", 0)
    dispatcher.pending = [event(i, i) for i in range(5)]

    dispatcher.dispatch(250)
    assert heard == [0, 1]
    dispatcher.dispatch(250)
    dispatcher.dispatch()

    assert heard == [0, 1, 2, 3, 4]
    assert codes(dispatcher) == [0, 1, 2, 3, 4]
    assert (dispatcher.dispatched, dispatcher.store_timestamp) == (500, 1004)


def test_messages_of_a_topic_that_was_deleted_meanwhile_get_no_entry(dispatcher: Dispatcher) -> None:
    dispatcher.add_queue("T", 0)
    dispatcher.pending = [event(0, 0)]
    dispatcher.delete_topic("T")

    dispatcher.dispatch()

    assert dispatcher.queues == {}


def test_replaying_twice_adds_each_entry_once(dispatcher: Dispatcher) -> None:
    events = [event(i, i) for i in range(25)]

    replay(dispatcher, *events[:12])
    dispatcher.flush()
    replay(dispatcher, *events)

    assert codes(dispatcher) == list(range(25))
    assert dispatcher.queues["T", 0].next_offset == 25


def test_prepared_messages_are_replayed_without_an_entry(dispatcher: Dispatcher) -> None:
    replay(dispatcher, event(0, 0, sys_flag=SysFlag.TRANSACTION_PREPARED), event(1, 0))

    assert codes(dispatcher) == [1]


def test_a_gap_is_reported_and_then_filled_with_blanks(dispatcher: Dispatcher) -> None:
    assert replay(dispatcher, event(0, 0), event(1, 1), event(4, 4)) == [True, True, False]
    assert replay(dispatcher, event(4, 4), fill_gaps=True) == [True]

    queue = dispatcher.queues["T", 0]
    assert (queue.min_offset, queue.max_offset) == (0, 5)
    assert queue.entries(2, 2) == [(0, 0x7FFFFFFF, 0)] * 2
    assert queue.next_known(2, 5) == 4


def test_a_queue_whose_numbers_begin_anew_begins_anew(dispatcher: Dispatcher) -> None:
    replay(dispatcher, *[event(i, i) for i in range(15)])
    dispatcher.flush()
    replay(dispatcher, event(20, 0), event(21, 1))
    dispatcher.flush()

    assert codes(dispatcher) == [20, 21]
    again = Dispatcher(dispatcher.root, queue_entries=10, open_files=10)
    again.load()
    assert codes(again) == [20, 21]


def test_a_file_that_cannot_be_written_keeps_its_entries_in_memory(dispatcher: Dispatcher) -> None:
    replay(dispatcher, event(0, 0, topic="A"), event(1, 0, topic="B"))
    (dispatcher.root / "B").touch()

    with pytest.raises(OSError, match="B"):
        dispatcher.flush()
    assert codes(dispatcher, "B") == [1]

    (dispatcher.root / "B").unlink()
    dispatcher.flush()
    again = Dispatcher(dispatcher.root, queue_entries=10, open_files=10)
    again.load()
    assert (codes(again, "A"), codes(again, "B")) == ([0], [1])


def test_directories_that_are_no_queues_are_left_alone(dispatcher: Dispatcher) -> None:
    replay(dispatcher, event(0, 0))
    dispatcher.flush()
    (dispatcher.root / "T" / "notes").mkdir()
    (dispatcher.root / "empty").mkdir()

    again = Dispatcher(dispatcher.root, queue_entries=10, open_files=10)
    assert again.load() == 0
    assert list(again.queues) == [("T", 0)]
