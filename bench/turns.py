"""What a send takes of one broker's processor beside another's: short spans in turns, and new processes each round.

Two processes of the same broker differ by 3 %, since memory lies elsewhere in each, and a machine is faster in one
second than in the next. So both are driven in turns, 0.4 s at a time, the one that came first comes second then; a
round's ratio is the middle of its spans', and each round starts both anew. The middle of the rounds counts. Where it
would be with other rounds, 19 times of 20, is said too. Two equal brokers (``send.py --enable nothing``) show whether
that is so.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Final, Protocol

import anyio
import attrs
from load import under_load
from sidebyside.machine import cpu_seconds

from verniermq.kernel.loop import backend_options

SPANS: Final = 2
"""Of either side, in a round and a shape."""
WARM_UP: Final = 0.1
FEWEST: Final = 6
"""Rounds of which can be said how sure their middle is."""

Shape = tuple[str, int, int]
"""Its name, how many connections, how many sends each of them has on the way."""


class Process(Protocol):
    @property
    def broker(self) -> str: ...
    @property
    def pid(self) -> int: ...


Start = Callable[[], AbstractContextManager[Process]]
Frames = Callable[[int], list[bytes]]
"""What so many connections send."""


@attrs.define
class Side:
    costs: list[float] = attrs.Factory(list)
    """Microseconds of CPU a send, of each span."""
    rates: list[float] = attrs.Factory(list)

    @property
    def cost(self) -> float:
        return statistics.median(self.costs)

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)


@attrs.define
class Compared:
    """Of one shape."""

    name: str
    one: Side = attrs.Factory(Side)
    other: Side = attrs.Factory(Side)
    ratios: list[float] = attrs.Factory(list)
    """Of the CPU, of each round."""

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)

    @property
    def range(self) -> str:
        """Where the ratio is, 19 times of 20: what the order of the rounds says, whatever their distribution."""
        count = len(self.ratios)
        if count < FEWEST:
            return "?"
        left_out = max(0, math.floor(count / 2 - 0.98 * math.sqrt(count)) - 1)
        ordered = sorted(self.ratios)
        return f"{ordered[left_out]:.3f} to {ordered[-1 - left_out]:.3f}"


def compare(
    one: Start, other: Start, shapes: Sequence[Shape], frames: Frames, *, seconds: float, rounds: int
) -> list[Compared]:
    """Each span takes so many seconds."""
    found = [Compared(name) for name, _, _ in shapes]
    for number in range(rounds):
        with ExitStack() as stack:
            starts = [one, other] if number % 2 else [other, one]
            started = [stack.enter_context(start()) for start in starts]
            sides = started if number % 2 else started[::-1]
            for result, (_, connections, window) in zip(found, shapes, strict=True):
                anyio.run(
                    _turns, sides, frames(connections), window, seconds, result,
                    backend_options=backend_options(),
                )  # fmt: skip
    return found


async def _turns(
    processes: Sequence[Process], frames: list[bytes], window: int, seconds: float, result: Compared
) -> None:
    sides = (result.one, result.other)
    for process in processes:
        await _span(process, frames, window, seconds)  # of a new process all is slower
    ratios = []
    for number in range(SPANS):
        costs = [0.0, 0.0]
        for which in (0, 1) if number % 2 else (1, 0):
            rate, costs[which] = await _span(processes[which], frames, window, seconds)
            sides[which].rates.append(rate)
            sides[which].costs.append(costs[which])
        ratios.append(costs[1] / costs[0])
    result.ratios.append(statistics.median(ratios))


async def _span(process: Process, frames: list[bytes], window: int, seconds: float) -> tuple[float, float]:
    """Sends a second, and microseconds of CPU a send."""
    async with under_load(process.broker, frames, window=window) as answered:
        await anyio.sleep(WARM_UP)
        count, used, begun = answered(), cpu_seconds([process.pid]), anyio.current_time()
        await anyio.sleep(seconds)
        count, used = answered() - count, cpu_seconds([process.pid]) - used
        return count / (anyio.current_time() - begun), used * 1e6 / count
