"""Sends that were served together are told together, all of them, to whoever stands before the handlers then."""

from __future__ import annotations

import anyio
import pytest

from verniermq.kernel.accel.served import ServedSends
from verniermq.kernel.codes import RequestCode

SEND, BATCH = int(RequestCode.SEND_MESSAGE_V2), int(RequestCode.SEND_BATCH_MESSAGE)

Told = list[tuple[int, bool, int]]


class Served(ServedSends):
    """With what the lane has served since the beginning."""

    def __init__(self) -> None:
        self.counts = [0, 0, 0, 0]
        super().__init__(lambda: tuple(self.counts))

    def serve(self, *counts: int, elapsed_ns: int = 1) -> None:
        """What the lane does when it has served a chunk."""
        self.counts = [old + new for old, new in zip(self.counts, counts, strict=True)]
        if self.is_awaited:
            self.begin(elapsed_ns)


def listener(told: Told) -> tuple[Served, list[int]]:
    """Sends of which a listener hears, and how long it was told that each took."""
    each: list[int] = []

    def hear(code: int, oneway: bool, count: int, elapsed_ns: int) -> None:
        told.append((code, oneway, count))
        each.append(elapsed_ns // count)

    served = Served()
    served.tell_these({SEND: [hear], BATCH: [hear]})
    return served, each


async def test_what_the_first_of_a_round_took_counts_for_all() -> None:
    told: Told = []
    served, each = listener(told)
    served.serve(3, 1, 2, 0, elapsed_ns=6_000)
    for _ in range(9):
        served.serve(3, 1, 2, 0)
    assert not told
    served.tell()
    assert told == [(SEND, False, 30), (SEND, True, 10), (BATCH, False, 20)]
    assert each == [1000, 1000, 1000]


async def test_a_round_ends_by_itself_and_once() -> None:
    heard = anyio.Event()
    told: Told = []

    def hear(code: int, oneway: bool, count: int, elapsed_ns: int) -> None:
        told.append((code, oneway, count))
        heard.set()

    served = Served()
    served.tell_these({SEND: [hear]})
    served.serve(1, 0, 0, 0)
    with anyio.fail_after(20):
        await heard.wait()
    served.tell()
    assert told == [(SEND, False, 1)]


async def test_who_asks_hears_of_all_that_was_served() -> None:
    told: Told = []
    served, _ = listener(told)
    served.serve(0, 0, 5, 0)
    served.tell()
    assert told == [(BATCH, False, 5)]


async def test_what_was_served_before_a_change_is_told_to_those_before() -> None:
    before: Told = []
    after: Told = []
    served, _ = listener(before)
    served.serve(2, 0, 0, 0)
    served.tell_these({SEND: [lambda code, oneway, count, elapsed_ns: after.append((code, oneway, count))]})
    served.serve(4, 0, 0, 0)
    served.tell_these({})
    served.serve(8, 0, 0, 0)
    assert not served.is_awaited
    served.tell()
    assert (before, after) == ([(SEND, False, 2)], [(SEND, False, 4)])


async def test_a_listener_that_fails_keeps_no_other_from_hearing(caplog: pytest.LogCaptureFixture) -> None:
    told: Told = []

    def fails(code: int, oneway: bool, count: int, elapsed_ns: int) -> None:
        raise RuntimeError("broken")

    served = Served()
    served.tell_these({SEND: [fails, lambda code, oneway, count, elapsed_ns: told.append((code, oneway, count))]})
    served.serve(1, 0, 0, 0)
    served.tell()
    assert told == [(SEND, False, 1)]
    assert "whoever counts sends failed" in caplog.text


async def test_a_round_begins_with_the_chunk_after_the_end_of_one() -> None:
    told: Told = []
    served, each = listener(told)
    served.serve(1, 0, 0, 0, elapsed_ns=7)
    assert not served.is_awaited
    served.tell()
    assert served.is_awaited
    served.serve(2, 0, 0, 0, elapsed_ns=18)
    served.tell()
    assert (told, each) == ([(SEND, False, 1), (SEND, False, 2)], [7, 9])
