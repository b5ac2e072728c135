"""The requests that only the broker knows: acknowledgements in batches, which queues are whose, and who pops."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from verniermq.kernel import InvalidParameter, RequestCode
from verniermq.kernel.requests import (
    LIST,
    SUB,
    UPDATE,
    Access,
    Finder,
    Request,
    cluster_access,
    group_access,
    in_body,
    json_object,
    request,
    topic_access,
)
from verniermq.protocol.pop import popped_from


@request
class BatchAckMessage(Request):
    """Acknowledgements of many pops: short names of members, or the long ones."""

    code = RequestCode.BATCH_ACK_MESSAGE
    acks: list[Mapping[str, Any]] = in_body()

    def take_body(self, body: bytes) -> None:
        acks = (json_object(body).get("acks") or []) if body else []
        if not isinstance(acks, list) or not all(isinstance(ack, dict) for ack in acks):
            raise InvalidParameter("the body is no batch of acknowledgements: acks is no list of objects")
        self.acks = acks

    def touches(self, finder: Finder) -> Iterator[Access]:
        for ack in self.acks:
            yield from popped_from(str(member(ack, "t", "topic")), str(member(ack, "c", "consumerGroup")))


def member(ack: Mapping[str, Any], short: str, long: str) -> Any:
    """A member of an acknowledgement, under whichever name it has.

    Raises:
        InvalidParameter: it has neither.
    """
    if short in ack:
        return ack[short]
    if long in ack:
        return ack[long]
    raise InvalidParameter(f"an acknowledgement lacks {long} ({short})")


@request
class QueryAssignment(Request):
    """Which queues a consumer gets."""

    code = RequestCode.QUERY_ASSIGNMENT
    topic: str = in_body()
    group: str = in_body()
    client_id: str = in_body()
    strategy: str = in_body()
    message_model: str = in_body()

    def take_body(self, body: bytes) -> None:
        data = json_object(body)
        self.topic, self.group = str(data.get("topic")), str(data.get("consumerGroup"))
        self.client_id, self.strategy = str(data.get("clientId")), str(data.get("strategyName"))
        self.message_model = str(data.get("messageModel"))

    def touches(self, finder: Finder) -> Iterator[Access]:
        yield topic_access(self.topic, SUB)
        yield group_access(self.group)


@request
class SetMessageRequestMode(Request):
    code = RequestCode.SET_MESSAGE_REQUEST_MODE
    topic: str = in_body()
    group: str = in_body()
    mode: str = in_body()
    share: Any = in_body()

    def take_body(self, body: bytes) -> None:
        data = json_object(body)
        self.topic, self.group = str(data.get("topic")), str(data.get("consumerGroup"))
        self.mode, self.share = str(data.get("mode")), data.get("popShareQueueNum") or 0

    def touches(self, finder: Finder) -> Iterator[Access]:
        yield group_access(self.group, UPDATE)


@request
class GetAllMessageRequestMode(Request):
    code = RequestCode.GET_ALL_MESSAGE_REQUEST_MODE

    def touches(self, finder: Finder) -> Iterator[Access]:
        yield cluster_access(LIST)
