"""Rules and figures for people: what ``verniermq flow`` and ``mqadmin brokerStatus`` show."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from verniermq.plugins.flow.engine import Engine


@attrs.frozen
class ResourceFigures:
    """One resource at one moment."""

    name: str
    """Its kind and its name: ``topic orders``."""
    passed: int
    blocked: int
    pass_qps: int
    block_qps: int
    running: int
    average_rt_ms: float
    breakers: tuple[str, ...]
    """The state of each of its breakers."""

    def __str__(self) -> str:
        states = f" breakers={','.join(self.breakers)}" if self.breakers else ""
        return (
            f"passed={self.passed} blocked={self.blocked} pass_qps={self.pass_qps} block_qps={self.block_qps} "
            f"running={self.running} average_rt_ms={self.average_rt_ms:.1f}{states}"
        )


def rules(engine: Engine) -> list[str]:
    """Every rule in words."""
    system = [str(engine.system.rule)] if engine.system is not None else []
    return [*system, *(str(rule) for rule in engine.rules)]


def figures(engine: Engine, now_ms: int) -> Iterator[ResourceFigures]:
    """Every resource that calls were made to."""
    for resource in engine.resources:
        node = resource.node
        yield ResourceFigures(
            resource.name,
            node.passed,
            node.blocked,
            node.pass_qps(now_ms),
            node.block_qps(now_ms),
            node.running,
            node.average_rt_ms(now_ms),
            tuple(breaker.state.value for _, breaker in resource.breakers),
        )
