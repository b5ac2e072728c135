"""How fast a group, a topic, a client or a kind of request may go, by Sentinel's rules.

Read in this order: ``window`` (what happened in the last second), ``shaping`` and ``breaker`` (one rule at
work), ``system`` (all calls together), ``rules`` (as the file has them), ``gate`` (one call's way past its rules),
``engine`` (from rules to gates), ``broker`` and ``consumer`` (gates in front of the handlers of either). A broker
without rules imports none of them but ``rules``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, ClassVar, Final

import anyio
import attrs

from verniermq.kernel import (
    Command,
    Connection,
    Context,
    Declaration,
    Registry,
    RequestCode,
    SystemClock,
    hookimpl,
    hookspecs,
    setting,
)
from verniermq.plugins.flow.rules import MAX_RESOURCES, BreakerRule, FlowRule, SystemRule

if TYPE_CHECKING:
    from verniermq.plugins.flow.broker import RequestGates
    from verniermq.plugins.flow.engine import Engine

SAMPLE_SECONDS: Final = 1.0
SHOWN_RESOURCES: Final = 100


@attrs.frozen
class Config:
    """``[plugins.flow]``"""

    rules: tuple[FlowRule, ...] = setting((), "How much may pass: [[plugins.flow.rules]].")
    breakers: tuple[BreakerRule, ...] = setting(
        (),
        "When nothing may pass for a while: [[plugins.flow.breakers]].",
    )
    system: SystemRule = setting(attrs.Factory(SystemRule), "Limits for all sends and pulls together.")
    max_resources: int = setting(
        MAX_RESOURCES,
        "How many resources are kept apart at most; idle ones make room for new ones.",
        at_least=1,
    )

    @property
    def limits_anything(self) -> bool:
        return bool(self.rules or self.breakers) or self.system.limits_anything


@attrs.define(eq=False)
class Plugin:
    """In a broker: rules in front of the handlers."""

    declaration: ClassVar = Declaration(
        api=1,
        config=Config,
        summary="Limits how fast groups, topics, clients and requests may go.",
        requests=(RequestCode.GET_FLOW_FIGURES,),
    )
    config: Config
    broker: Context
    _system_is_limited: anyio.Event = attrs.field(factory=anyio.Event, init=False)

    @cached_property
    def engine(self) -> Engine:
        return make_engine(self.config)

    @cached_property
    def _gates(self) -> RequestGates:
        from verniermq.plugins.flow.broker import RequestGates

        return RequestGates(self.engine, self.broker, self._clock_ns)

    @cached_property
    def _clock_ns(self) -> Callable[[], int]:
        clock = self.broker.clock
        if isinstance(clock, SystemClock):
            from verniermq.plugins.flow.entry import steady_clock

            return steady_clock()
        begun = clock.now() - clock.monotonic()
        return lambda: round((begun + clock.monotonic()) * 1_000_000) * 1000

    def setup(self, registry: Registry) -> None:
        registry.handler(RequestCode.GET_FLOW_FIGURES, self._answer_figures)
        registry.sends_pass(self._sends_pass)
        registry.service("sample the machine", self._sample)

    @hookimpl
    def store_opened(self) -> None:
        self._rules_changed()

    @hookimpl
    def settings_changed(self, settings: Config) -> None:
        had_rules = self.config.limits_anything
        self.config = settings
        if had_rules or settings.limits_anything:
            self.engine.load(settings.rules, settings.breakers, settings.system)
        if had_rules and not settings.limits_anything:
            self._gates.forget()
        self._rules_changed()

    def _rules_changed(self) -> None:
        """Without rules, no request passes by here."""
        for hook in (hookspecs.before_request, hookspecs.request_served):
            self.broker.hooks.pause(self, hook, paused=not self.config.limits_anything)
        if self.config.system.limits_anything:
            self._system_is_limited.set()

    @hookimpl
    def before_request(self, request: Command, connection: Connection) -> Awaitable[None] | None:
        return self._gates.enter(request, connection)

    @hookimpl
    def request_served(self, request: Command, answer: Command | None, error: Exception | None) -> None:
        self._gates.leave(request, answer, error)

    def _sends_pass(self, group: str, topic: str, connection: Connection) -> bool:
        """No rule is about such sends. Which client it is may be known later, so rules about clients are about all."""
        if not self.config.limits_anything:
            return True
        return not self.engine.limits_clients and not self._gates.limits_sends(group, topic)

    @hookimpl(optionalhook=True)
    def runtime_info(self) -> Mapping[str, str]:
        if not self.config.limits_anything:
            return {}
        from verniermq.plugins.flow import report

        shown = islice(report.figures(self.engine, self._clock_ns() // 1_000_000), SHOWN_RESOURCES)
        return {f"flow {resource.name}": str(resource) for resource in shown}

    def _answer_figures(self, request: Command, connection: Connection) -> Command:
        from verniermq.plugins.flow import report

        return request.reply(body=report.as_json(self.engine, self._clock_ns() // 1_000_000))

    async def _sample(self) -> None:
        await self._system_is_limited.wait()
        from verniermq.plugins.flow.system import Machine

        machine = Machine()
        while True:
            if self.engine.system is None:
                self._system_is_limited = anyio.Event()
                await self._system_is_limited.wait()
            else:
                self.engine.system.observe(*machine.sample())
                await self.broker.clock.sleep(SAMPLE_SECONDS)


def make_engine(config: Config) -> Engine:
    from verniermq.plugins.flow.engine import Engine

    return Engine(config.rules, config.breakers, config.system, max_resources=config.max_resources)
