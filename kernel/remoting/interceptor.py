"""What stands before a handler: it gets the handler with each request, and may call it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias, final

from verniermq.kernel.remoting.command import Command
from verniermq.kernel.remoting.connection import Answer, Connection, Handler, Work

Interceptor: TypeAlias = Callable[[Handler, Command, Connection], Answer | Work]

ServedTogether: TypeAlias = Callable[[int, bool, int, int], None]
"""Hears of plain sends that passed by it: code, whether they were one-way, how many, how long all of them took."""


@final
class Intercepted(partial[Answer | Work]):
    """A handler behind an interceptor."""

    served_together: ServedTogether | None

    def __new__(
        cls, interceptor: Interceptor, handler: Handler, served_together: ServedTogether | None = None
    ) -> Intercepted:
        made = super().__new__(cls, interceptor, handler)
        made.served_together = served_together
        return made

    @property
    def handler(self) -> Handler:
        handler: Handler = self.args[0]
        return handler


def passed_by(handler: Handler | None) -> tuple[Handler | None, list[ServedTogether]]:
    """The handler behind all interceptors that let plain sends pass by, and those who want to hear of them."""
    told: list[ServedTogether] = []
    while isinstance(handler, Intercepted) and handler.served_together is not None:
        told.append(handler.served_together)
        handler = handler.handler
    return handler, told
