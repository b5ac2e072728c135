"""Rules where messages are processed: a consumer takes them at the pace that its handlers can stand.

The resource is ``group:topic``, as in Sentinel's example for RocketMQ, and the count is in messages: five a second
with uniform rate means one each 200 ms on average, also when they arrive thirty at a time. The topic is the one that a
message was sent to, also when it comes again from the group's retry topic. What a rule refuses stays with the
consumer, which asks again soon: a backlog gets longer, and nothing is lost or counted as a failure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

from verniermq.kernel import Consuming
from verniermq.plugins.flow.engine import Engine
from verniermq.plugins.flow.gate import FlowRefused, Gate, Passage

NOTE: Final = "flow.stay"


class ConsumeShaper:
    """Stands before and after a consumer's handlers."""

    def __init__(self, engine: Engine, clock_ns: Callable[[], int], sleep: Callable[[float], Awaitable[None]]) -> None:
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
        entered: list[tuple[Gate, int]] = []
        longest = 0
        now_ns = self._clock_ns()
        # Only a batch of the retry topic has messages of several topics.
        for topic, count in Counter(message.topic for message in consuming.messages).items():
            gate = self._engine.gate(consuming.group, topic, consuming.client_id, inbound=False)
            if gate is None:
                continue
            wait_ns = gate.enter(now_ns, count)
            if wait_ns < 0:
                raise FlowRefused(gate.refused_by)
            if wait_ns > 0:
                entered.append((gate, count))
                longest = max(longest, wait_ns)
            else:
                self._begun(consuming, gate, now_ns, count)
        return self._later(entered, longest, consuming) if entered else None

    def after(self, consuming: Consuming) -> None:
        """Hear how the handlers did."""
        for passage in consuming.notes.pop(NOTE, ()):
            passage.end(failed=not consuming.succeeded)

    def _begun(self, consuming: Consuming, gate: Gate, now_ns: int, count: int) -> None:
        consuming.notes.setdefault(NOTE, []).append(Passage(gate, now_ns, self._clock_ns, count))

    async def _later(self, entered: list[tuple[Gate, int]], wait_ns: int, consuming: Consuming) -> None:
        await self._sleep(wait_ns / 1_000_000_000)
        now_ns = self._clock_ns()
        for gate, count in entered:
            if gate.begin(now_ns, count) < 0:
                raise FlowRefused(gate.refused_by)
            self._begun(consuming, gate, now_ns, count)
