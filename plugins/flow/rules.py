"""Rules as ``broker.toml`` has them: what they concern, and how much of it may pass.

    [[plugins.flow.rules]]
    resource = "billing:orders"         # the group billing on the topic orders
    behaviour = "uniform_rate"
    count = 5                           # a second: one each 200 ms
    max_queueing_ms = 5000

    [[plugins.flow.breakers]]
    topic = "orders"
    measure = "slow_ratio"
    max_rt_ms = 200
    limit = 0.5
    recovery_s = 10

    [plugins.flow.system]
    concurrency = 2000
    cpu = 0.9

A rule names exactly one of ``resource`` (``group:topic``), ``topic``, ``client`` and ``request``; each may contain
``*`` and ``?``. ``limit_app`` beside ``topic`` is Sentinel's way to name a group: both together are a ``resource``. A
pattern does not share its count out: every resource that fits has the whole of it for itself.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final, Literal

import attrs

from verniermq.kernel import setting

if TYPE_CHECKING:
    from verniermq.plugins.flow.breaker import Breaker
    from verniermq.plugins.flow.shaper import Shaper

MAX_RESOURCES: Final = 10_000

Measure = Literal["slow_ratio", "error_ratio", "error_count"]
Kind = Literal["resource", "topic", "client", "request"]
KINDS: tuple[Kind, ...] = ("resource", "topic", "client", "request")


@attrs.frozen(kw_only=True)
class RuleTarget:
    """What a rule concerns: exactly one of the four."""

    resource: str = setting("", "group:topic, as billing:orders or billing:*.")
    topic: str = setting("", "A topic, whoever sends to it or reads it.")
    client: str = setting(
        "",
        "A client id, which begins with the address: 10.1.*; just the address before the first heartbeat.",
    )
    request: str = setting("", "A kind of request, as PULL_MESSAGE.")
    limit_app: str = setting(
        "default", 'With topic: the group that is limited, as in Sentinel; "default" limits all together.'
    )

    def __attrs_post_init__(self) -> None:
        named = [kind for kind in KINDS if getattr(self, kind)]
        if len(named) != 1:
            what = f"names {' and '.join(named)}" if named else "names nothing"
            raise ValueError(f"a rule concerns exactly one of {', '.join(KINDS)}; this one {what}")
        if self.resource and ":" not in self.resource:
            raise ValueError(f"resource is {self.resource!r}, expected group:topic; for a topic alone write topic = …")
        if self._names_app and not self.topic:
            raise ValueError(f"limit_app is {self.limit_app!r}, which goes with topic; this rule names {named[0]}")
        if self.limit_app == "other":
            raise ValueError(
                'limit_app "other" is not known here; name the group, or a pattern of groups such as "web-*"'
            )

    @property
    def _names_app(self) -> bool:
        return self.limit_app not in ("", "default")

    @property
    def kind(self) -> Kind:
        return "resource" if self._names_app else next(kind for kind in KINDS if getattr(self, kind))

    @property
    def pattern(self) -> str:
        pattern: str = f"{self.limit_app}:{self.topic}" if self._names_app else getattr(self, self.kind)
        return pattern

    def concerns(self, kind: Kind, name: str) -> bool:
        return kind == self.kind and fnmatchcase(name, self.pattern)


@attrs.frozen(kw_only=True)
class FlowRule(RuleTarget):
    """``[[plugins.flow.rules]]`` (Sentinel: ``FlowRule``)"""

    count: float = setting(attrs.NOTHING, "How many a second, or how many at a time.", at_least=0)
    grade: Literal["qps", "concurrency"] = setting(
        "qps",
        "What is counted: calls a second, or calls that run at the same time.",
    )
    behaviour: Literal["reject", "uniform_rate", "warm_up", "warm_up_uniform_rate"] = setting(
        "reject",
        "What happens to what is too much; concurrency can only be rejected.",
    )
    warm_up_s: int = setting(10, "How long it takes from cold to warm.", at_least=1)
    max_queueing_ms: int = setting(
        500,
        "The longest that uniform rate makes a call wait; a call that would wait longer is refused.",
        at_least=0,
    )

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if self.grade == "concurrency" and self.behaviour != "reject":
            raise ValueError(f'behaviour {self.behaviour!r} is for grade "qps"; concurrency can only be rejected')
        if self.behaviour.startswith("warm_up") and self.count <= 0:
            raise ValueError('a warm-up needs a count above 0; to let nothing pass use behaviour = "reject"')

    def shaper(self) -> Shaper:
        """A fresh object that applies this rule to one resource."""
        from verniermq.plugins.flow.shaper import Concurrency, Reject, UniformRate, WarmUp, WarmUpUniformRate

        if self.grade == "concurrency":
            return Concurrency(self.count)
        match self.behaviour:
            case "reject":
                return Reject(self.count)
            case "uniform_rate":
                return UniformRate(self.count, self.max_queueing_ms)
            case "warm_up":
                return WarmUp(self.count, self.warm_up_s)
            case "warm_up_uniform_rate":
                return WarmUpUniformRate(self.count, self.warm_up_s, self.max_queueing_ms)

    def __str__(self) -> str:
        unit = "at a time" if self.grade == "concurrency" else "per second"
        return f"{self.kind} {self.pattern!r} at most {self.count:g} {unit}, {self.behaviour.replace('_', ' ')}"


@attrs.frozen(kw_only=True)
class BreakerRule(RuleTarget):
    """``[[plugins.flow.breakers]]`` (Sentinel: ``DegradeRule``)"""

    measure: Measure = setting(
        "slow_ratio",
        "What makes it open: the share of slow calls, the share of failed ones, or the number of failed ones.",
    )
    limit: float = setting(
        1.0,
        "More than this opens it: a share from 0 to 1, or a number of errors. All calls slow: 1.0.",
        at_least=0,
    )
    max_rt_ms: int = setting(1000, "A call that took longer is slow.", at_least=0)
    recovery_s: int = setting(10, "How long it stays open before a probe.", at_least=1)
    least_calls: int = setting(5, "With fewer calls in the interval it stays closed.", at_least=1)
    interval_ms: int = setting(1000, "How long calls are counted before counting starts again.", at_least=1)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if self.measure != "error_count" and self.limit > 1:
            raise ValueError(f'limit is {self.limit:g}, a ratio is at most 1; for a number use measure = "error_count"')

    def breaker(self) -> Breaker:
        """A fresh breaker for one resource."""
        from verniermq.plugins.flow.breaker import Breaker

        return Breaker(
            self.measure,
            self.limit,
            recovery_ms=self.recovery_s * 1000,
            max_rt_ms=self.max_rt_ms,
            least_calls=self.least_calls,
            interval_ms=self.interval_ms,
        )

    def __str__(self) -> str:
        what = "errors" if self.measure == "error_count" else self.measure.replace("_", " ")
        return f"{self.kind} {self.pattern!r} breaks above {self.limit:g} {what}, for {self.recovery_s} s"


@attrs.frozen(kw_only=True)
class SystemRule:
    """``[plugins.flow.system]`` (Sentinel: ``SystemRule``); what is not set is not limited."""

    qps: float | None = setting(None, "Calls a second, all together.", at_least=0)
    concurrency: int | None = setting(None, "Calls that run at the same time.", at_least=0)
    average_rt_ms: float | None = setting(None, "The mean response time of the last second.", at_least=0)
    load: float | None = setting(
        None,
        "The machine's load of the last minute; counts only while calls queue up.",
        at_least=0,
    )
    cpu: float | None = setting(None, "The share of all cores in use, from 0 to 1.", at_least=0, at_most=1)

    @property
    def limits_anything(self) -> bool:
        return any(value is not None for value in attrs.astuple(self))

    def __str__(self) -> str:
        limits = attrs.asdict(self, filter=lambda _, value: value is not None)
        return "system " + ", ".join(f"{name} at most {value:g}" for name, value in limits.items())
