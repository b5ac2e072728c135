"""How fast a group, a topic, a client or a kind of request may go, by Sentinel's rules.

Read in this order: ``window`` (what happened in the last second), ``shaping`` and ``breaker`` (one rule at
work), ``system`` (all calls together), ``rules`` (as the file has them), ``gate`` (one call's way past its rules),
``engine`` (from rules to gates), ``broker`` and ``consumer`` (gates in front of the handlers of either).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from itertools import islice
from typing import ClassVar, Final

import anyio
import attrs

from verniermq.kernel import (
    Broker,
    Clock,
    Command,
    Connection,
    Consuming,
    Declaration,
    Handler,
    RequestCode,
    Service,
    SystemClock,
    hookimpl,
    setting,
)
from verniermq.plugins.flow import report
from verniermq.plugins.flow.broker import Doorkeeper
from verniermq.plugins.flow.consumer import Smoother
from verniermq.plugins.flow.engine import MAX_RESOURCES, Engine
from verniermq.plugins.flow.entry import steady_clock
from verniermq.plugins.flow.rules import BreakerRule, FlowRule, SystemRule
from verniermq.plugins.flow.system import Machine

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


@attrs.define(eq=False)
class Plugin:
    declaration: ClassVar = Declaration(
        api=1,
        config=Config,
        summary="Limits how fast groups, topics, clients and requests may go.",
    )
    config: Config
    engine: Engine = attrs.field(init=False)
    _clock_ns: Callable[[], int] = attrs.field(init=False)
    _clock: Clock = attrs.field(init=False)
    _smoother: Smoother = attrs.field(init=False)
    _doorkeeper: Doorkeeper | None = attrs.field(default=None, init=False)
    _system_is_limited: anyio.Event = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        config = self.config
        self.engine = Engine(config.rules, config.breakers, config.system, max_resources=config.max_resources)
        self._clock = SystemClock()
        self._clock_ns = steady_clock()
        self._smoother = Smoother(self.engine, self._clock_ns, self._clock.sleep)
        self._system_is_limited = anyio.Event()

    @hookimpl
    def broker_created(self, broker: Broker) -> None:
        self._clock = broker.clock
        if not isinstance(broker.clock, SystemClock):
            self._clock_ns = lambda: round(broker.clock.now() * 1_000_000) * 1000

    @hookimpl
    def request_handlers(self, broker: Broker) -> Mapping[int, Handler]:
        return {RequestCode.GET_FLOW_FIGURES: self._answer_figures}

    @hookimpl
    def broker_started(self, broker: Broker) -> None:
        self._doorkeeper = Doorkeeper(self.engine, broker, self._clock_ns)
        self._rules_changed()

    @hookimpl
    def services(self) -> Iterable[Service]:
        return [Service("sample the machine", self._sample)]

    @hookimpl
    def settings_changed(self, settings: Config) -> None:
        self.config = settings
        self.engine.load(settings.rules, settings.breakers, settings.system)
        self._rules_changed()

    def _rules_changed(self) -> None:
        if self._doorkeeper is not None:
            self._doorkeeper.attend()
        if self.engine.system is not None:
            self._system_is_limited.set()

    @hookimpl
    def before_consume(self, consuming: Consuming) -> Awaitable[None] | None:
        return self._smoother.before(consuming)

    @hookimpl
    def after_consume(self, consuming: Consuming) -> None:
        self._smoother.after(consuming)

    @hookimpl
    def runtime_info(self) -> Mapping[str, str]:
        shown = islice(report.figures(self.engine, self._clock_ns() // 1_000_000), SHOWN_RESOURCES)
        return {f"flow {resource.name}": str(resource) for resource in shown}

    def _answer_figures(self, request: Command, connection: Connection) -> Command:
        return request.reply(body=report.as_json(self.engine, self._clock_ns() // 1_000_000))

    async def _sample(self) -> None:
        machine = Machine()
        while True:
            if self.engine.system is None:
                self._system_is_limited = anyio.Event()
                await self._system_is_limited.wait()
            else:
                self.engine.system.observe(*machine.sample())
                await self._clock.sleep(SAMPLE_SECONDS)
