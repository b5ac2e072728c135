"""The settings of a push consumer: one class that explains them, and their types for whoever passes them on."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, cast

import attrs

from verniermq.client.consumer.idempotence import Guard, IdempotenceGuard
from verniermq.client.consumer.processqueue import Limits
from verniermq.client.consumer.rebalance import INTERVAL
from verniermq.client.consumer.start import StartFrom, wire_name
from verniermq.client.errors import ClientError
from verniermq.client.options import ConnectionOptions


class PushOptions(ConnectionOptions, total=False):
    """The keyword arguments of a :class:`~verniermq.client.PushConsumer`; see :class:`PushSettings`."""

    orderly: bool
    broadcasting: bool
    start: StartFrom
    concurrency: int
    batch_size: int
    pull_batch: int
    pull_interval: float
    max_reconsume_times: int
    suspend: float
    stuck_after: float
    limits: Limits
    allocate: str
    deduplicate: bool | Guard
    none_means_later: bool
    on_conflict: Literal["raise", "warn"]
    offset_folder: str | Path
    rebalance_interval: float
    stop_timeout: float


def _at_least_one(settings: PushSettings, field: attrs.Attribute[int], value: int) -> None:
    if value < 1:
        raise ClientError(f"{field.name}={value}, expected at least 1")


@attrs.frozen(kw_only=True)
class PushSettings:
    """What a push consumer can be told, with RocketMQ's defaults."""

    orderly: bool = False
    """Messages of one queue come one after the other, and only one member reads a queue."""
    broadcasting: bool = False
    """Every member gets every message; offsets are kept in a local file, and nothing is retried."""
    start: StartFrom = attrs.field(default="last", validator=lambda _, __, value: wire_name(value) and None)
    """Where a new group begins: ``"last"``, ``"first"``, a ``datetime`` or milliseconds since 1970."""
    concurrency: int = attrs.field(default=20, validator=_at_least_one)
    """How many handlers run at a time."""
    batch_size: int = attrs.field(default=1, validator=_at_least_one)
    """How many messages a handler of ``on_batch`` gets at most."""
    pull_batch: int = attrs.field(default=32, validator=_at_least_one)
    """How many messages one pull brings at most."""
    pull_interval: float = 0.0
    """Seconds between two pulls of a queue that both found something."""
    max_reconsume_times: int = -1
    """How often a message is offered again before it becomes a dead letter; -1 means 16, and in order for ever."""
    suspend: float = 1.0
    """In order: seconds until a message that failed is tried again."""
    stuck_after: float = 900.0
    """Seconds after which a message whose handler has not returned is handed back."""
    limits: Limits = attrs.Factory(Limits)
    """What may be in hand of one queue before pulling waits."""
    allocate: str = "AVG"
    """How queues are shared: the name of a strategy of the ``allocate`` plugin, or of another."""
    deduplicate: bool | Guard = False
    """Drop repeats: ``True`` for a guard in memory, or one of your own."""
    none_means_later: bool = False
    """Take ``None`` from a handler for "later", as Java does, instead of for "consumed"."""
    on_conflict: Literal["raise", "warn"] = "raise"
    """What to do when other members of the group subscribe to something else; ``"warn"`` lets a new version of a
    program replace the old one member by member."""
    offset_folder: Path = attrs.field(factory=lambda: Path.home() / ".rocketmq_offsets", converter=Path)
    """Where a broadcasting consumer keeps its offsets."""
    rebalance_interval: float = INTERVAL
    """Seconds between two looks at who reads what, when nobody says that something changed."""
    stop_timeout: float = 10.0
    """Seconds that handlers have to finish when the consumer is closed."""
    guard: Guard | None = attrs.field(init=False)

    @guard.default
    def _guard(self) -> Guard | None:
        if isinstance(self.deduplicate, bool):
            return IdempotenceGuard() if self.deduplicate else None
        return self.deduplicate


def divided(options: PushOptions) -> tuple[PushSettings, ConnectionOptions]:
    """The consumer's own settings, and those of every client.

    Raises:
        ClientError: one of them makes no sense.
    """
    own = {field.name for field in attrs.fields(PushSettings)}
    given: dict[str, Any] = dict(options)
    settings = PushSettings(**{name: value for name, value in given.items() if name in own})
    rest = {name: value for name, value in given.items() if name not in own}
    return settings, cast(ConnectionOptions, rest)
