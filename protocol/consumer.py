"""What a broker asks of a consumer, for an operator."""

from __future__ import annotations

from verniermq.kernel import RequestCode
from verniermq.kernel.requests import Request, request, text


@request
class GetConsumerOffsets(Request):
    """How far the consumer itself believes to be."""

    code = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
    topic: str = text("topic", default="")
    """Of this topic; of all without one."""
    group: str = text("group", default="")


@request
class ConsumeByHand(Request):
    """Hand the message in the body to the consumer's handler."""

    code = RequestCode.CONSUME_MESSAGE_DIRECTLY
    group: str = text("consumerGroup", default="")
    broker_name: str = text("brokerName", default="")
