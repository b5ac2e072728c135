"""The requests that lock queues for a consumer, and let them go."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import orjson

from verniermq.kernel import InvalidParameter, MessageQueue, RequestCode, parse_fastjson
from verniermq.kernel.requests import (
    SUB,
    Access,
    Finder,
    Request,
    check_json_size,
    group_access,
    in_body,
    request,
    topic_access,
)


@request
class LockBatchMQ(Request):
    """LOCK_BATCH_MQ and UNLOCK_BATCH_MQ."""

    code = RequestCode.LOCK_BATCH_MQ
    group: str = in_body()
    client_id: str = in_body()
    queues: Sequence[Mapping[str, Any]] = in_body()
    """``topic``, ``brokerName`` and ``queueId`` each."""

    @classmethod
    def of_queues(cls, group: str, client_id: str, queues: Iterable[MessageQueue]) -> LockBatchMQ:
        wire = [{"topic": one.topic, "brokerName": one.broker_name, "queueId": one.queue_id} for one in queues]
        return LockBatchMQ(group=group, client_id=client_id, queues=wire)

    def take_body(self, body: bytes) -> None:
        check_json_size(body)
        try:
            data = parse_fastjson(body)
            self.group, self.client_id, self.queues = data["consumerGroup"], data["clientId"], data["mqSet"]
            if not isinstance(self.group, str) or not isinstance(self.client_id, str):
                raise ValueError("consumerGroup and clientId must be texts")
            if not self.group or not self.client_id:
                raise ValueError("consumerGroup and clientId must be texts")
            if not isinstance(self.queues, list) or not all(isinstance(one, dict) for one in self.queues):
                raise ValueError("mqSet must be a list of queues")
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InvalidParameter(f"the body of the lock request is malformed: {error!r}") from error

    def body(self) -> bytes:
        named = {"consumerGroup": self.group, "clientId": self.client_id}
        return orjson.dumps({**named, "mqSet": self.queues, "onlyThisBroker": False})

    def touches(self, finder: Finder) -> Iterator[Access]:
        yield group_access(self.group)
        for queue in self.queues:
            yield topic_access(str(queue.get("topic", "")), SUB)
