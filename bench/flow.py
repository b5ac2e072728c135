"""What a flow check costs: ``python bench/flow.py`` prints it for each behaviour, beside an empty call, in one run.

A check is all that a request pays for being let through: reading the clock, finding its gate by group, topic, client
and kind of request, and asking every rule there. Its end (``leave``) is shown for itself. The clock and the names are
those of the broker; a limit of a thousand million a second lets everything pass, and refusals have a row of their own.

Rounds of all rows take turns, and the median of each is shown: what else the machine does then hits all alike.
"Kept" is how many blocks of memory are still there after 100,000 checks that were not there before them.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable

import click
from rich.console import Console
from rich.table import Table

from verniermq.plugins.flow.engine import Engine
from verniermq.plugins.flow.entry import steady_clock
from verniermq.plugins.flow.rules import BreakerRule, FlowRule, SystemRule

MANY = 1e9
CHECKS = 100_000
CALL = ("billing", "orders", "10.0.0.1@7", "SEND_MESSAGE_V2")

ENGINES: dict[str, Callable[[], Engine]] = {
    "reject": lambda: Engine([FlowRule(topic="orders", count=MANY)]),
    "reject, refusing": lambda: Engine([FlowRule(topic="orders", count=0)]),
    "concurrency": lambda: Engine([FlowRule(topic="orders", count=MANY, grade="concurrency")]),
    "uniform rate": lambda: Engine([FlowRule(topic="orders", count=MANY, behaviour="uniform_rate")]),
    "warm-up": lambda: Engine([FlowRule(topic="orders", count=MANY, behaviour="warm_up")]),
    "warm-up, refusing": lambda: Engine([FlowRule(topic="orders", count=3, behaviour="warm_up")]),
    "warm-up with uniform rate": lambda: Engine(
        [FlowRule(topic="orders", count=MANY, behaviour="warm_up_uniform_rate")]
    ),
    "reject, for group:topic": lambda: Engine([FlowRule(resource="billing:orders", count=MANY)]),
    "reject, for each client": lambda: Engine([FlowRule(client="10.0.*", count=MANY)]),
    "breaker": lambda: Engine([], [BreakerRule(topic="orders")]),
    "system": lambda: Engine([], [], SystemRule(qps=MANY, concurrency=1_000_000)),
}


def nothing(now_ns: int) -> int:
    return 0


def empty_calls(count: int) -> float:
    """Seconds for so many calls of a function that does nothing."""
    began = time.perf_counter()
    for _ in range(count):
        nothing(1)
    return time.perf_counter() - began


def checks(engine: Engine) -> Callable[[int], float]:
    clock_ns = steady_clock()
    group, topic, client, request = CALL

    def run(count: int) -> float:
        began = time.perf_counter()
        for _ in range(count):
            engine.gate(group, topic, client, request).enter(clock_ns())  # type: ignore[union-attr]
        return time.perf_counter() - began

    return run


def leaves(engine: Engine) -> Callable[[int], float]:
    clock_ns = steady_clock()
    gate = engine.gate(*CALL)
    assert gate is not None
    begun_ns = clock_ns()

    def run(count: int) -> float:
        began = time.perf_counter()
        for _ in range(count):
            gate.leave(begun_ns, clock_ns())
        return time.perf_counter() - began

    return run


def loop(count: int) -> float:
    """Seconds for the loop alone, which every other row has in it."""
    began = time.perf_counter()
    for _ in range(count):
        pass
    return time.perf_counter() - began


def kept(run: Callable[[int], float]) -> int:
    gc.collect()
    before = sys.getallocatedblocks()
    run(CHECKS)
    return sys.getallocatedblocks() - before


@click.command()
@click.option("--rounds", default=21, show_default=True)
def main(rounds: int) -> None:
    rows: dict[str, Callable[[int], float]] = {"an empty call": empty_calls}
    rows |= {name: checks(make()) for name, make in ENGINES.items()}
    rows["the end of a call (leave)"] = leaves(ENGINES["reject"]())
    seconds: dict[str, list[float]] = {name: [] for name in ("the loop", *rows)}
    gc.disable()
    for _ in range(rounds):
        seconds["the loop"].append(loop(CHECKS // 5))
        for name, run in rows.items():
            seconds[name].append(run(CHECKS // 5))
    alone = statistics.median(seconds["the loop"])
    table = Table("", "µs, median", "µs, best", "kept after 100,000")
    for name, run in rows.items():
        medium, best = statistics.median(seconds[name]) - alone, min(seconds[name]) - alone
        figures = [f"{figure / (CHECKS // 5) * 1e6:.2f}" for figure in (medium, best)]
        table.add_row(name, *figures, str(kept(run)))
    Console().print(table)


if __name__ == "__main__":
    main()
