"""Protection of the whole broker: refuse while the machine is overloaded, whoever asks.

Five figures of all inbound calls together, asked in this order (Sentinel: ``SystemRuleManager``):

    rate            calls in the last second
    concurrency     calls that run now
    average RT      of the calls that ended in the last second
    load            the machine's, and then only if BBR agrees: more calls run than the best recent rate and the
                    shortest recent RT explain (like a full pipe: width × length), so that they must be queueing
    CPU             share of all cores in use

Load and CPU are sampled from outside once a second (:class:`Machine`) and only looked at here.
"""

from __future__ import annotations

import os
from math import inf
from pathlib import Path
from typing import Final

from verniermq.plugins.flow.rules import SystemRule
from verniermq.plugins.flow.window import StatisticNode

UNKNOWN: Final = -1.0


class SystemProtection:
    """All inbound calls, and the limits for them."""

    def __init__(self, rule: SystemRule) -> None:
        self.node = StatisticNode()
        self.load = UNKNOWN
        self.cpu = UNKNOWN
        self.rule = rule

    @property
    def rule(self) -> SystemRule:
        return self._rule

    @rule.setter
    def rule(self, rule: SystemRule) -> None:
        self._rule = rule
        # Every call compares with these; nothing is more than what is not limited.
        self._qps = inf if rule.qps is None else rule.qps
        self._concurrency = inf if rule.concurrency is None else rule.concurrency
        self._average_rt_ms = rule.average_rt_ms
        self._load = inf if rule.load is None else rule.load
        self._cpu = inf if rule.cpu is None else rule.cpu

    def refusal(self, now_ms: int, count: int) -> str | None:
        """The setting that a call would break, or ``None`` when it may go on."""
        node = self.node
        if node.pass_qps(now_ms) + count > self._qps:
            return "qps"
        if node.running > self._concurrency:
            return "concurrency"
        if self._average_rt_ms is not None and node.average_rt_ms(now_ms) > self._average_rt_ms:
            return "average_rt_ms"
        if self.load > self._load and not self._pipe_has_room(now_ms):
            return "load"
        if self.cpu > self._cpu:
            return "cpu"
        return None

    def observe(self, load: float, cpu: float) -> None:
        """Take a sample of the machine; :data:`UNKNOWN` breaks no limit."""
        self.load = load
        self.cpu = cpu

    def _pipe_has_room(self, now_ms: int) -> bool:
        running = self.node.running
        return running <= 1 or running <= self.node.max_success_qps(now_ms) * self.node.min_rt_ms(now_ms) / 1000


class Machine:
    """Samples the machine's load and CPU; what the platform does not tell is :data:`UNKNOWN`."""

    def __init__(self, cpu_figures: Path = Path("/proc/stat")) -> None:
        self._cpu_figures = cpu_figures
        self._busy = 0
        self._total = 0

    def sample(self) -> tuple[float, float]:
        """The load of the last minute, and the share of CPU used since the sample before."""
        try:
            load = os.getloadavg()[0]
        except (OSError, AttributeError):
            load = UNKNOWN
        return load, self._cpu_share()

    def _cpu_share(self) -> float:
        try:
            # cpu  user nice system idle iowait irq softirq steal …
            words = self._cpu_figures.read_text().split("\n", 1)[0].split()
            ticks = [int(word) for word in words[1:9]]
        except (OSError, ValueError):
            return UNKNOWN
        if words[:1] != ["cpu"] or len(ticks) < 5:
            return UNKNOWN
        total, busy = sum(ticks), sum(ticks) - ticks[3] - ticks[4]
        spent, used = total - self._total, busy - self._busy
        first = self._total == 0
        self._total, self._busy = total, busy
        return UNKNOWN if first or spent <= 0 else used / spent
