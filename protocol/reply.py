"""The request that hands a reply to the client that asked."""

from __future__ import annotations

from verniermq.kernel import RequestCode
from verniermq.kernel.requests import Request, boolean, integer, request, text


@request
class PushReply(Request):
    """A broker hands a reply to the client that asked: the fields of the send, spelled out, and where it came from."""

    code = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
    group: str = text("producerGroup", default="")
    topic: str = text("topic")
    default_topic: str = text("defaultTopic", default="")
    default_queues: int = integer("defaultTopicQueueNums", default=4)
    queue_id: int = integer("queueId", default=0)
    sys_flag: int = integer("sysFlag", default=0)
    born_timestamp: int = integer("bornTimestamp", default=0)
    flag: int = integer("flag", default=0)
    properties: str = text("properties", default="")
    reconsume_times: int = integer("reconsumeTimes", default=0)
    unit_mode: bool = boolean("unitMode", default=False)
    born_host: str = text("bornHost", default="")
    store_host: str = text("storeHost", default="")
    store_timestamp: int = integer("storeTimestamp", default=0)
