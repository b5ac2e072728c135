"""The requests of consumers that pop: take, look, acknowledge, keep for longer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from verniermq.kernel import RETRY_PREFIX, RequestCode
from verniermq.kernel.requests import (
    SUB,
    Access,
    Finder,
    Request,
    boolean,
    group_access,
    integer,
    request,
    text,
    topic_access,
)

MOST_POPPED: Final = 32
"""Messages of one pop, as RocketMQ."""
LONGEST_INVISIBLE_MS: Final = 10 * 365 * 24 * 3600 * 1000
"""Ten years: with any time of the clock it still fits into 64 bits."""


@request
class PollingInfo(Request):
    """How many wait?"""

    code = RequestCode.POLLING_INFO
    group: str = text("consumerGroup")
    topic: str = text("topic")
    queue_id: int = integer("queueId")

    def touches(self, finder: Finder) -> Iterator[Access]:
        yield topic_access(self.topic, SUB)
        yield group_access(self.group)


@request
class Notification(PollingInfo):
    """Is there something to pop?"""

    code = RequestCode.NOTIFICATION
    wait_ms: int = integer("pollTime", default=0)
    born_ms: int | None = integer("bornTime", default=None)
    expression: str | None = text("exp", default=None)
    expression_type: str = text("expType", default="TAG")
    is_ordered: bool = boolean("order", default=False)
    attempt_id: str | None = text("attemptId", default=None)
    broker_name: str | None = text("bname", default=None)


@request
class PeekMessage(Notification):
    """What would come next?"""

    code = RequestCode.PEEK_MESSAGE
    max_messages: int = integer("maxMsgNums", at_least=1, at_most=MOST_POPPED)


@request
class PopMessage(PeekMessage):
    code = RequestCode.POP_MESSAGE
    invisible_ms: int = integer("invisibleTime", at_least=0, at_most=LONGEST_INVISIBLE_MS)
    init_mode: int = integer("initMode", default=0)


def popped_from(topic: str, group: str) -> Iterator[Access]:
    """What it takes to be done with a message of a topic, or of the retry topic that a group has for it."""
    yield group_access(group)
    of_group = RETRY_PREFIX + group
    if topic.startswith((f"{of_group}_", f"{of_group}+")):
        yield topic_access(topic[len(of_group) + 1 :], SUB)
    else:
        yield topic_access(topic, SUB)


@request
class AckMessage(Request):
    code = RequestCode.ACK_MESSAGE
    group: str = text("consumerGroup")
    topic: str = text("topic")
    queue_id: int = integer("queueId")
    offset: int = integer("offset")
    handle: str = text("extraInfo")
    broker_name: str | None = text("bname", default=None)

    def touches(self, finder: Finder) -> Iterator[Access]:
        return popped_from(self.topic, self.group)


@request
class ChangeInvisibleTime(AckMessage):
    code = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
    invisible_ms: int = integer("invisibleTime", at_least=0, at_most=LONGEST_INVISIBLE_MS)
