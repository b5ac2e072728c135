"""The handle that takes a message back, out of what a caller has of it."""

from __future__ import annotations

from verniermq.client.errors import BadMessage
from verniermq.client.java import shown
from verniermq.client.results import SendResult
from verniermq.protocol.recall import RecallHandle


def read_handle(sent: SendResult | str) -> tuple[str, RecallHandle]:
    """The handle as its broker wrote it, and what it says.

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
        return text, RecallHandle.decode(text)
    except (TypeError, ValueError):
        raise BadMessage(f"{shown(text)} is no recall handle; it is the recall_handle of a SendResult") from None
