"""What a request touches, by name: who may do it is asked with these (RocketMQ: ``AuthorizationContext``).

A request says what it wants to do with which topic and which group; see ``Request.touches``. What is not about one of
them, or is not declared, is about the cluster, and takes an administrator.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from verniermq.kernel.message import StoredMessage
from verniermq.kernel.names import DEAD_LETTER_PREFIX, RETRY_PREFIX
from verniermq.kernel.remoting.command import Command


class Action(StrEnum):
    """RocketMQ's actions. Clients need PUB and SUB; the others are an operator's."""

    PUB = "Pub"
    SUB = "Sub"
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"
    LIST = "List"


class Access(NamedTuple):
    """One thing that a request wants to do.

    A producer group is a group like any other: PUB means to be one of its producers, SUB one of its consumers.
    """

    kind: str
    """``topic``, ``group``, ``client`` (to be the one with this client id) or ``cluster``"""
    name: str
    actions: frozenset[Action]
    """The right to any of them will do."""


PUB: Final = frozenset({Action.PUB})
"""To send."""
SUB: Final = frozenset({Action.SUB})
"""To consume."""
EITHER: Final = frozenset({Action.PUB, Action.SUB})
"""To send or to consume; one of both will do."""
CREATE: Final = frozenset({Action.CREATE})
"""To make new ones."""
UPDATE: Final = frozenset({Action.UPDATE})
"""To change."""
DELETE: Final = frozenset({Action.DELETE})
"""To delete."""
GET: Final = frozenset({Action.GET})
"""To look at one."""
LIST: Final = frozenset({Action.LIST})
"""To look at all."""


def topic_access(name: str, actions: frozenset[Action]) -> Access:
    """To a topic. Retries and dead letters are their group's, whatever is done with them."""
    for prefix in (RETRY_PREFIX, DEAD_LETTER_PREFIX):
        if name.startswith(prefix):
            return Access("group", name[len(prefix) :], SUB)
    return Access("topic", name, actions)


def group_access(name: str, actions: frozenset[Action] = SUB) -> Access:
    """To a group of consumers; of producers with PUB."""
    return Access("group", name, actions)


def client_access(client_id: str) -> Access:
    """To be the client with this id, which replies are pushed to."""
    return Access("client", client_id, PUB)


def cluster_access(actions: frozenset[Action] = UPDATE) -> Access:
    """To the broker as a whole: an administrator's."""
    return Access("cluster", "", actions)


class Finder(Protocol):
    """What an offset in a request points to."""

    def message_at(self, offset: int) -> StoredMessage | None:
        """The message that begins at a commit-log offset, if one does."""


class Identity(Protocol):
    """Who makes the requests of a connection that came by another protocol, with rules of its own."""

    def caller(self, request: Command) -> Caller | None:
        """Who makes this request; ``None`` for the broker itself, which nobody is asked about."""

    def wanted(self, access: Access) -> Access:
        """What one access means in that protocol."""


class Caller(NamedTuple):
    """Who asks, with what it sent to prove that."""

    address: str
    """Of the peer, without the port."""
    request: str
    """What it asks for, as messages call it: ``PULL_MESSAGE (11)``."""
    access_key: str
    """Of the account that it says it is; ``""`` if it says none."""
    is_signed_with: Callable[[bytes], bool]
    """Whether it knows this secret; takes as long for a wrong one as for the right one."""
