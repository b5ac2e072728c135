"""Trace records as RocketMQ writes them (``TraceDataEncoder``): text, fields end with 0x01, records with 0x02.

======================  ======================================================================================
``Pub``                 time, region, group, topic, message id, tags, keys, store host, body length, cost (ms),
                        kind of message, offset message id, success
``SubBefore``           time, region, group, request id, message id, times tried before, keys
``SubAfter``            request id, message id, cost (ms), success, keys, how it ended, time, group
``EndTransaction``      time, region, group, topic, message id, tags, keys, store host, kind of message,
                        transaction id, state, from a check
``Recall``              time, region, group, topic, message id, success
======================  ======================================================================================

The name comes first in each. A sample, with ``|`` for 0x01 and ``;`` for 0x02::

    Pub|1700000000000|DefaultRegion|billing|orders|7F000001…|paid|T1 T2|10.0.0.5:10911|5|3|0|7F00…|true;

The request id ties a ``SubBefore`` to its ``SubAfter``.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import ClassVar, Final

import attrs

FIELD_END: Final = "\x01"
RECORD_END: Final = "\x02"
DEFAULT_REGION: Final = "DefaultRegion"


class TraceType(IntEnum):
    """RocketMQ: ``MessageType``."""

    NORMAL = 0
    HALF = 1
    COMMITTED = 2
    DELAYED = 3
    ORDERED = 4


class Ending(IntEnum):
    """How a delivery ended (RocketMQ: ``ConsumeReturnType``)."""

    SUCCESS = 0
    TIMED_OUT = 1
    RAISED = 2
    NOTHING = 3
    FAILED = 4


@attrs.frozen
class Record:
    """One line of a message's history."""

    name: ClassVar[str]

    message_id: str
    keys: str

    def fields(self) -> Iterable[object]:
        raise NotImplementedError

    def encode(self) -> str:
        texts = [self.name, *(_text(field) for field in self.fields())]
        return FIELD_END.join(texts) + RECORD_END


@attrs.frozen(kw_only=True)
class Pub(Record):
    name = "Pub"
    time_ms: int
    group: str
    topic: str
    tags: str
    broker: str
    body_length: int
    cost_ms: int
    kind: TraceType
    offset_message_id: str
    success: bool
    region: str = DEFAULT_REGION

    def fields(self) -> Iterable[object]:
        return (
            self.time_ms, self.region, self.group, self.topic, self.message_id, self.tags, self.keys, self.broker,
            self.body_length, self.cost_ms, self.kind, self.offset_message_id, self.success,
        )  # fmt: skip


@attrs.frozen(kw_only=True)
class SubBefore(Record):
    name = "SubBefore"
    time_ms: int
    group: str
    request_id: str
    retry_times: int
    region: str = DEFAULT_REGION

    def fields(self) -> Iterable[object]:
        return (
            self.time_ms, self.region, self.group, self.request_id, self.message_id, self.retry_times, self.keys,
        )  # fmt: skip


@attrs.frozen(kw_only=True)
class SubAfter(Record):
    name = "SubAfter"
    time_ms: int
    group: str
    request_id: str
    cost_ms: int
    ending: Ending

    def fields(self) -> Iterable[object]:
        success = self.ending is Ending.SUCCESS
        return (
            self.request_id, self.message_id, self.cost_ms, success, self.keys, self.ending, self.time_ms, self.group,
        )  # fmt: skip


@attrs.frozen(kw_only=True)
class TransactionEnd(Record):
    name = "EndTransaction"
    time_ms: int
    group: str
    topic: str
    tags: str
    broker: str
    transaction_id: str
    state: str
    from_check: bool
    region: str = DEFAULT_REGION

    def fields(self) -> Iterable[object]:
        return (
            self.time_ms, self.region, self.group, self.topic, self.message_id, self.tags, self.keys, self.broker,
            TraceType.COMMITTED, self.transaction_id, self.state, self.from_check,
        )  # fmt: skip


def _text(field: object) -> str:
    if isinstance(field, bool):
        return "true" if field else "false"
    if isinstance(field, int):
        return str(int(field))
    # A key may hold anything; a separator in it would move every field behind it.
    return str(field).replace(FIELD_END, " ").replace(RECORD_END, " ")
