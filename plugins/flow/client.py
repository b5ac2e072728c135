"""In a consumer: rules in front of its handlers."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import ClassVar

import anyio
import attrs

from verniermq.kernel import ClientContext, Consuming, Declaration, hookimpl
from verniermq.plugins.flow import Config, make_engine
from verniermq.plugins.flow.consumer import ConsumeShaper
from verniermq.plugins.flow.entry import steady_clock


@attrs.define(eq=False)
class ClientPlugin:
    declaration: ClassVar = Declaration(
        api=1,
        config=Config,
        summary="Limits how fast a consumer's handlers are given messages.",
        before=("trace",),  # which would tell of every time that a delivery was put off
    )
    config: Config
    client: ClientContext
    _consume_shaper: ConsumeShaper = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._consume_shaper = ConsumeShaper(make_engine(self.config), steady_clock(), anyio.sleep)

    @hookimpl
    def before_consume(self, consuming: Consuming) -> Awaitable[None] | None:
        return self._consume_shaper.before(consuming)

    @hookimpl
    def after_consume(self, consuming: Consuming) -> None:
        self._consume_shaper.after(consuming)
