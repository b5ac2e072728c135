"""How a producer keeps away from brokers that fail or are slow, by one of five strategies.

``latency`` is RocketMQ's table, ``round_robin`` is RocketMQ without it, and three simple schemes stand beside
them. A strategy belongs to one producer: what it learnt is that producer's own experience.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from random import Random
from typing import ClassVar, Final

import attrs

from verniermq.kernel import (
    AUTO_CREATE_TOPIC,
    ClientContext,
    Declaration,
    FaultStrategy,
    hookimpl,
    setting,
)
from verniermq.kernel.requests import GetMaxOffset
from verniermq.plugins.fault.detector import keep_probing
from verniermq.plugins.fault.fewest_failures import FailureCounts, FewestFailures
from verniermq.plugins.fault.flag import Flag, FlagWithReset
from verniermq.plugins.fault.latency import Latency, LatencyTable
from verniermq.plugins.fault.rotation import Rotation
from verniermq.plugins.fault.round_robin import RoundRobin
from verniermq.plugins.fault.timeout import Timeout, TimeoutMap

PROBED: Final = GetMaxOffset(topic=AUTO_CREATE_TOPIC, queue_id=0)
"""What a probe asks for: something that every broker can answer from memory."""


@attrs.frozen
class Config:
    """``[plugins.fault]``"""

    latency: Latency = setting(
        attrs.Factory(Latency),
        "RocketMQ's table of latencies and rests, and its detector.",
    )
    timeout: Timeout = setting(attrs.Factory(Timeout), "Avoid a broker for a fixed time after each failure.")
    flag: Flag = setting(attrs.Factory(Flag), "Avoid a broker until the next common reset.")
    fewest_failures: FewestFailures = setting(
        attrs.Factory(FewestFailures),
        "Prefer the brokers that failed least.",
    )


def monotonic_ms() -> float:
    return time.monotonic() * 1000


def make_strategy(
    name: str,
    config: Config | None = None,
    *,
    clock_ms: Callable[[], float] = monotonic_ms,
    random: Random | None = None,
) -> FaultStrategy | None:
    """A strategy of its own memory by name, or ``None`` for a name that is not among ours."""
    config = config or Config()
    rotation = Rotation(random)
    match name:
        case "latency":
            return LatencyTable(config.latency, clock_ms, rotation)
        case "timeout":
            return TimeoutMap(config.timeout, clock_ms, rotation)
        case "flag":
            return FlagWithReset(config.flag, clock_ms, rotation)
        case "fewest_failures":
            return FailureCounts(config.fewest_failures, clock_ms, rotation)
        case "round_robin":
            return RoundRobin(rotation)
        case _:
            return None


@attrs.define(eq=False)
class Plugin:
    declaration: ClassVar = Declaration(
        api=1, config=Config, summary="Keeps producers away from brokers that fail or are slow."
    )
    config: Config
    client: ClientContext

    @hookimpl
    def fault_strategy(self, name: str) -> FaultStrategy | None:
        strategy = make_strategy(name, self.config)
        client = self.client
        if isinstance(strategy, LatencyTable) and self.config.latency.detect:
            timeout = self.config.latency.detect_timeout_ms / 1000

            async def probe(address: str) -> object:
                return await client.request(address, PROBED.command(), timeout)

            client.spawn(partial(keep_probing, strategy, client.broker_address, probe))
        return strategy
