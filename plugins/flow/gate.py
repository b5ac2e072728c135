"""The way of one call past all rules that concern it: in, perhaps a wait, through, and out again.

    enter ── 0 ───────────────────────────▶ the call runs ──▶ leave
      │  └── wait so long ──▶ begin ── 0 ──▶     "                "
      └───── REFUSED            └── REFUSED

``enter`` asks the protection of the system first, then every rule that refuses, then those that make calls wait;
a call that is refused has not used up a place in anybody's queue. A call that was told to wait calls ``begin``
afterwards, where the breakers have the last word. Every call that came through must ``leave``.

Nothing is made on the way but Python's own short-lived numbers: the lists were made when the rules were compiled.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from verniermq.kernel import Busy, ResponseCode
from verniermq.plugins.flow.breaker import Breaker
from verniermq.plugins.flow.rules import BreakerRule, FlowRule, SystemRule
from verniermq.plugins.flow.shaper import NS_PER_MS, REFUSED, Shaper
from verniermq.plugins.flow.system import SystemProtection
from verniermq.plugins.flow.window import StatisticNode

Rule = FlowRule | BreakerRule | SystemRule


class FlowRefused(Busy):
    """A rule lets no more pass now; the peer should back off and try again."""

    def __init__(self, rule: Rule | None, code: ResponseCode = ResponseCode.SYSTEM_BUSY) -> None:
        super().__init__(f"too much at the moment for the flow rule: {rule}; try again later", code)
        self.rule = rule


@attrs.define(eq=False)
class FlowResource:
    """One named thing with rules: its figures, and its rules at work."""

    name: str
    node: StatisticNode = attrs.Factory(StatisticNode)
    shapers: list[tuple[FlowRule, Shaper]] = attrs.Factory(list)
    breakers: list[tuple[BreakerRule, Breaker]] = attrs.Factory(list)
    calls_before: int = 0
    """Calls up to the last time that idle resources were dropped."""


class Gate:
    """All resources that one kind of call belongs to, as one."""

    __slots__ = ("_breakers", "_nodes", "_shapers", "_system", "refused_by", "resources")

    def __init__(self, resources: tuple[FlowResource, ...], system: SystemProtection | None = None) -> None:
        self.resources = resources
        self.refused_by: Rule | None = None
        """The rule that refused the last call that was refused."""
        shapers = [
            (shaper.check, resource.node, rule, shaper.queues)
            for resource in resources
            for rule, shaper in resource.shapers
        ]
        shapers.sort(key=lambda entry: entry[3])
        self._shapers = tuple((check, node, rule) for check, node, rule, _ in shapers)
        self._breakers = tuple((breaker, rule) for resource in resources for rule, breaker in resource.breakers)
        self._system = system
        own = tuple(resource.node for resource in resources)
        self._nodes = own if system is None else (*own, system.node)

    def enter(self, now_ns: int, count: int = 1) -> int:
        """Ask for ``count`` calls at once.

        Returns 0 when the call runs from now on, :data:`REFUSED`, or how many nanoseconds to wait before ``begin``.
        """
        system = self._system
        if system is not None and system.refusal(now_ns // NS_PER_MS, count) is not None:
            return self._refuse(now_ns, count, system.rule)
        wait = 0
        for check, node, rule in self._shapers:
            delay = check(node, now_ns, count)
            if delay:
                if delay < 0:
                    return self._refuse(now_ns, count, rule)
                if delay > wait:
                    wait = delay
        return wait or self.begin(now_ns, count)

    def begin(self, now_ns: int, count: int = 1) -> int:
        """Go through, after the wait that ``enter`` asked for. Returns 0 or :data:`REFUSED`."""
        now_ms = now_ns // NS_PER_MS
        for breaker, rule in self._breakers:
            if not breaker.try_pass(now_ms):
                # A breaker before this one that is half open became so for this call: any other call's probe
                # would have been refused there.
                for earlier, _ in self._breakers:
                    if earlier is breaker:
                        break
                    earlier.probe_refused()
                return self._refuse(now_ns, count, rule)
        for node in self._nodes:
            node.begin(now_ms, count)
        return 0

    def leave(self, begun_ns: int, now_ns: int, *, failed: bool = False, count: int = 1) -> None:
        """End a call that ran."""
        now_ms = now_ns // NS_PER_MS
        rt_ms = now_ms - begun_ns // NS_PER_MS
        for node in self._nodes:
            node.end(now_ms, rt_ms, count, failed)
        for breaker, _ in self._breakers:
            breaker.completed(now_ms, rt_ms, failed)

    def _refuse(self, now_ns: int, count: int, rule: Rule) -> int:
        self.refused_by = rule
        now_ms = now_ns // NS_PER_MS
        for node in self._nodes:
            node.block(now_ms, count)
        return REFUSED


class Passage:
    """A call that is inside a gate, for those who cannot wrap it in ``try`` and ``finally``.

    It ends when it is told to, or when it is thrown away: a task that is cancelled before its first step, or a
    hook that is never called, would otherwise keep a place taken for ever.
    """

    __slots__ = ("_begun_ns", "_clock_ns", "_count", "_gate")

    def __init__(self, gate: Gate, begun_ns: int, clock_ns: Callable[[], int], count: int = 1) -> None:
        self._gate: Gate | None = gate
        self._begun_ns = begun_ns
        self._clock_ns = clock_ns
        self._count = count

    def end(self, *, failed: bool = False) -> None:
        gate, self._gate = self._gate, None
        if gate is not None:
            gate.leave(self._begun_ns, self._clock_ns(), failed=failed, count=self._count)

    def __del__(self) -> None:
        self.end()
