"""The settings of a push consumer: one class that explains them, and their types for whoever passes them on."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, cast

import attrs

from verniermq.client.consumer.idempotence import Guard, IdempotenceGuard
from verniermq.client.consumer.processqueue import Limits
from verniermq.client.consumer.puller import OnDamage
from verniermq.client.consumer.rebalance import INTERVAL
from verniermq.client.consumer.start import StartFrom, wire_name
from verniermq.client.errors import ClientError
from verniermq.client.java import shown
from verniermq.client.options import ConnectionOptions, check_numbers


class PushOptions(ConnectionOptions, total=False):
    """The keyword arguments of a :class:`~verniermq.client.PushConsumer`; see :class:`PushSettings`."""

    mode: Literal["pull", "pop"]
    orderly: bool
    broadcasting: bool
    invisible: float
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
    on_damage: OnDamage
    offset_folder: str | Path
    rebalance_interval: float
    stop_timeout: float


def _at_least_one(settings: PushSettings, field: attrs.Attribute[int], value: int) -> None:
    check_numbers(1, **{field.name: value})


def _skip_or_wait(settings: PushSettings, field: attrs.Attribute[str], value: str) -> None:
    if value not in ("skip", "wait"):
        raise ClientError(f"{field.name}={value!r}, expected 'skip' or 'wait'")


def _pull_or_pop(settings: PushSettings, field: attrs.Attribute[str], value: str) -> None:
    if value not in ("pull", "pop"):
        raise ClientError(f"{field.name}={value!r}, expected 'pull' or 'pop'")


@attrs.frozen(kw_only=True)
class PushSettings:
    """What a push consumer can be told, with RocketMQ's defaults."""

    mode: Literal["pull", "pop"] = attrs.field(default="pull", validator=_pull_or_pop)
    """``"pull"``: each queue belongs to one member of the group. ``"pop"``: all members take from all queues, message
    by message; there is no order, and nothing to rebalance."""
    invisible: float = 60.0
    """When popping: seconds after which a message comes again whose consumer is gone. While a handler has it, more time
    is asked for."""
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
    """How often a message is offered again before it becomes a dead letter; -1 means as often as the group's setting
    says, which is 16 unless somebody changed it, and in order for ever."""
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
    on_damage: OnDamage = attrs.field(default="skip", validator=_skip_or_wait)
    """What to do about a message that lies damaged in the broker's log: log it and go on behind it, or ``"wait"`` with
    its queue, logging it every few seconds, until somebody has repaired the log or moved the group's offset."""
    offset_folder: Path = attrs.field(factory=lambda: Path.home() / ".rocketmq_offsets", converter=Path)
    """Where a broadcasting consumer keeps its offsets."""
    rebalance_interval: float = INTERVAL
    """Seconds between two looks at who reads what, when nobody says that something changed."""
    stop_timeout: float = 10.0
    """Seconds that handlers have to finish when the consumer is closed."""
    guard: Guard | None = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        """
        Raises:
            ClientError: a value that cannot be meant.
        """
        check_numbers(-1, max_reconsume_times=self.max_reconsume_times)
        if not isinstance(self.limits, Limits):
            raise ClientError(f"limits={shown(self.limits)}, expected Limits(messages=…, bytes=…, span=…)")
        if not isinstance(self.allocate, str):
            raise ClientError(f"allocate={shown(self.allocate)}, expected the name of a strategy, such as 'AVG'")
        if self.on_conflict not in ("raise", "warn"):
            raise ClientError(f"on_conflict={shown(self.on_conflict)}, expected 'raise' or 'warn'")
        if self.mode != "pop":
            return
        if self.orderly or self.broadcasting:
            raise ClientError("mode='pop' has no order and no broadcasting; leave out both, or pull")
        if self.start not in ("last", "first"):
            raise ClientError(f"start={self.start!r}; with mode='pop' a new group begins at 'last' or 'first'")
        if self.invisible <= 0:
            raise ClientError(f"invisible={self.invisible!r}, expected more than 0 seconds")

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
