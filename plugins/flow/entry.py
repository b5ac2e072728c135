"""The same rules around any piece of work: how a consumer smooths what it processes.

    async with passing(engine, "billing", "orders", sleep=anyio.sleep):
        await handle(message)

It waits for its turn, or raises :class:`~verniermq.plugins.flow.gate.FlowRefused`; an exception from inside counts
as an error for breakers, and goes on.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio

from verniermq.plugins.flow.engine import Engine
from verniermq.plugins.flow.gate import FlowRefused


def steady_clock() -> Callable[[], int]:
    """Nanoseconds since 1970 that never go back, whoever sets the machine's clock meanwhile."""
    offset = time.time_ns() - time.monotonic_ns()
    return lambda: time.monotonic_ns() + offset


@asynccontextmanager
async def passing(
    engine: Engine,
    group: str,
    topic: str,
    *,
    count: int = 1,
    clock_ns: Callable[[], int] = steady_clock(),  # noqa: B008 - one for the whole process is meant
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
) -> AsyncIterator[None]:
    """Run the body when the rules for ``group:topic`` and for the topic let it pass.

    Raises:
        FlowRefused: a rule refuses it, or it would have to wait too long.
    """
    gate = engine.gate(group, topic)
    if gate is None:
        yield
        return
    wait_ns = gate.enter(clock_ns(), count)
    if wait_ns > 0:
        await sleep(wait_ns / 1_000_000_000)
        wait_ns = gate.begin(clock_ns(), count)
    if wait_ns < 0:
        raise FlowRefused(gate.refused_by)
    begun_ns = clock_ns()
    failed = False
    try:
        yield
    except Exception:
        failed = True
        raise
    finally:
        gate.leave(begun_ns, clock_ns(), failed=failed, count=count)
