"""The requests of a client about itself: heartbeats, who else is there, goodbyes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import orjson

from verniermq.kernel.codes import RequestCode
from verniermq.kernel.errors import InvalidParameter
from verniermq.kernel.requests.access import PUB, SUB, Access, Finder, client_access, group_access, topic_access
from verniermq.kernel.requests.body import json_object, objects
from verniermq.kernel.requests.request import Request, in_body, request, text

INNER_PRODUCER: Final = "CLIENT_INNER_PRODUCER"
"""The producer group that every Java client is in, also one that only consumes. It has no transactions."""


@request
class Heartbeat(Request):
    """HEART_BEAT: a client says who it is, and which groups it is in."""

    code = RequestCode.HEART_BEAT
    client_id: str = in_body()
    producer_groups: list[str] = in_body()
    consumers: list[dict[str, Any]] = in_body()
    """``groupName``, ``subscriptionDataSet`` and the modes of each consumer group."""
    without_subscriptions: bool = in_body(default=False)

    def take_body(self, body: bytes) -> None:
        data = json_object(body)
        self.client_id = str(data.get("clientID") or "")
        if not self.client_id:
            raise InvalidParameter("the heartbeat has no clientID")
        self.producer_groups = [str(one.get("groupName", "")) for one in objects(data, "producerDataSet")]
        self.consumers = objects(data, "consumerDataSet")
        self.without_subscriptions = bool(data.get("withoutSub"))

    def body(self) -> bytes:
        return orjson.dumps(
            {
                "clientID": self.client_id,
                "producerDataSet": [{"groupName": group} for group in self.producer_groups],
                "consumerDataSet": self.consumers,
                "heartbeatFingerprint": 0,
                "withoutSub": self.without_subscriptions,
            }
        )

    def touches(self, finder: Finder) -> Iterator[Access]:
        # A producer is asked about the transactions of its group, and gets their messages with the question.
        for group in self.producer_groups:
            if group != INNER_PRODUCER:
                yield group_access(group, PUB)
        for consumer in self.consumers:
            yield group_access(str(consumer.get("groupName", "")))
            for subscription in objects(consumer, "subscriptionDataSet"):
                yield topic_access(str(subscription.get("topic", "")), SUB)
        if self.producer_groups:
            yield client_access(self.client_id)


@request
class UnregisterClient(Request):
    """UNREGISTER_CLIENT: a client leaves its groups."""

    code = RequestCode.UNREGISTER_CLIENT
    client_id: str = text("clientID", default="")
    producer_group: str | None = text("producerGroup", default=None)
    consumer_group: str | None = text("consumerGroup", default=None)

    def touches(self, finder: Finder) -> Iterator[Access]:
        """Only the connection that it comes on leaves, so that it needs no right to be there."""
        return iter(())


@request
class GetConsumerList(Request):
    """GET_CONSUMER_LIST_BY_GROUP: who else is in a consumer group."""

    code = RequestCode.GET_CONSUMER_LIST_BY_GROUP
    group: str = text("consumerGroup")

    def touches(self, finder: Finder) -> Iterator[Access]:
        yield group_access(self.group)


@request
class NotifyConsumersChanged(Request):
    """NOTIFY_CONSUMER_IDS_CHANGED: a broker tells a consumer that others of its group came or went."""

    code = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
    group: str = text("consumerGroup")


@request
class CheckClientConfig(Request):
    """A client has an expression looked at before it subscribes."""

    code = RequestCode.CHECK_CLIENT_CONFIG
    client_id: str = in_body(default="")
    group: str = in_body()
    namespace: str = in_body(default="")
    subscription: Mapping[str, Any] | None = in_body(default=None)

    def take_body(self, body: bytes) -> None:
        data = json_object(body)
        self.client_id = str(data.get("clientId") or "")
        self.group = str(data.get("group") or "")
        self.namespace = str(data.get("namespace") or "")
        wire = data.get("subscriptionData")
        self.subscription = wire if isinstance(wire, dict) else None

    def body(self) -> bytes:
        return orjson.dumps(
            {
                "clientId": self.client_id,
                "group": self.group,
                "namespace": self.namespace,
                "subscriptionData": self.subscription,
            }
        )

    def touches(self, finder: Finder) -> Iterator[Access]:
        yield group_access(self.group)
        if self.subscription is not None:
            yield topic_access(str(self.subscription.get("topic", "")), SUB)
