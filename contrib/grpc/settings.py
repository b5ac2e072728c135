"""What a client is told in return for its settings. Clients take every field without a look, so none may be missing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from verniermq.contrib.grpc.schema import proto
from verniermq.kernel import GroupConfig

LONGEST_POLL: Final = 20.0
"""Seconds that a receive waits at most, as Apache's proxy."""
BATCH: Final = 32
PRODUCER_ATTEMPTS: Final = 3
BACKOFF_SECONDS: Final = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
"""The pauses before a message is tried again: RocketMQ's delay levels."""
LONGEST_LITE_TOPIC: Final = 64


def max_attempts(group: GroupConfig) -> int:
    """How often a message is handed out before it becomes a dead letter."""
    return max(1, group.retry_max_times + 1)


def is_fifo(group: GroupConfig) -> bool:
    """Whether a group consumes in order, one message of a message group after the other."""
    return bool(group.members.get("consumeMessageOrderly"))


def fill_in_publishing(settings: Any, max_body_size: int) -> None:
    settings.publishing.max_body_size = max_body_size
    settings.publishing.validate_message_type = True
    backoff = settings.backoff_policy
    backoff.max_attempts = PRODUCER_ATTEMPTS
    backoff.exponential_backoff.CopyFrom(proto.ExponentialBackoff(multiplier=2.0))
    backoff.exponential_backoff.initial.FromMilliseconds(10)
    backoff.exponential_backoff.max.FromSeconds(1)
    _switch_metric_off(settings)


def fill_in_subscription(settings: Any, group: GroupConfig) -> None:
    subscription = settings.subscription
    subscription.fifo = is_fifo(group)
    subscription.receive_batch_size = BATCH
    asked = subscription.long_polling_timeout.ToMilliseconds() / 1000
    # Whole seconds, and at least one: clients of Python look at these alone, and none may poll without a pause.
    subscription.long_polling_timeout.FromSeconds(int(min(asked, LONGEST_POLL)) if asked >= 1 else int(LONGEST_POLL))
    subscription.lite_subscription_quota = 0
    subscription.max_lite_topic_size = LONGEST_LITE_TOPIC
    settings.backoff_policy.max_attempts = max_attempts(group)
    _fill_in_backoff(settings.backoff_policy, group.retry_policy)
    _switch_metric_off(settings)


def _fill_in_backoff(policy: Any, of_group: Mapping[str, Any]) -> None:
    exponential = of_group.get("exponentialRetryPolicy")
    if of_group.get("type") == "EXPONENTIAL" and isinstance(exponential, Mapping):
        backoff = proto.ExponentialBackoff(multiplier=float(exponential.get("multiplier") or 2))
        backoff.initial.FromMilliseconds(int(exponential.get("initial") or 5_000))
        backoff.max.FromMilliseconds(int(exponential.get("max") or 7_200_000))
        policy.exponential_backoff.CopyFrom(backoff)
        return
    own = (of_group.get("customizedRetryPolicy") or {}).get("next")
    steps = own if isinstance(own, list) and own else [seconds * 1000 for seconds in BACKOFF_SECONDS]
    policy.customized_backoff.Clear()
    for step in steps:
        policy.customized_backoff.next.add().FromMilliseconds(int(step))


def _switch_metric_off(settings: Any) -> None:
    settings.metric.Clear()
    settings.metric.on = False
    settings.metric.SetInParent()
