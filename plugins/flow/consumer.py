"""Rules where messages are processed: a consumer takes them at the pace that its handlers can stand.

The resource is ``group:topic``, as in Sentinel's example for RocketMQ, and the count is in messages: five a second
with uniform rate means one each 200 ms on average, also when they arrive thirty at a time. A delivery that a rule
refuses is offered again later by the client.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from verniermq.kernel import Consuming
from verniermq.plugins.flow.engine import Engine
from verniermq.plugins.flow.gate import FlowRefused, Gate, Stay

NOTE: Final = "flow.stay"


class Smoother:
    """Stands before and after a consumer's handlers."""

    def __init__(
        self, engine: Engine, clock_ns: Callable[[], int], sleep: Callable[[float], Awaitable[None]]
    ) -> None:
        self._engine = engine
        self._clock_ns = clock_ns
        self._sleep = sleep

    def before(self, consuming: Consuming) -> Awaitable[None] | None:
        """Let a delivery pass, make it wait, or refuse it.

        Raises:
            FlowRefused: a rule refuses it, or it would have to wait too long.
        """
        if not self._engine.is_active:
            return None
        gate = self._engine.gate(consuming.group, consuming.queue.topic, consuming.client_id, inbound=False)
        if gate is None:
            return None
        now_ns, count = self._clock_ns(), len(consuming.messages)
        wait_ns = gate.enter(now_ns, count)
        if wait_ns < 0:
            raise FlowRefused(gate.refused_by)
        if wait_ns > 0:
            return self._later(gate, wait_ns, count, consuming)
        consuming.notes[NOTE] = Stay(gate, now_ns, self._clock_ns, count)
        return None

    def after(self, consuming: Consuming) -> None:
        """Hear how the handlers did."""
        stay = consuming.notes.pop(NOTE, None)
        if stay is not None:
            stay.end(failed=not consuming.succeeded)

    async def _later(self, gate: Gate, wait_ns: int, count: int, consuming: Consuming) -> None:
        await self._sleep(wait_ns / 1_000_000_000)
        now_ns = self._clock_ns()
        if gate.begin(now_ns, count) < 0:
            raise FlowRefused(gate.refused_by)
        consuming.notes[NOTE] = Stay(gate, now_ns, self._clock_ns, count)
