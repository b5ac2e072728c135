"""Topics and brokers: created, changed, listed, looked at and deleted."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

import anyio
import attrs

from verniermq.client.admin.base import AdminBase
from verniermq.client.errors import NoRoute
from verniermq.kernel import AUTO_CREATE_TOPIC, MessageQueue, Perm, RequestCode, check_topic_name
from verniermq.protocol.nameserver import DeleteTopicInNamesrv
from verniermq.protocol.topics import DeleteTopic, UpdateTopic

ROUTE_PATIENCE: Final = 5.0
"""Seconds that a new topic may take to reach the name server."""


@attrs.frozen
class TopicInfo:
    """One topic, over all brokers that have it."""

    name: str
    queues: int
    """Read queues on all brokers together."""
    write_queues: int
    perm: int
    brokers: tuple[str, ...]


class TopicAdmin(AdminBase):
    # --- topics ----------------------------------------------------------------------------

    async def topics(self) -> list[str]:
        """The names of all topics that the name server knows, system topics included."""
        self._ensure_running()
        return await self._name_servers.topics()

    async def topic(self, name: str) -> TopicInfo:
        """
        Raises:
            NoRoute: there is no such topic.
        """
        self._ensure_running()
        route = await self._routes.fetch(self._wire(name))
        return TopicInfo(
            name,
            sum(data.read for data in route.queues),
            sum(data.write for data in route.queues),
            max((data.perm for data in route.queues), default=0),
            tuple(data.broker_name for data in route.queues),
        )

    async def create_topic(
        self,
        name: str,
        *,
        queues: int = 8,
        perm: int = Perm.READ_WRITE,
        order: bool = False,
        brokers: Sequence[str] | None = None,
        attributes: dict[str, str] | None = None,
    ) -> None:
        """Create a topic, or change it, on all brokers or on those named.

        Returns when the name server knows it, so that a send right afterwards finds it.

        Raises:
            BadName: it may not be called so.
            NoSuchBroker: one of ``brokers`` is not there.
            UnexpectedAnswer: a broker refused.
        """
        self._ensure_running()
        wire = self._wire(name)
        check_topic_name(wire)
        update = UpdateTopic(
            topic=wire,
            default_topic=AUTO_CREATE_TOPIC,
            read_queues=queues,
            write_queues=queues,
            perm=perm,
            order=order,
            attributes=",".join(f"+{key}={value}" for key, value in (attributes or {}).items()),
        )
        masters = await self._masters(brokers)
        for address in masters.values():
            await self._api.ask(address, update, timeout=10.0)
        await self._until_routed(wire, set(masters), queues)

    async def _until_routed(self, topic: str, brokers: set[str], queues: int) -> None:
        deadline = time.monotonic() + ROUTE_PATIENCE
        while True:
            try:
                route = await self._routes.fetch(topic)
            except NoRoute:
                if time.monotonic() > deadline:
                    raise
            else:
                ready = {data.broker_name for data in route.queues if data.read == queues}
                if brokers <= ready or time.monotonic() > deadline:
                    return
            await anyio.sleep(0.05)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic with its messages, on all brokers and in the name servers."""
        self._ensure_running()
        wire = self._wire(name)
        for address in (await self._masters()).values():
            await self._api.ask(address, DeleteTopic(topic=wire), timeout=10.0)
        for address in self.options.namesrv:
            await self._api.ask(address, DeleteTopicInNamesrv(topic=wire))
        self._routes.forget(wire)

    async def topic_offsets(self, name: str) -> dict[MessageQueue, tuple[int, int]]:
        """Queue → (first offset, one past the last).

        Raises:
            NoRoute: there is no such topic.
        """
        self._ensure_running()
        route = await self._routes.fetch(self._wire(name))
        found = {}
        for queue in route.readable:
            address = route.address(queue.broker_name)
            if address is not None:
                low, high = await self._api.min_offset(address, queue), await self._api.max_offset(address, queue)
                found[queue] = (low, high)
        return found

    # --- brokers ---------------------------------------------------------------------------

    async def brokers(self) -> dict[str, dict[int, str]]:
        """Broker name → id → address; 0 is the master."""
        self._ensure_running()
        return await self._name_servers.brokers()

    async def clusters(self) -> dict[str, list[str]]:
        """Cluster name → the names of its brokers."""
        self._ensure_running()
        return await self._name_servers.clusters()

    async def broker_info(self, broker_name: str) -> dict[str, str]:
        """The figures that a broker reports of itself.

        Raises:
            NoSuchBroker: there is none of that name.
        """
        self._ensure_running()
        address = (await self._masters([broker_name]))[broker_name]
        body: dict[str, Any] = await self._api.json(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        return dict(body.get("table") or {})
