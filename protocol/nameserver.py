"""The requests to a name server."""

from __future__ import annotations

from collections.abc import Iterator

from verniermq.kernel import RequestCode
from verniermq.kernel.requests import (
    EITHER,
    GET,
    Access,
    Finder,
    Request,
    request,
    text,
    topic_access,
)


@request
class GetRouteInfo(Request):
    """Asked of a name server."""

    code = RequestCode.GET_ROUTEINFO_BY_TOPIC
    topic: str = text("topic")

    def touches(self, finder: Finder) -> Iterator[Access]:
        yield topic_access(self.topic, EITHER | GET)
