"""Asking brokers for messages, with nothing but a connection: what ``verniermq message`` does underneath."""

from __future__ import annotations

from typing import Final

import anyio

from verniermq.kernel import (
    ResponseCode,
    StoredMessage,
    UnexpectedAnswer,
    decode_records,
    parse_offset_message_id,
)
from verniermq.protocol.peers import MASTER, Peers
from verniermq.protocol.query import QueryMessage, ViewMessage

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
    async with Peers() as peers:
        try:
            answer = await peers.ask(address, ViewMessage(offset=offset).command())
        except UnexpectedAnswer:
            return None
    return next(iter(decode_records(answer.body)), None)


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
    query = QueryMessage(topic=topic, key=key, max_messages=most, begin_ms=begin_ms, end_ms=end_ms, unique=unique)
    found: list[StoredMessage] = []

    async with Peers(namesrv) as peers:

        async def ask(address: str) -> None:
            answer = await peers.ask(address, query.command(), {ResponseCode.QUERY_NOT_FOUND}, SEARCH_SECONDS)
            if answer.code == ResponseCode.SUCCESS:
                found.extend(decode_records(answer.body))

        addresses = await _brokers(peers, topic)
        try:
            async with anyio.create_task_group() as tasks:
                for address in addresses:
                    tasks.start_soon(ask, address)
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
    # A broker may answer with others of the same hash; Apache's does.
    wanted = [message for message in found if message.topic == topic and key in (message.unique_key, *message.keys)]
    return sorted(wanted, key=lambda message: message.store_timestamp)[-most:]


async def _brokers(peers: Peers, topic: str) -> list[str]:
    """The address of each broker that has the topic: its master, or a slave if there is none."""
    tables = [broker["brokerAddrs"] for broker in (await peers.route(topic))["brokerDatas"]]
    return [table.get(MASTER) or next(iter(table.values())) for table in tables if table]
