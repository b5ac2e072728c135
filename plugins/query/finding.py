"""Asking brokers for messages, with nothing but a connection: what ``verniermq message`` does underneath."""

from __future__ import annotations

from typing import Any, Final

import anyio

from verniermq.kernel import (
    Command,
    RemotingError,
    RequestCode,
    ResponseCode,
    StoredMessage,
    TopicNotFound,
    UnexpectedAnswer,
    connect,
    decode_records,
    parse_fastjson,
    parse_offset_message_id,
)
from verniermq.plugins.query.handlers import UNIQUE_KEY_QUERY

MASTER: Final = "0"
SEARCH_SECONDS: Final = 18.0
"""A search may read much from the disk; RocketMQ's clients wait as long."""
LATEST: Final = 2**63 - 1


async def by_offset_id(message_id: str) -> StoredMessage | None:
    """The message with an offset message id, from the broker that the id names; ``None`` if that has none.

    Raises:
        ValueError: the text is no offset message id.
        RemotingError: the broker cannot be asked.
    """
    address, offset = parse_offset_message_id(message_id)
    answer = await _ask(address, Command.request(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(offset)}))
    return next(iter(decode_records(answer.body)), None) if answer.code == ResponseCode.SUCCESS else None


async def by_key(
    namesrv: str,
    topic: str,
    key: str,
    *,
    begin_ms: int = 0,
    end_ms: int = LATEST,
    most: int = 64,
    unique: bool = False,
) -> list[StoredMessage]:
    """The newest messages of a topic with a key, from all its brokers, oldest first.

    Raises:
        TopicNotFound: no name server knows the topic.
        RemotingError: a broker or the name server cannot be asked.
        UnexpectedAnswer: a broker refuses.
    """
    fields = {
        "topic": topic,
        "key": key,
        "maxNum": str(most),
        "beginTimestamp": str(begin_ms),
        "endTimestamp": str(end_ms),
        UNIQUE_KEY_QUERY: "true" if unique else "false",
    }
    found: list[StoredMessage] = []

    async def ask(address: str) -> None:
        answer = await _ask(address, Command.request(RequestCode.QUERY_MESSAGE, dict(fields)), SEARCH_SECONDS)
        if answer.code == ResponseCode.SUCCESS:
            found.extend(decode_records(answer.body))
        elif answer.code != ResponseCode.QUERY_NOT_FOUND:
            raise UnexpectedAnswer(address, "QUERY_MESSAGE", answer.code, answer.remark)

    addresses = await _brokers(namesrv, topic)
    try:
        async with anyio.create_task_group() as tasks:
            for address in addresses:
                tasks.start_soon(ask, address)
    except ExceptionGroup as group:
        raise group.exceptions[0] from None
    # A broker may answer with others of the same hash; Apache's does.
    wanted = [message for message in found if message.topic == topic and key in (message.unique_key, *message.keys)]
    return sorted(wanted, key=lambda message: message.store_timestamp)[-most:]


async def _brokers(namesrv: str, topic: str) -> list[str]:
    """The address of each broker that has the topic: its master, or a slave if there is none."""
    error: RemotingError | None = None
    for address in namesrv.replace(",", ";").split(";"):
        try:
            answer = await _ask(address.strip(), Command.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}))
        except RemotingError as unreachable:
            error = unreachable
            continue
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            raise TopicNotFound(topic)
        if answer.code != ResponseCode.SUCCESS:
            raise UnexpectedAnswer(address, "GET_ROUTEINFO_BY_TOPIC", answer.code, answer.remark)
        route: dict[str, Any] = parse_fastjson(answer.body)
        tables = [broker["brokerAddrs"] for broker in route["brokerDatas"]]
        return [table.get(MASTER) or next(iter(table.values())) for table in tables if table]
    assert error is not None
    raise error


async def _ask(address: str, request: Command, timeout: float = 3.0) -> Command:
    connection = await connect(address)
    try:
        return await connection.request(request, timeout)
    finally:
        connection.close()
        await connection.wait_closed()
