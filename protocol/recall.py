"""The request that takes a timed message back before its time."""

from __future__ import annotations

from collections.abc import Iterator

from verniermq.kernel import RequestCode
from verniermq.kernel.requests import PUB, Access, Finder, Request, request, text, topic_access


@request
class RecallMessage(Request):
    """A producer takes a message with a delivery time back."""

    code = RequestCode.RECALL_MESSAGE
    group: str = text("producerGroup", default="")
    topic: str = text("topic")
    """The handle has to be for the same one."""
    handle: str = text("recallHandle")
    broker_name: str | None = text("bname", default=None)

    def touches(self, finder: Finder) -> Iterator[Access]:
        yield topic_access(self.topic, PUB)
