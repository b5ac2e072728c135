"""The compiled lane leaves the bytes that the chain in Python leaves: log, queues, key index and answers.

Without the compiled module (``make fast``) there is nothing to compare, and these tests are left out.
"""

from __future__ import annotations

import errno
import random
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tests.kernel import frames
from tests.kernel.twins import Twin, hasty, standing_still, take_plain_way, twin
from verniermq.kernel.accel import lane
from verniermq.kernel.broker import Broker
from verniermq.kernel.remoting import Command, Connection, Handler

pytestmark = pytest.mark.anyio

compiled_only = pytest.mark.skipif(
    lane.compiled_lane() is None, reason="the lane is not compiled; make fast compiles it"
)

FRAMES = 600


class Counting:
    """A lane that counts what it served."""

    def __init__(self, broker: Broker) -> None:
        """Of the connections that are made from now on."""
        assert broker.server.lane is not None
        self.bytes = self.given = 0
        self._lane = broker.server.lane
        broker.server.lane = self

    @property
    def codes(self) -> frozenset[int]:
        return self._lane.codes

    def take(self, data: bytes, start: int, connection: Any) -> tuple[int, bytes]:
        end, answers = self._lane.take(data, start, connection)
        self.bytes += end - start
        if start == 0:
            self.given += len(data)
        return end, answers


def count(one: Twin) -> Counting:
    counting = Counting(one.broker)
    one.connect()
    return counting


async def meet(one: Twin, topics: Sequence[str] = frames.TOPICS) -> None:
    """Have each topic and each of its queues, as after a while."""
    for number, topic in enumerate(topics):
        for queue in range(4):
            fields = {
                "a": "producers", "b": topic, "c": "TBW102", "d": "4", "e": str(queue), "f": "0", "g": "1", "h": "0",
                "i": f"UNIQ_KEY\x01{frames.unique_key(number)}\x02",
            }  # fmt: skip
            await one.give(frames.Command(frames.SEND, 1, 0, fields, language="JAVA", version=479).encode())


async def outcome(
    folder: Path, patch: pytest.MonkeyPatch, chunks: Iterator[bytes], *, compiled: bool, **clock: Callable[[], float]
) -> tuple[list[bytes], dict[str, bytes], float]:
    """What is answered to each chunk, what is left behind, and how much of it the lane served."""
    if not compiled:
        take_plain_way(patch)
    async with twin(folder, patch, **clock) as one:
        assert (one.broker._lane is not None) == compiled
        counting = count(one) if compiled else None
        await meet(one)
        answers = [await one.give(chunk) for chunk in chunks]
        share = 0.0 if counting is None else counting.bytes / counting.given
        return answers, one.left(), share


@compiled_only
@pytest.mark.parametrize(("plain", "binary"), [(0.995, 0.0), (0.995, 1.0), (0.6, 0.2)])
async def test_a_stream_of_sends_leaves_the_same_on_both_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plain: float, binary: float
) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)  # shown when it fails
    found = {}
    for compiled in (True, False):
        with monkeypatch.context() as patch:
            chunks = frames.in_chunks(frames.mixed(seed, FRAMES, plain=plain, binary=binary), seed)
            found[compiled] = await outcome(tmp_path / str(compiled), patch, chunks, compiled=compiled)

    (answers, left, share), (plain_answers, plain_left, _) = found[True], found[False]
    assert answers == plain_answers
    assert left.keys() == plain_left.keys()
    for name, data in left.items():
        assert data == plain_left[name], name
    assert share > (0.3 if plain > 0.9 else 0.01)


@pytest.mark.parametrize("compiled", [pytest.param(True, marks=compiled_only), False])
async def test_turns_that_end_anywhere_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: bool
) -> None:
    found = []
    for number, clock in enumerate([standing_still, hasty(1), hasty(2)]):
        with monkeypatch.context() as patch:
            chunks = frames.in_chunks(frames.mixed(5, 300, other_codes=frames.TIMELESS), 5)
            found.append(
                await outcome(tmp_path / str(number), patch, chunks, compiled=compiled, turn_clock=clock)
            )  # fmt: skip

    assert [(answers, left) for answers, left, _ in found[1:]] == [found[0][:2]] * 2


def plain_send(number: int) -> bytes:
    return frames.frame(
        number, frames.SEND, frames.plain_properties(number, random.Random(1)), b"x", random.Random(1), binary=0
    )


@asynccontextmanager
async def counted(folder: Path, patch: pytest.MonkeyPatch, **settings: Any) -> AsyncIterator[tuple[Twin, Counting]]:
    """A broker that has its topics, and a count of what the lane serves."""
    async with twin(folder, patch, **settings) as one:
        counting = count(one)
        await meet(one)
        await one.give(plain_send(1))
        counting.bytes = 0
        yield one, counting


