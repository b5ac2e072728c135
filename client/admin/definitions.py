"""The settings of topics and groups on each broker, as they are kept there: read, changed, deleted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from verniermq.client.admin.cluster import ClusterAdmin
from verniermq.kernel import UnexpectedAnswer, check_topic_name, parse_answer
from verniermq.protocol.groups import DeleteGroup, GetAllGroupConfig, UpdateGroup
from verniermq.protocol.nameserver import DeleteTopicInNamesrv
from verniermq.protocol.topics import DeleteTopic, GetAllTopicConfig, UpdateTopic

PAGE: Final = 1000
"""Topics, or groups, that are asked for at a time; brokers before 5.3 give all at once."""

Page: TypeAlias = GetAllTopicConfig | GetAllGroupConfig
Tables = dict[str, dict[str, dict[str, Any]]]
"""Broker name → name of a topic or group → its members, by RocketMQ's names."""


class DefinitionAdmin(ClusterAdmin):
    async def topic_configs(self) -> Tables:
        """
        Raises:
            UnexpectedAnswer, RemotingError: a broker refused, or does not answer.
        """
        return await self._tables(GetAllTopicConfig, "topicConfigTable")

    async def group_configs(self) -> Tables:
        """
        Raises:
            UnexpectedAnswer, RemotingError: a broker refused, or does not answer.
        """
        return await self._tables(GetAllGroupConfig, "subscriptionGroupTable")

    async def _tables(self, asked: type[Page], member: str) -> Tables:
        self._ensure_running()
        masters = await self._masters()
        return {name: await self._pages(address, asked, member) for name, address in masters.items()}

    async def _pages(self, address: str, asked: type[Page], member: str) -> dict[str, dict[str, Any]]:
        """A table that a broker gives in pages. One that changes meanwhile is read from its start again."""
        found: dict[str, dict[str, Any]] = {}
        version: Any = None
        while True:
            answer = await self._api.ask(address, asked(first=len(found), count=PAGE))
            body = parse_answer(answer.body, address, asked.code.name)
            if found and body.get("dataVersion") != version:
                found = {}
                continue
            version = body.get("dataVersion")
            page = body.get(member) or {}
            found.update(page)
            if not page or len(found) >= answer.integer(asked.TOTAL, 0):
                return found

    async def put_topic(self, broker: str, name: str, members: Mapping[str, Any], attributes: str = "") -> None:
        """Create or change a topic on one broker; ``attributes`` are changes, such as ``+message.type=FIFO``.

        Raises:
            NoSuchBroker: there is none of that name.
            UnexpectedAnswer: it refused.
        """
        self._ensure_running()
        update = UpdateTopic(
            topic=name,
            read_queues=members["readQueueNums"],
            write_queues=members["writeQueueNums"],
            perm=members["perm"],
            order=members["order"],
            filter_type=members.get("topicFilterType") or "SINGLE_TAG",
            sys_flag=members.get("topicSysFlag") or 0,
            attributes=attributes,
        )
        await self._api.ask((await self._masters([broker]))[broker], update, timeout=10.0)

    async def change_topic(self, name: str, brokers: Mapping[str, Mapping[str, Any]], attributes: str = "") -> None:
        """Create or change a topic on these brokers, each as its members say.

        Returns when the name server knows it, so that a send right afterwards finds it.

        Raises:
            BadName: it may not be called so.
            NoSuchBroker, UnexpectedAnswer: as :meth:`put_topic`.
        """
        self._ensure_running()
        wire = self._wire(name)
        check_topic_name(wire)
        for broker, members in brokers.items():
            await self.put_topic(broker, wire, members, attributes)
        for broker, members in brokers.items():
            await self._until_routed(wire, {broker}, members["readQueueNums"])

    async def put_group(self, broker: str, name: str, members: Mapping[str, Any]) -> None:
        """Create or change a group on one broker. Attributes in ``members`` are changes, each with ``+`` or ``-``.

        Raises:
            NoSuchBroker, UnexpectedAnswer: as :meth:`put_topic`.
        """
        self._ensure_running()
        address = (await self._masters([broker]))[broker]
        await self._api.ask(address, UpdateGroup(config={**members, "groupName": name}))

    async def drop_topic(self, broker: str, name: str) -> None:
        """Delete a topic with its messages on one broker; when no broker has it, name servers forget it too.

        Raises:
            NoSuchBroker, UnexpectedAnswer: as :meth:`put_topic`.
        """
        self._ensure_running()
        await self._api.ask((await self._masters([broker]))[broker], DeleteTopic(topic=name), timeout=10.0)
        if not any(name in table for table in (await self.topic_configs()).values()):
            for address in self.options.namesrv:
                try:
                    await self._api.ask(address, DeleteTopicInNamesrv(topic=name))
                except UnexpectedAnswer:
                    continue  # it has forgotten it already
        self._routes.forget(name)

    async def drop_group(self, broker: str, name: str) -> None:
        """Delete a group with its offsets on one broker.

        Raises:
            NoSuchBroker, UnexpectedAnswer: as :meth:`put_topic`.
        """
        self._ensure_running()
        deletion = DeleteGroup(group=name, clean_offset=True)
        await self._api.ask((await self._masters([broker]))[broker], deletion)
