"""What a slave copies from its master beside the log: topics, groups, offsets (RocketMQ: ``SlaveSynchronize``).

Consumers may commit to a slave while its master is away. When the master is back it has older offsets, which must not
replace the newer ones: an offset is taken over when the master's has changed since the last look, or is further.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import orjson

from verniermq.kernel import (
    Command,
    Context,
    GroupConfig,
    RemotingError,
    RequestCode,
    RequestRefused,
    TopicConfig,
    hookspec,
    in_steps,
    parse_answer,
    request_name,
)
from verniermq.protocol.peers import Peers

logger = logging.getLogger(__name__)

PAGE: Final = 2000
"""Topics or groups in one answer of an Apache master; others send all at once."""
MOST_PAGES: Final = 1000

OTHER_TABLES: Final = (RequestCode.GET_ALL_DELAY_OFFSET, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)


@hookspec("announcement")
def table_copied(code: int, table: Mapping[str, Any]) -> None:
    """A slave got a table of its master, as the request ``code`` answers it: take it over.

    Announced for ``GET_ALL_DELAY_OFFSET`` and ``GET_ALL_MESSAGE_REQUEST_MODE`` at each look at the master.
    Used by ``schedule``, ``pop``.
    """


class Metadata:
    """Copies the tables of one master."""

    def __init__(self, broker: Context, peers: Peers) -> None:
        self._broker = broker
        self._peers = peers
        self._seen: dict[tuple[str, str, int], int] = {}
        """(group, topic, queue) → the master's offset at the last look."""
        self.on_topics: Callable[[int], None] = lambda end: None
        """Told where our log ended before the topics were copied: the copy has the queues of all before that."""

    async def copy(self, master: str, reached: Callable[[int], Awaitable[bool]] | None = None) -> None:
        """Copy all tables. Some of them say what became of messages, by other messages in the log: ``reached`` is asked
        whether ours has these, which are before an offset; without them such a table is not taken.

        Raises:
            RemotingError: the master cannot be asked.
        """
        end = self._broker.store.end
        await self._topics(master)
        self.on_topics(end)
        await self._groups(master)
        await self._offsets(master)
        for code in OTHER_TABLES:
            try:
                table = await self._ask(master, code, {})
            except RemotingError as error:
                logger.debug("the master has no %s: %s", request_name(code), error)
                continue
            if reached is None or await reached(await self._end(master)):
                self._broker.hooks.announce(table_copied, int(code), table)

    async def _end(self, master: str) -> int:
        info = await self._ask(master, RequestCode.GET_BROKER_RUNTIME_INFO, {})
        return int((info.get("table") or {}).get("commitLogMaxOffset", 0))

    async def _ask(self, master: str, code: RequestCode, fields: dict[str, str]) -> dict[str, Any]:
        answer = await self._peers.ask(master, Command.request(code, fields))
        return parse_answer(answer.body, master, request_name(code))

    async def _pages(self, master: str, code: RequestCode, kind: str, member: str) -> dict[str, Any]:
        """A table that may come in pages; it begins again if the table changed meanwhile."""
        found: dict[str, Any] = {}
        version: Any = ""
        for _ in range(MOST_PAGES):
            fields = {
                f"{kind}Seq": str(len(found)),
                "dataVersion": orjson.dumps(version).decode() if version else "",
                f"max{kind.capitalize()}Num": str(PAGE),
            }
            answer = await self._peers.ask(master, Command.request(code, fields))
            body = parse_answer(answer.body, master, request_name(code))
            if version and body.get("dataVersion") != version:
                found, version = {}, ""
                continue
            version = body.get("dataVersion") or ""
            page = body.get(member) or {}
            found.update(page)
            total = answer.integer(f"total{kind.capitalize()}Num", 0)
            if not page or len(found) >= total:
                break
        return found

    async def _topics(self, master: str) -> None:
        theirs = await self._pages(master, RequestCode.GET_ALL_TOPIC_CONFIG, "topic", "topicConfigTable")
        topics = self._broker.topics
        async for name, config in in_steps(theirs.items()):
            topic = TopicConfig.from_json({"topicName": name, **config})
            if not topics.is_system(name) and topics.find(name) != topic:
                _tolerant(topics.put, topic)
        gone = [topic.name for topic in topics if topic.name not in theirs and not topics.is_system(topic.name)]
        for name in gone if theirs else ():  # a master has its system topics at least
            await self._broker.delete_topic(name)

    async def _groups(self, master: str) -> None:
        code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        theirs = await self._pages(master, code, "group", "subscriptionGroupTable")
        groups = self._broker.groups
        async for name, config in in_steps(theirs.items()):
            group = GroupConfig.from_json({"groupName": name, **config})
            if groups.find(name) != group:
                _tolerant(groups.put, group)
        for name in groups.names():
            if name not in theirs:
                groups.delete(name)

    async def _offsets(self, master: str) -> None:
        table = await self._ask(master, RequestCode.GET_ALL_CONSUMER_OFFSET, {})
        offsets = self._broker.offsets
        async for key, queues in in_steps((table.get("offsetTable") or {}).items()):
            topic, _, group = key.partition("@")
            for queue, offset in queues.items():
                place = (group, topic, int(queue))
                own, before = offsets.committed(*place), self._seen.get(place)
                self._seen[place] = int(offset)
                changed = before is not None and before != int(offset)
                if own != int(offset) and (changed or own is None or own < int(offset)):
                    _tolerant(offsets.commit, *place, int(offset))


def _tolerant(change: Any, *values: Any) -> None:
    """One row that we do not take must not keep the others out."""
    try:
        change(*values)
    except RequestRefused as error:
        logger.warning("what the master has is not taken here: %s", error)
