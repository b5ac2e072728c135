"""When a timed message is due, and in which second's slot it waits until then.

A producer asks with one of three properties; the first that is there counts::

    TIMER_DELAY_SEC=90     TIMER_DELAY_MS=1500     TIMER_DELIVER_MS=1700000030250

Slots are seconds, as RocketMQ's. The slot S holds what is due after S and up to S + 1 s, so that an Apache broker,
which empties a slot when its second is over, delivers nothing too early::

    due 1700000029001 … 1700000030000    ->    slot 1700000029, TIMER_OUT_MS=1700000029000

That rounding is RocketMQ's and loses up to a second. We keep the exact time beside it, in ``TIMER_DELIVER_MS``, and in
a field of the timer log's record that RocketMQ does not use; so a message comes in its millisecond.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from verniermq.kernel import TIMER_TOPIC, MessageIllegal, Property

SECOND: Final = 1000
DAY_SECONDS: Final = 86_400

LONGEST_WINDOW: Final = 7 * DAY_SECONDS
"""No slot is further away than this from when its record was written."""

QUEUE: Final = (TIMER_TOPIC, 0)
"""Where timed messages wait until they are taken in."""


def wished_ms(properties: Mapping[str, str], now_ms: int) -> int | None:
    """When a producer wants its message delivered; ``None`` if it does not say.

    Raises:
        MessageIllegal: what it says is no number.
    """
    for name, unit, since in (
        (Property.TIMER_DELAY_SEC, SECOND, now_ms),
        (Property.TIMER_DELAY_MS, 1, now_ms),
        (Property.TIMER_DELIVER_MS, 1, 0),
    ):
        text = properties.get(name)
        if text is None:
            continue
        if len(text) > 19 or not text.removeprefix("-").isdecimal():
            raise MessageIllegal(f"property {name} is {text[:40]!r}, expected a whole number")
        return since + int(text) * unit
    return None


def slot_of(due_ms: int) -> int:
    """The second whose slot holds what is due then."""
    return (due_ms - 1) // SECOND


def due_of(properties: Mapping[str, str]) -> int | None:
    """When a stored message is due; ``None`` if it is no timed message.

    One that an Apache broker stored may have lost its exact time: then it is due when the slot is over.
    """
    try:
        slot_ms = int(properties[Property.TIMER_OUT_MS])
        exact = int(properties.get(Property.TIMER_DELIVER_MS, "0"))
    except (KeyError, ValueError):
        return None
    return exact if slot_of(exact) * SECOND == slot_ms else slot_ms + SECOND


def rolled_slot(slot: int, now_slot: int, window: int) -> int | None:
    """Where a message waits that is further away than the window; ``None`` for one that is not.

    It is written anew when that slot comes. So what waits for weeks is never older in the log than the window, and
    the log's old files can be deleted. The last stretch is made no shorter than half a window, as RocketMQ does.
    """
    rest = slot - now_slot - window
    if rest < 0:
        return None
    return now_slot + (window // 2 if rest < window // 3 else window)
