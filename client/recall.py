"""What takes a message back: where it waits, as its broker wrote it (RocketMQ: ``RecallMessageHandle``).

A handle is URL-safe base64 of ``v1 topic broker time key``, separated by blanks.
"""

from __future__ import annotations

import base64
import binascii

import attrs

from verniermq.client.errors import BadMessage
from verniermq.client.java import shown
from verniermq.client.results import SendResult


@attrs.frozen
class RecallHandle:
    text: str
    topic: str
    broker_name: str

    @classmethod
    def of(cls, sent: SendResult | str) -> RecallHandle:
        """
        Raises:
            BadMessage: it is none.
        """
        text = sent.recall_handle if isinstance(sent, SendResult) else sent
        if not text:
            raise BadMessage(
                "the result has no recall handle; a message gets one if it has a delivery time, by the property "
                "TIMER_DELAY_MS or TIMER_DELIVER_MS"
            )
        try:
            _, topic, broker_name, _, _ = base64.b64decode(text, b"-_", validate=True).decode().split(" ")
        except (binascii.Error, TypeError, ValueError):
            raise BadMessage(f"{shown(text)} is no recall handle; it is the recall_handle of a SendResult") from None
        return cls(text, topic, broker_name)
