"""RocketMQ's table: the slower a broker answered, the longer it is left alone (``MQFaultStrategy``).

    latency of a send, at least (ms)   50  100   550  1800  3000   5000  15000
    then not available for (ms)         0    0  2000  5000  6000  10000  30000

A failed send counts as a latency of 10 s. A longer rest extends the present one, a shorter one leaves it as
it is. A queue is chosen in three passes of the round robin: brokers that are available; then brokers that
can be reached, however slow; then any. A broker that cannot be reached comes back only when a send, or the
detector, reached it::

      send fails (isolated, unreachable)
    ──┬────────────────────────────────────┬─────────────────▶ time
      │◀──── not available: 10 s ─────────▶│ available again
      │◀─ unreachable ─▶│ probe answered: reachable again

The detector is off by default; see :mod:`verniermq.plugins.fault.detector`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

import attrs

from verniermq.kernel import MessageQueue, setting
from verniermq.plugins.fault.rotation import Rotation


def _same_length(latency: Latency, attribute: attrs.Attribute[tuple[int, ...]], rests: tuple[int, ...]) -> None:
    if len(rests) != len(latency.steps_ms):
        raise ValueError(f"has {len(rests)} numbers, but steps_ms has {len(latency.steps_ms)}: each step needs one")


def _ascending(latency: Latency, attribute: attrs.Attribute[tuple[int, ...]], steps: tuple[int, ...]) -> None:
    if list(steps) != sorted(set(steps)):
        raise ValueError(f"must rise from step to step, not {list(steps)}")


@attrs.frozen
class Latency:
    """``[plugins.fault.latency]``"""

    steps_ms: tuple[int, ...] = setting(
        (50, 100, 550, 1800, 3000, 5000, 15000),
        "Latencies from which on the rest of the same place applies; below the first there is none.",
        validator=_ascending,
    )
    rests_ms: tuple[int, ...] = setting(
        (0, 0, 2000, 5000, 6000, 10000, 30000),
        "How long a broker is left alone.",
        validator=_same_length,
    )
    failure_counts_as_ms: int = setting(10000, "The latency that a failed send is taken for.", at_least=0)
    detect: bool = setting(
        False,
        "Whether brokers are probed in the background; a remoting failure then makes one unreachable.",
    )
    detect_every_ms: int = setting(3000, "Pause between two rounds of probes.", at_least=1)
    detect_broker_every_ms: int = setting(2000, "A broker is probed at most once in this time.", at_least=0)
    detect_timeout_ms: int = setting(200, "How long a probe may take.", at_least=1)

    def rest_after(self, latency_ms: float) -> int:
        place = bisect_right(self.steps_ms, latency_ms)
        return self.rests_ms[place - 1] if place else 0


@attrs.define
class BrokerHealth:
    """What is known of one broker (RocketMQ: ``FaultItem``)."""

    latency_ms: float
    available_from_ms: float = 0
    reachable: bool = True
    probe_from_ms: float = 0


class LatencyTable:
    """Named ``latency``."""

    def __init__(self, settings: Latency, clock_ms: Callable[[], float], rotation: Rotation) -> None:
        self.settings = settings
        self._clock_ms = clock_ms
        self._rotation = rotation
        self._health_of: dict[str, BrokerHealth] = {}

    def choose(self, queues: Sequence[MessageQueue], last_broker: str | None) -> MessageQueue:
        if last_broker is not None:
            self._rotation.scatter(queues[0].topic)
        return (
            self._rotation.first(queues, self.is_available, last_broker)
            or self._rotation.first(queues, self.is_reachable, last_broker)
            or self._rotation.next(queues)
        )

    def record(self, broker_name: str, latency_ms: float, *, failed: bool, reachable: bool = True) -> None:
        health = self._health_of.setdefault(broker_name, BrokerHealth(latency_ms))
        health.latency_ms = latency_ms
        # Without a detector, nobody would find out that a broker can be reached again (as in RocketMQ).
        health.reachable = reachable or not self.settings.detect
        rest = self.settings.rest_after(self.settings.failure_counts_as_ms if failed else latency_ms)
        if rest > 0:
            health.available_from_ms = max(health.available_from_ms, self._clock_ms() + rest)

    def is_available(self, broker_name: str) -> bool:
        health = self._health_of.get(broker_name)
        return health is None or self._clock_ms() >= health.available_from_ms

    def is_reachable(self, broker_name: str) -> bool:
        health = self._health_of.get(broker_name)
        return health is None or health.reachable

    # --- for the detector ------------------------------------------------------------------

    def due_for_probe(self) -> list[str]:
        """The brokers whose turn it is; asking makes the next turn begin."""
        now = self._clock_ms()
        due = [name for name, health in self._health_of.items() if now >= health.probe_from_ms]
        for name in due:
            self._health_of[name].probe_from_ms = now + self.settings.detect_broker_every_ms
        return due

    def probed(self, broker_name: str, *, answered: bool) -> None:
        """Hear of a probe. A broker that answered is reachable again; its rest goes on all the same."""
        health = self._health_of.get(broker_name)
        if health is not None and answered:
            health.reachable = True

    def forget(self, broker_name: str) -> None:
        """Drop a broker that has no address any more."""
        self._health_of.pop(broker_name, None)

    def health(self) -> dict[str, BrokerHealth]:
        """What is known of each broker, for statistics."""
        return dict(self._health_of)
