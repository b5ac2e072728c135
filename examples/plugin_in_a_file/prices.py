"""A plugin in one file: refuses messages whose price is missing or too high, and counts the others in a table on disk.

The table is ``config/prices.json`` in the store. A changed table ``[plugins.prices]`` takes effect without a restart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import attrs

from verniermq.kernel import (
    Context,
    Declaration,
    Document,
    MessageIllegal,
    PendingMessage,
    Registry,
    concerns,
    hookimpl,
    setting,
)

TOPIC = "examples-prices"


@attrs.frozen
class Config:
    """``[plugins.prices]``"""

    highest: int = setting(1000, "The highest price that is taken.", at_least=1)


@attrs.define(eq=False)
class Plugin:
    declaration: ClassVar = Declaration(api=1, config=Config, summary="Checks prices.", on_failure="closed")
    config: Config
    broker: Context
    _taken: dict[str, int] = attrs.field(factory=dict, init=False)
    _table: Document = attrs.field(init=False)

    def setup(self, registry: Registry) -> None:
        self._table = registry.table("prices", load=self._load, save=lambda: {"taken": self._taken}, interval=1)

    def _load(self, content: Mapping[str, Any]) -> None:
        self._taken.update(content.get("taken", {}))

    @hookimpl
    @concerns(topic_prefixes=(TOPIC,))  # messages to other topics do not come here, and cost nothing
    def before_append(self, message: PendingMessage) -> None:
        price = message.properties.get("price", "")
        if not price.isdecimal() or int(price) > self.config.highest:
            raise MessageIllegal(f"property 'price' is {price!r}, expected 0 to {self.config.highest}")
        self._taken[message.topic] = self._taken.get(message.topic, 0) + 1
        self._table.touch()

    @hookimpl
    def settings_changed(self, settings: Config) -> None:
        self.config = settings
