"""The request that hands a message back, to be consumed again later."""

from __future__ import annotations

from collections.abc import Iterator

from verniermq.kernel import RequestCode
from verniermq.kernel.requests import (
    GET,
    SUB,
    Access,
    Finder,
    Request,
    boolean,
    cluster_access,
    group_access,
    integer,
    request,
    text,
    topic_access,
)


@request
class ConsumerSendMsgBack(Request):
    code = RequestCode.CONSUMER_SEND_MSG_BACK
    group: str = text("group")
    offset: int = integer("offset")
    delay_level: int = integer("delayLevel", default=0)
    max_reconsume_times: int | None = integer("maxReconsumeTimes", default=None)
    origin_topic: str | None = text("originTopic", default=None)
    origin_message_id: str | None = text("originMsgId", default=None)
    unit_mode: bool = boolean("unitMode", default=False)
    broker_name: str | None = text("bname", default=None)
    reason: str | None = text("failureReason", default=None)
    """Why it failed. Apache's clients have no such field, and their brokers leave it alone."""

    def touches(self, finder: Finder) -> Iterator[Access]:
        yield group_access(self.group)
        # Its copy goes to the retry topic of the group, which may read it there: so it needs the right to read it here.
        message = finder.message_at(self.offset)
        yield cluster_access(GET) if message is None else topic_access(message.topic, SUB)
