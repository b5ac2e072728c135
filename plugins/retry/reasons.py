"""Why a message failed, kept with the message: one property per attempt.

::

    RETRY_REASON_1=ConnectionError: database away
    RETRY_REASON_2=ValueError: no such customer

A client that knows sends the text in the field ``failureReason`` of CONSUMER_SEND_MSG_BACK. Apache's clients do not,
and their brokers leave the field and the properties alone.
"""

from __future__ import annotations

import re
from typing import Final

from verniermq.kernel import PendingMessage

FIELD: Final = "failureReason"
PREFIX: Final = "RETRY_REASON_"
KEPT: Final = 20
"""The newest so many; all properties of a message share 32,767 bytes."""

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]+")


def note_reason(message: PendingMessage, attempt: int, reason: str, limit: int) -> None:
    """Keep the reason of attempt number ``attempt`` (from 1), cut to ``limit`` characters and to one line."""
    text = _CONTROL.sub(" ", reason).strip()
    if not text or limit == 0:
        return
    message.set_property(f"{PREFIX}{attempt}", text if len(text) <= limit else text[: limit - 1] + "…")
    message.drop_property(f"{PREFIX}{attempt - KEPT}")


def reasons_of(properties: dict[str, str]) -> dict[int, str]:
    """Attempt → why it failed, in order."""
    numbers = [name.removeprefix(PREFIX) for name in properties if name.startswith(PREFIX)]
    return {number: properties[f"{PREFIX}{number}"] for number in sorted(int(n) for n in numbers if n.isdecimal())}
