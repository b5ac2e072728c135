"""The requests about transactions: what became of one, and the question."""

from __future__ import annotations

from collections.abc import Iterator

from verniermq.kernel import HALF_TOPIC, Property, RequestCode
from verniermq.kernel.requests import (
    PUB,
    UPDATE,
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
class EndTransaction(Request):
    code = RequestCode.END_TRANSACTION
    topic: str | None = text("topic", default=None)
    """Not to be trusted: the half message knows where it is meant to go."""
    group: str = text("producerGroup")
    half_offset: int = integer("tranStateTableOffset")
    log_offset: int = integer("commitLogOffset")
    outcome: int = integer("commitOrRollback")
    from_check: bool = boolean("fromTransactionCheck", default=False)
    message_id: str | None = text("msgId", default=None)
    transaction_id: str | None = text("transactionId", default=None)
    broker_name: str | None = text("bname", default=None)

    def touches(self, finder: Finder) -> Iterator[Access]:
        half = finder.message_at(self.log_offset)
        if half is None or half.topic != HALF_TOPIC:
            yield cluster_access(UPDATE)
            return
        yield group_access(half.properties.get(Property.PRODUCER_GROUP, ""), PUB)
        yield topic_access(half.properties.get(Property.REAL_TOPIC, ""), PUB)


@request
class CheckTransactionState(Request):
    """A broker asks a producer what became of a transaction; the body is the half message as a record."""

    code = RequestCode.CHECK_TRANSACTION_STATE
    topic: str | None = text("topic", default=None)
    half_offset: int = integer("tranStateTableOffset")
    log_offset: int = integer("commitLogOffset")
    message_id: str | None = text("msgId", default=None)
    transaction_id: str | None = text("transactionId", default=None)
    offset_message_id: str | None = text("offsetMsgId", default=None)
    broker_name: str | None = text("bname", default=None)


@request
class ResumeCheck(Request):
    """An operator opens a transaction again that was given up."""

    code = RequestCode.RESUME_CHECK_HALF_MESSAGE
    message_id: str = text("msgId")
