"""The request that sends a consumer group elsewhere in a topic."""

from __future__ import annotations

from collections.abc import Iterator

from verniermq.kernel import RequestCode
from verniermq.kernel.requests import UPDATE, Access, Finder, Request, boolean, group_access, integer, request, text


@request
class ResetOffset(Request):
    code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
    topic: str = text("topic")
    group: str = text("group")
    timestamp: int = integer("timestamp")
    """In ms; -1 where ``offset`` says it."""
    offset: int = integer("offset", default=-1)
    queue_id: int = integer("queueId", default=-1)
    """-1 for all of them."""
    is_force: bool | None = boolean("isForce", default=None)

    def touches(self, finder: Finder) -> Iterator[Access]:
        yield group_access(self.group, UPDATE)
