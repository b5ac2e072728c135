"""Rules and figures for people: what ``verniermq flow`` and ``mqadmin brokerStatus`` show.

GET_FLOW_FIGURES (32103) is a request without fields; its answer's body is::

    {"rules": ["topic 'orders' at most 5 per second, reject"],
     "resources": [{"name": "topic orders", "passed": 120, "blocked": 7, "pass_qps": 5, "block_qps": 2,
                    "running": 0, "average_rt_ms": 0.4, "breakers": ["closed"]}]}
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import orjson

from verniermq.plugins.flow.engine import Engine


class ResourceFigures(NamedTuple):
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


def as_json(engine: Engine, now_ms: int) -> bytes:
    """The body of the answer to GET_FLOW_FIGURES."""
    resources = [resource._asdict() for resource in figures(engine, now_ms)]
    return orjson.dumps({"rules": rules(engine), "resources": resources})
