"""What a request needs: which right, to which topic or as which consumer group.

======================================================  ==================================================
sends, recalls, the end of a transaction                PUB to the topic
pulls, pops and their acknowledgements, offsets         SUB to the topic, and SUB as the group
heartbeats, locks, who else is there, handing back      SUB as each group, SUB to each topic they name
where a queue begins and ends                           PUB or SUB to the topic
reading by key                                          SUB to the topic
``%RETRY%`` and ``%DLQ%`` topics                        SUB as the group that they belong to
everything else                                         an administrator
======================================================  ==================================================

"Everything else" is the safe side: a request that a later plugin adds is closed until it is listed here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from verniermq.kernel import DEAD_LETTER_PREFIX, RETRY_PREFIX, Command, InvalidParameter, parse_fastjson
from verniermq.kernel import RequestCode as R
from verniermq.plugins.acl.accounts import PUB, SUB


class Need(NamedTuple):
    """One right that a request takes; any of several will do."""

    kind: str
    """``topic`` or ``group``"""
    name: str
    rights: frozenset[str]


_PUB: Final = frozenset({PUB})
_SUB: Final = frozenset({SUB})
_EITHER: Final = frozenset({PUB, SUB})

Finder: TypeAlias = Callable[[Command], Iterable[Need]]


def topic_need(name: str, rights: frozenset[str]) -> Need:
    for prefix in (RETRY_PREFIX, DEAD_LETTER_PREFIX):
        if name.startswith(prefix):
            return Need("group", name[len(prefix) :], _SUB)
    return Need("topic", name, rights)


def _topic_in(field: str, rights: frozenset[str], *, optional: bool = False) -> Finder:
    def find(request: Command) -> Iterator[Need]:
        name = request.ext.get(field, "")
        if name or not optional:
            yield topic_need(name, rights)

    return find


def _group_in(field: str, *, optional: bool = False) -> Finder:
    def find(request: Command) -> Iterator[Need]:
        name = request.ext.get(field, "")
        if name or not optional:
            yield Need("group", name, _SUB)

    return find


def _topic_and_group(request: Command) -> Iterator[Need]:
    yield topic_need(request.ext.get("topic", ""), _SUB)
    yield Need("group", request.ext.get("consumerGroup", ""), _SUB)


# --- what stands in bodies -------------------------------------------------------------------


def _body(request: Command) -> Mapping[str, Any]:
    try:
        body = parse_fastjson(request.body)
    except ValueError as error:
        raise InvalidParameter(f"the body is no JSON: {error}") from None
    if not isinstance(body, Mapping):
        raise InvalidParameter(f"the body is a JSON {type(body).__name__}, expected an object")
    return body


def _objects(items: Any) -> Iterator[Mapping[str, Any]]:
    """The objects of a list; a missing list has none."""
    if items is not None and not isinstance(items, list):
        raise InvalidParameter(f"the body has {items!r:.80}, expected a list")
    for item in items or ():
        if not isinstance(item, Mapping):
            raise InvalidParameter(f"the body lists {item!r:.80}, expected an object")
        yield item


def _text(item: Mapping[str, Any], *names: str) -> str:
    """What stands under the first of these names that is there."""
    return str(next((item[name] for name in names if item.get(name) is not None), ""))


def _topics_of(items: Any, *names: str) -> Iterator[Need]:
    for item in _objects(items):
        yield topic_need(_text(item, *names), _SUB)


def _heartbeat(request: Command) -> Iterator[Need]:
    for consumer in _objects(_body(request).get("consumerDataSet")):
        yield Need("group", _text(consumer, "groupName"), _SUB)
        yield from _topics_of(consumer.get("subscriptionDataSet"), "topic")


def _locks(request: Command) -> Iterator[Need]:
    body = _body(request)
    yield Need("group", _text(body, "consumerGroup"), _SUB)
    yield from _topics_of(body.get("mqSet"), "topic")


def _assignment(request: Command) -> Iterator[Need]:
    body = _body(request)
    yield Need("group", _text(body, "consumerGroup"), _SUB)
    yield from _topics_of([body], "topic")


def _checked_client(request: Command) -> Iterator[Need]:
    body = _body(request)
    yield Need("group", _text(body, "group"), _SUB)
    yield from _topics_of([body.get("subscriptionData")], "topic")


def _acknowledged(request: Command) -> Iterator[Need]:
    acks = _body(request).get("acks")
    for ack in _objects(acks):
        yield Need("group", _text(ack, "c", "consumerGroup"), _SUB)
    yield from _topics_of(acks, "t", "topic")


FINDERS: Final[Mapping[int, Finder]] = {
    R.SEND_MESSAGE: _topic_in("topic", _PUB),
    R.SEND_MESSAGE_V2: _topic_in("b", _PUB),
    R.SEND_BATCH_MESSAGE: _topic_in("b", _PUB),
    R.SEND_REPLY_MESSAGE: _topic_in("topic", _PUB),
    R.SEND_REPLY_MESSAGE_V2: _topic_in("b", _PUB),
    R.RECALL_MESSAGE: _topic_in("topic", _PUB),
    R.END_TRANSACTION: _topic_in("topic", _PUB, optional=True),
    R.PULL_MESSAGE: _topic_and_group,
    R.LITE_PULL_MESSAGE: _topic_and_group,
    R.POP_MESSAGE: _topic_and_group,
    R.PEEK_MESSAGE: _topic_and_group,
    R.ACK_MESSAGE: _topic_and_group,
    R.CHANGE_MESSAGE_INVISIBLETIME: _topic_and_group,
    R.NOTIFICATION: _topic_and_group,
    R.POLLING_INFO: _topic_and_group,
    R.BATCH_ACK_MESSAGE: _acknowledged,
    R.QUERY_CONSUMER_OFFSET: _topic_and_group,
    R.UPDATE_CONSUMER_OFFSET: _topic_and_group,
    R.QUERY_MESSAGE: _topic_in("topic", _SUB),
    R.CONSUMER_SEND_MSG_BACK: _group_in("group"),
    R.HEART_BEAT: _heartbeat,
    R.UNREGISTER_CLIENT: _group_in("consumerGroup", optional=True),
    R.GET_CONSUMER_LIST_BY_GROUP: _group_in("consumerGroup"),
    R.GET_CONSUMER_CONNECTION_LIST: _group_in("consumerGroup"),
    R.LOCK_BATCH_MQ: _locks,
    R.UNLOCK_BATCH_MQ: _locks,
    R.QUERY_ASSIGNMENT: _assignment,
    R.CHECK_CLIENT_CONFIG: _checked_client,
    R.SEARCH_OFFSET_BY_TIMESTAMP: _topic_in("topic", _EITHER),
    R.GET_MAX_OFFSET: _topic_in("topic", _EITHER),
    R.GET_MIN_OFFSET: _topic_in("topic", _EITHER),
    R.GET_EARLIEST_MSG_STORETIME: _topic_in("topic", _EITHER),
}
