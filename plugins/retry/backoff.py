"""When a message that failed is tried again.

Without more being said, by delay level: 3 + the times it failed before, so 10 s, 30 s, 1 m … with the usual levels.
A client may name a level for one message. A group may have a back-off of its own (``groupRetryPolicy`` of its
configuration, which Apache brokers hand to gRPC clients only)::

    {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1000, 5000, 200, 400, 800]}}
    {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 5000, "max": 7200000, "multiplier": 2}}

All times are milliseconds. Of ``next`` the first two are left out, as RocketMQ does (its list begins with levels 1
and 2, which retries never use): the group above waits 200, 400, then 800 ms each time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from verniermq.kernel import PendingMessage, Property

FIRST_LEVEL: Final = 3
SKIPPED: Final = FIRST_LEVEL - 1
MOST_DOUBLINGS: Final = 32

INITIAL_MS: Final = 5_000
MAX_MS: Final = 7_200_000
MULTIPLIER: Final = 2

TIMER_PROPERTIES: Final = (
    Property.TIMER_DELAY_SEC,
    Property.TIMER_DELAY_MS,
    Property.TIMER_DELIVER_MS,
    Property.TIMER_OUT_MS,
    "TIMER_ENQUEUE_MS",
    "TIMER_DEQUEUE_MS",
    "TIMER_ROLL_TIMES",
)
"""What an earlier timed delivery left behind; it would be taken for this one's."""


class Wait(NamedTuple):
    """Either a level of the broker's table, or a time of its own."""

    level: int = 0
    milliseconds: int = 0

    def put_on(self, message: PendingMessage) -> None:
        """Ask the schedule plugin for it, by the properties that producers use too."""
        if self.level:
            message.set_property(Property.DELAY, str(self.level))
            return
        message.drop_property(Property.DELAY)
        for name in TIMER_PROPERTIES:
            message.drop_property(name)
        if self.milliseconds > 0:
            message.set_property(Property.TIMER_DELAY_MS, str(self.milliseconds))


def wait_before_retry(asked_level: int, times: int, policy: Mapping[str, Any]) -> Wait:
    """How long a message waits that failed ``times`` times before this one.

    Args:
        asked_level: what the client asks for; 0 leaves it to the group and the broker
    """
    if asked_level > 0:
        return Wait(level=asked_level)
    own = _own_backoff_ms(policy, times)
    return Wait(level=FIRST_LEVEL + times) if own is None else Wait(milliseconds=own)


def _own_backoff_ms(policy: Mapping[str, Any], times: int) -> int | None:
    """What the group's policy says; ``None`` if it has none that can be followed."""
    kind = policy.get("type", "CUSTOMIZED")
    custom, exponential = policy.get("customizedRetryPolicy"), policy.get("exponentialRetryPolicy")
    try:
        if kind == "CUSTOMIZED" and custom:
            waits = custom["next"]
            return int(waits[min(times + SKIPPED, len(waits) - 1)])
        if kind == "EXPONENTIAL" and exponential:
            factor: int = int(exponential.get("multiplier", MULTIPLIER)) ** min(times, MOST_DOUBLINGS)
            return min(int(exponential.get("max", MAX_MS)), int(exponential.get("initial", INITIAL_MS)) * factor)
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError):
        return None  # the levels are a better answer to a malformed policy than no retry at all
    return None
