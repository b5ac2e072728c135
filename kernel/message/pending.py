"""A message between its request and the log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, final

NO_FIELDS: Final[Mapping[str, str]] = MappingProxyType({})
LOOPBACK: Final = b"\x7f\x00\x00\x01\x00\x00\x00\x00"


@final
class PendingMessage:
    """A message on its way into the log (RocketMQ: ``MessageExtBrokerInner``).

    Plugins change it in place from ``before_append``: another topic and queue (delay, transaction), other
    properties. Properties are changed through :meth:`set_property` and :meth:`drop_property`, so that the
    text the log stores is made anew only when it has to be.

    Attributes:
        properties_text: The same properties as one text, while nobody changed them; ``None`` afterwards.
        born_host: Packed, see :func:`~verniermq.kernel.message.pack_host`.
        request: The command that it came with, ``None`` for the broker's own messages; see ``SendMessage.of_message``.
        answer_fields: What plugins add to the answer of the send; see :meth:`add_to_answer`.
    """

    __slots__ = (
        "answer_fields",
        "body",
        "born_host",
        "born_timestamp",
        "flag",
        "prepared_transaction_offset",
        "properties",
        "properties_text",
        "queue_id",
        "reconsume_times",
        "request",
        "sys_flag",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        queue_id: int,
        body: bytes | memoryview,
        properties: dict[str, str],
        properties_text: str | None = None,
        flag: int = 0,
        sys_flag: int = 0,
        born_timestamp: int = 0,
        born_host: bytes = LOOPBACK,
        reconsume_times: int = 0,
        prepared_transaction_offset: int = 0,
        request: object = None,
        answer_fields: Mapping[str, str] = NO_FIELDS,
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.body = body
        self.properties = properties
        self.properties_text = properties_text
        self.flag = flag
        self.sys_flag = sys_flag
        self.born_timestamp = born_timestamp
        self.born_host = born_host
        self.reconsume_times = reconsume_times
        self.prepared_transaction_offset = prepared_transaction_offset
        self.request = request
        self.answer_fields = answer_fields

    def __repr__(self) -> str:
        return f"<PendingMessage to {self.topic}:{self.queue_id}, {len(self.body)} bytes, {self.properties}>"

    def set_property(self, name: str, value: str) -> None:
        self.properties[name] = value
        self.properties_text = None

    def drop_property(self, name: str) -> None:
        if self.properties.pop(name, None) is not None:
            self.properties_text = None

    def add_to_answer(self, name: str, value: str) -> None:
        """Have a field of its own in the answer that the producer gets. A batch's answer has none."""
        self.answer_fields = {**self.answer_fields, name: value}

    def way_back(self) -> Callable[[], None]:
        """What takes back all changes that are made from now on: for a plugin that raises halfway through its own."""
        return partial(self._become, _fields(self), dict(self.properties))

    def _become(self, fields: tuple[Any, ...], properties: dict[str, str]) -> None:
        for name, value in zip(self.__slots__, fields, strict=True):
            setattr(self, name, value)
        self.properties = properties


_fields = attrgetter(*PendingMessage.__slots__)
