"""What of RocketMQ is refused here on purpose, and why: one table for requests, one for properties of messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from verniermq.kernel.codes import RequestCode

LITE_TOPICS: Final = "lite topics are not supported, since a message here is in the queue of one topic only"
"""What a request for lite topics is answered."""
LIGHT_QUEUES: Final = "light message queues are not supported, since a message here is in the queue of one topic only"

REFUSED_REQUESTS: Final[Mapping[int, str]] = {
    RequestCode.POP_LITE_MESSAGE: LITE_TOPICS,
    RequestCode.LITE_SUBSCRIPTION_CTL: LITE_TOPICS,
    RequestCode.ACK_LITE_MESSAGE: LITE_TOPICS,
    RequestCode.NOTIFY_UNSUBSCRIBE_LITE: LITE_TOPICS,
    RequestCode.GET_BROKER_LITE_INFO: LITE_TOPICS,
    RequestCode.GET_PARENT_TOPIC_INFO: LITE_TOPICS,
    RequestCode.GET_LITE_TOPIC_INFO: LITE_TOPICS,
    RequestCode.GET_LITE_CLIENT_INFO: LITE_TOPICS,
    RequestCode.GET_LITE_GROUP_INFO: LITE_TOPICS,
    RequestCode.TRIGGER_LITE_DISPATCH: LITE_TOPICS,
}

REFUSED_PROPERTIES: Final[Mapping[str, str]] = {
    "__LITE_TOPIC": LITE_TOPICS,
    "INNER_MULTI_DISPATCH": LIGHT_QUEUES,
}
"""A message with one of these would be stored, and never reach the consumers that it is meant for."""
