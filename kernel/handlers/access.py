"""Who may do what with which topic and group: asked before a request is served, with the names that it touches.

What a request touches is read from what its handler will read (:meth:`~verniermq.kernel.requests.Request.of`), so that
nobody can show the check one thing and have the handler do another. The brokers' own topics are nobody's: to touch one
is a matter of the cluster.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from verniermq.kernel.errors import NoPermission, RequestRefused
from verniermq.kernel.handlers.table import HandlerTable
from verniermq.kernel.remoting import Command, Connection, request_name
from verniermq.kernel.remoting.signature import ACCESS_KEY, is_signed_with
from verniermq.kernel.requests import Access, Caller, Finder, Identity

logger = logging.getLogger(__name__)


class Wanted:
    """What a request wants to do; found out when it is looked at, which may refuse what cannot be decoded."""

    def __init__(self, request: Command, find: Callable[[Command], Iterator[Access]]) -> None:
        self._request = request
        self._find = find

    def __iter__(self) -> Iterator[Access]:
        try:
            yield from self._find(self._request)
        except RequestRefused:
            raise
        except Exception as error:
            # A mistake of ours that some request brings to light. It must not pass; nor may it count as a failure
            # of the plugin that asks, ten of which in a row may end the broker.
            name = request_name(self._request.code)
            logger.exception("what a request touches cannot be told request=%s", name)
            raise NoPermission(f"what {name} touches cannot be told: {error!r:.200}") from error


class AccessCheck:
    """Asks ``before_access`` about each request.

    Args:
        calls: the implementations of the hook
        is_closed: whether a topic is the broker's own
    """

    def __init__(
        self, calls: Sequence[Callable[..., Any]], table: HandlerTable, finder: Finder, is_closed: Callable[[str], bool]
    ) -> None:
        self._calls = calls
        self._table = table
        self._finder = finder
        self._is_closed = is_closed

    def __call__(self, request: Command, connection: Connection) -> None:
        """
        Raises:
            RequestRefused: a plugin refuses it.
        """
        identity: Identity | None = connection.identity
        if identity is not None:
            if (caller := identity.caller(request)) is not None:
                self.ask(caller, Wanted(request, lambda command: map(identity.wanted, self._touched(command))))
            return
        caller = Caller(
            address=connection.peer_host.strip("[]"),
            request=request_name(request.code),
            access_key=request.ext.get(ACCESS_KEY, ""),
            is_signed_with=partial(is_signed_with, request=request),
        )
        self.ask(caller, Wanted(request, self._touched))

    def ask(self, caller: Caller, wanted: Any) -> None:
        """The same for what came another way than as a command."""
        for call in tuple(self._calls):
            call(caller, wanted)

    def _touched(self, request: Command) -> Iterator[Access]:
        for access in self._table.request_class(request.code).of(request).touches(self._finder):
            if access.kind == "topic" and self._is_closed(access.name):
                yield Access("cluster", access.name, access.actions)
            else:
                yield access