@compiled_only
async def test_plain_sends_take_the_lane(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with counted(tmp_path, monkeypatch) as (one, counting):
        sends = b"".join(map(plain_send, range(10)))
        answers = await one.give(sends)

        assert counting.bytes == len(sends)
        assert answers.count(b'"code":0') == 10
        assert one.broker.path == "compiled"


@compiled_only
@pytest.mark.parametrize("binary", [0.0, 1.0])
@pytest.mark.parametrize("oneway", [False, True])
@pytest.mark.parametrize("code", [frames.SEND, frames.BATCH])
async def test_sends_and_batches_are_answered_alike_in_both_forms_of_a_header(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, oneway: bool, binary: float
) -> None:
    chance = random.Random(3)
    monkeypatch.setattr(frames, "TOPICS", ("orders", "bills"))  # the third one's name is refused

    def properties(number: int) -> str:
        return f"KEYS\x01order-{number}\x02UNIQ_KEY\x01{frames.unique_key(number)}\x02TAGS\x01paid\x02"

    def one_frame(number: int) -> bytes:
        body = b"x" * number
        if code == frames.BATCH:
            texts = [properties(number + i).encode() for i in range(1 + number % 5)]
            body = b"".join(frames.element(b"y" * len(text), text) for text in texts)
        return frames.frame(number, code, properties(number), body, chance, oneway=oneway, binary=binary)

    sends = [one_frame(number) for number in range(40)]
    answers = {}
    for compiled in (True, False):
        with monkeypatch.context() as patch:
            if not compiled:
                take_plain_way(patch)
            async with twin(tmp_path / str(compiled), patch) as one:
                counting = count(one) if compiled else None
                await meet(one)
                first = await one.give(sends[0])  # tells the form of the peer's headers
                if counting is not None:
                    counting.bytes = 0
                answers[compiled] = [first, *[await one.give(data) for data in sends[1:]]]
                assert counting is None or counting.bytes == sum(map(len, sends[1:]))
    assert answers[True] == answers[False]
    assert all(bool(answer) != oneway for answer in answers[True])


@compiled_only
@pytest.mark.parametrize("settings", [{"store__flush": "sync"}, {"plugins__enable": ["acl"]}])
async def test_while_somebody_has_to_confirm_or_is_asked_nothing_is_plain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    async with counted(tmp_path, monkeypatch, **settings) as (one, counting):
        await one.give(plain_send(2))

        assert counting.bytes == 0


@compiled_only
async def test_while_answers_wait_for_the_disk_a_lane_is_not_even_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with counted(tmp_path, monkeypatch, store__flush="sync") as (one, counting):
        await one.give(plain_send(2) + plain_send(3))

        assert counting.given == 0


@compiled_only
async def test_a_store_that_refuses_writes_says_so_on_every_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with counted(tmp_path, monkeypatch) as (one, counting):
        one.broker.store.refuse_writes("the disk is full")
        answer = await one.give(plain_send(2))

        assert b"the disk is full" in answer
        assert counting.bytes == 0
        one.broker.store.refuse_writes(None)
        await one.give(plain_send(3))
        assert counting.bytes > 0


@compiled_only
async def test_a_disk_without_room_leaves_nothing_of_a_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with counted(tmp_path, monkeypatch) as (one, counting):
        log, end = one.broker.store._log, one.broker.store.end
        count = one.broker._lane._lane.totals
        served = count()
        log._by_call = True
        full = OSError(errno.ENOSPC, "No space left on device")
        monkeypatch.setattr(log, "_write_by_call", Mock(side_effect=full))
        answer = await one.give(plain_send(2) + plain_send(3))

        assert answer.count(b"cannot grow") == 2
        assert (one.broker.store.end, counting.bytes) == (end, 0)
        assert count() == served
        monkeypatch.undo()
        await one.give(plain_send(2) + plain_send(3))
        assert count() == (served[0] + 2, *served[1:])


@compiled_only
async def test_a_topic_that_was_deleted_is_unknown_to_the_lane(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with counted(tmp_path, monkeypatch) as (one, counting):
        one.broker._send.forget_targets(frames.TOPICS)
        await one.give(plain_send(2))
        assert counting.bytes == 0

        await one.give(plain_send(3))
        assert counting.bytes > 0


@compiled_only
async def test_what_a_plugin_stands_before_is_not_for_the_lane(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with counted(tmp_path, monkeypatch) as (one, counting):
        seen = []

        def see(handler: Handler, request: Command, connection: Connection) -> Any:
            seen.append(request.code)
            return handler(request, connection)

        release = one.broker.intercept({frames.SEND: see})
        await one.give(plain_send(2))
        assert (seen, counting.bytes) == ([frames.SEND], 0)

        release()
        await one.give(plain_send(3))
        assert counting.bytes > 0


@pytest.mark.parametrize(("value", "pure"), [("1", True), ("0", False), ("", False)])
def test_an_environment_variable_keeps_a_broker_from_what_is_compiled(
    monkeypatch: pytest.MonkeyPatch, value: str, pure: bool
) -> None:
    monkeypatch.delenv("VERNIERMQ_PURE", raising=False)
    built = lane.compiled_lane()
    monkeypatch.setenv("VERNIERMQ_PURE", value)

    assert lane.compiled_lane() is (None if pure else built)


@compiled_only
def test_what_was_compiled_from_another_source_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    built = lane.compiled_lane()
    assert built is not None
    monkeypatch.setattr(built, "SOURCE", built.SOURCE ^ 1)

    assert lane.compiled_lane() is None
    assert "run make fast again" in caplog.text


async def test_a_broker_says_which_way_plain_sends_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VERNIERMQ_PURE", "1")
    async with twin(tmp_path, monkeypatch) as one:
        assert one.broker.path == "plain"
        assert one.broker.server.lane is None
