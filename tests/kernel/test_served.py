"""Sends that were served together are told together, all of them, to whoever stands before the handlers then."""

from __future__ import annotations

from time import perf_counter_ns

import anyio
import pytest

from verniermq.kernel.accel.served import CHUNKS, ServedSends
from verniermq.kernel.codes import RequestCode

SEND, BATCH = int(RequestCode.SEND_MESSAGE_V2), int(RequestCode.SEND_BATCH_MESSAGE)

Told = list[tuple[int, bool, int]]


def listener(told: Told) -> tuple[ServedSends, list[int]]:
    """Sends of which a listener hears, and how long it was told that each took."""
    each: list[int] = []

    def hear(code: int, oneway: bool, count: int, elapsed_ns: int) -> None:
        told.append((code, oneway, count))
        each.append(elapsed_ns // count)

    served = ServedSends()
    served.tell_these({SEND: [hear], BATCH: [hear]})
    return served, each


async def test_a_round_is_told_when_it_has_all_its_chunks() -> None:
    told: Told = []
    served, each = listener(told)
    for chunk in range(CHUNKS):
        assert not told
        served.add((3, 1, 2, 0), served.begin() - 6_000_000 if chunk == 0 else served.begin())
    assert told == [(SEND, False, 3 * CHUNKS), (SEND, True, CHUNKS), (BATCH, False, 2 * CHUNKS)]
    assert min(each) == max(each) >= 1_000_000  # a sixth of what the chunk that was timed took
    assert served.begin()


async def test_a_round_ends_by_itself_and_once() -> None:
    heard = anyio.Event()
    told: Told = []

    def hear(code: int, oneway: bool, count: int, elapsed_ns: int) -> None:
        told.append((code, oneway, count))
        heard.set()

    served = ServedSends()
    served.tell_these({SEND: [hear]})
    served.add((1, 0, 0, 0), served.begin())
    assert not served.begin()  # one chunk of a round is timed
    with anyio.fail_after(20):
        await heard.wait()
    served.tell()
    assert told == [(SEND, False, 1)]


async def test_who_asks_hears_of_all_that_was_served() -> None:
    told: Told = []
    served, _ = listener(told)
    served.add((0, 0, 5, 0), served.begin())
    served.tell()
    assert told == [(BATCH, False, 5)]


async def test_what_was_served_before_a_change_is_told_to_those_before() -> None:
    before: Told = []
    after: Told = []
    served, _ = listener(before)
    served.add((2, 0, 0, 0), served.begin())
    served.tell_these({SEND: [lambda code, oneway, count, elapsed_ns: after.append((code, oneway, count))]})
    served.add((4, 0, 0, 0), served.begin())
    served.tell_these({})
    assert (before, after) == ([(SEND, False, 2)], [(SEND, False, 4)])


async def test_nothing_is_timed_and_kept_while_nobody_listens() -> None:
    served = ServedSends()
    assert not served.begin()
    served.add((1, 0, 0, 0), 0)
    told: Told = []
    served.tell_these({SEND: [lambda code, oneway, count, elapsed_ns: told.append((code, oneway, count))]})
    served.tell()
    assert not told


async def test_a_listener_that_fails_keeps_no_other_from_hearing(caplog: pytest.LogCaptureFixture) -> None:
    told: Told = []

    def fails(code: int, oneway: bool, count: int, elapsed_ns: int) -> None:
        raise RuntimeError("broken")

    served = ServedSends()
    served.tell_these({SEND: [fails, lambda code, oneway, count, elapsed_ns: told.append((code, oneway, count))]})
    served.add((1, 0, 0, 0), perf_counter_ns())
    served.tell()
    assert told == [(SEND, False, 1)]
    assert "whoever counts sends failed" in caplog.text
