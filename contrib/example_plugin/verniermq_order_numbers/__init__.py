"""Lets only messages with a valid order number into the log, and marks them as checked.

A wrong number is best refused where the producer still learns of it. Which topics, and under which property the number
stands, is in ``broker.toml``::

    [plugins]
    enable = ["default", "order_numbers"]

    [plugins.order_numbers]
    topics = ["orders"]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import attrs

from verniermq.kernel import Connection, Context, Declaration, MessageIllegal, PendingMessage, hookimpl, setting
from verniermq_order_numbers.checksum import is_valid

CHECKED = "order-number-checked"
"""The property that says so; consumers may filter by it."""


@attrs.frozen
class Config:
    """``[plugins.order_numbers]``"""

    topics: tuple[str, ...] = setting(("orders",), "Topics whose messages need an order number.")
    property: str = setting("orderNumber", "The property that holds it.")


@attrs.define(eq=False)
class Plugin:
    # Closed: a check that can be passed by making it stumble is none.
    declaration: ClassVar = Declaration(
        api=1, config=Config, summary="Lets only messages with a valid order number in.", on_failure="closed"
    )
    config: Config
    broker: Context
    checked: int = attrs.field(default=0, init=False)
    refused: int = attrs.field(default=0, init=False)

    @hookimpl
    def before_append(self, message: PendingMessage, connection: Connection | None) -> None:
        if message.topic not in self.config.topics:
            return
        if connection is None:
            return  # the broker's own: a delayed or retried message was checked when it came
        number = message.properties.get(self.config.property, "")
        if not is_valid(number):
            self.refused += 1
            raise MessageIllegal(
                f"property {self.config.property!r} is {number!r}, expected an order number with a valid check, "
                "such as 'A-2024-000123-88'"
            )
        self.checked += 1
        message.set_property(CHECKED, "true")

    @hookimpl
    def settings_changed(self, settings: Config) -> None:
        self.config = settings

    @hookimpl(optionalhook=True)
    def runtime_info(self) -> Mapping[str, str]:
        return {"orderNumbersChecked": str(self.checked), "orderNumbersRefused": str(self.refused)}
