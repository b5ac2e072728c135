"""Where topics live: routes, asked for once, kept, and looked at again every 30 seconds (RocketMQ: ``TopicRouteData``).

A route names the brokers that have the topic, with the addresses of each (id 0 is the master), and how many queues
each has for reading and writing. A topic that nobody knows yet has the route of ``TBW102``: the broker that gets the
first message makes the topic from that template.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs

from verniermq.client.errors import ClientError, NoRoute
from verniermq.kernel import AUTO_CREATE_TOPIC, MAX_QUEUES, MessageQueue, Perm, RemotingError

if TYPE_CHECKING:
    from verniermq.client.nameservers import NameServers

logger = logging.getLogger(__name__)

MASTER: Final = 0


def _count(queues: Any) -> int:
    """As many queues as a broker may have: a list is made of them."""
    if not 0 <= (count := int(queues)) <= MAX_QUEUES:
        raise ValueError(f"{count} queues, expected 0 to {MAX_QUEUES}")
    return count


@attrs.frozen
class RouteQueues:
    """How many queues of a topic one broker has."""

    broker_name: str
    read: int
    write: int
    perm: int


@attrs.frozen
class Route:
    """Where one topic lives."""

    topic: str
    brokers: Mapping[str, Mapping[int, str]]
    """Broker name → id → address."""
    clusters: Mapping[str, str]
    queues: tuple[RouteQueues, ...]
    order: str = ""
    """``broker:queues;broker:queues`` for a topic whose queues are fixed by the name server."""
    provisional: bool = False
    """The template's route: the topic itself does not exist yet."""
    writable: tuple[MessageQueue, ...] = attrs.field(init=False, eq=False)
    """Queues that a producer may choose from, sorted."""
    readable: tuple[MessageQueue, ...] = attrs.field(init=False, eq=False)

    @writable.default
    def _writable(self) -> tuple[MessageQueue, ...]:
        if self.order:
            fixed = [part.split(":") for part in self.order.split(";") if ":" in part]
            return tuple(MessageQueue(self.topic, name, q) for name, count in fixed for q in range(_count(count)))
        return tuple(
            MessageQueue(self.topic, data.broker_name, queue_id)
            for data in self.queues
            if data.perm & Perm.WRITE and MASTER in self.brokers.get(data.broker_name, {})
            for queue_id in range(data.write)
        )

    @readable.default
    def _readable(self) -> tuple[MessageQueue, ...]:
        return tuple(
            MessageQueue(self.topic, data.broker_name, queue_id)
            for data in self.queues
            if data.perm & Perm.READ and self.brokers.get(data.broker_name)
            for queue_id in range(data.read)
        )

    @classmethod
    def from_json(cls, topic: str, data: Mapping[str, Any]) -> Route:
        """
        Raises:
            AttributeError, KeyError, OverflowError, TypeError, ValueError: it is no route.
        """
        brokers: dict[str, dict[int, str]] = {}
        clusters: dict[str, str] = {}
        for broker in data.get("brokerDatas") or ():
            name = str(broker["brokerName"])
            brokers[name] = {int(number): str(address) for number, address in broker.get("brokerAddrs", {}).items()}
            clusters[name] = str(broker.get("cluster", ""))
        queues = [
            RouteQueues(str(q["brokerName"]), _count(q["readQueueNums"]), _count(q["writeQueueNums"]), int(q["perm"]))
            for q in data.get("queueDatas") or ()
        ]
        queues.sort(key=lambda queue: queue.broker_name)
        return cls(topic, brokers, clusters, tuple(queues), str(data.get("orderTopicConf") or ""))

    def for_new_topic(self, topic: str, wanted_queues: int) -> Route:
        """The template's route, as that of a topic that the first message will make."""
        queues = tuple(
            attrs.evolve(data, read=min(wanted_queues, data.read), write=min(wanted_queues, data.read))
            for data in self.queues
        )
        return Route(topic, self.brokers, self.clusters, queues, provisional=True)

    @property
    def without_master(self) -> list[str]:
        """The brokers that would take messages of this topic, if only they had a master."""
        names = [data.broker_name for data in self.queues if data.perm & Perm.WRITE and data.write]
        return [name for name in names if self.brokers.get(name) and self.master(name) is None]

    def master(self, broker_name: str) -> str | None:
        return self.brokers.get(broker_name, {}).get(MASTER)

    def address(self, broker_name: str, broker_id: int = MASTER) -> str | None:
        """An address to read from: the broker with this id, or else any of the same name."""
        addresses = self.brokers.get(broker_name, {})
        if broker_id in addresses:
            return addresses[broker_id]
        return next(iter(addresses.values()), None)


class Routes:
    """The routes of the topics in use. ``changed`` callbacks hear of each topic whose route is another now."""

    def __init__(self, name_servers: NameServers) -> None:
        self._name_servers = name_servers
        self._routes: dict[str, Route] = {}
        self._asking: dict[str, asyncio.Future[Route]] = {}
        self.changed: list[Callable[[str], None]] = []

    def known(self, topic: str) -> Route | None:
        return self._routes.get(topic)

    def topics(self) -> list[str]:
        return list(self._routes)

    def addresses(self, *, masters_only: bool = False) -> set[str]:
        """Of all brokers that some topic in use lives on."""
        return {
            address
            for route in self._routes.values()
            for ids in route.brokers.values()
            for number, address in ids.items()
            if number == MASTER or not masters_only
        }

    def broker_address(self, broker_name: str, broker_id: int = MASTER) -> str | None:
        for route in self._routes.values():
            if broker_name in route.brokers:
                return route.address(broker_name, broker_id)
        return None

    def master_address(self, broker_name: str) -> str | None:
        """Where the master is; a slave takes no messages and keeps no locks."""
        for route in self._routes.values():
            if broker_name in route.brokers:
                return route.master(broker_name)
        return None

    async def get(self, topic: str) -> Route:
        """The route of an existing topic.

        Raises:
            NoRoute: there is no such topic.
            NameServerUnreachable: nobody can say.
        """
        route = self._routes.get(topic)
        return route if route is not None and not route.provisional else await self.fetch(topic)

    async def for_sending(self, topic: str, wanted_queues: int) -> Route:
        """The route of a topic, or that of the template if the topic is still to be made.

        Raises:
            NoRoute: the topic does not exist and cannot be made by sending to it.
            NameServerUnreachable: nobody can say.
        """
        route = self._routes.get(topic)
        if route is not None and not route.provisional:
            return route
        try:
            return await self.fetch(topic)
        except NoRoute:
            try:
                template = await self._name_servers.route(AUTO_CREATE_TOPIC)
            except NoRoute:
                why = "and topics are not created by sending to them"
                raise NoRoute(topic, self._name_servers.text, why) from None
        made = template.for_new_topic(topic, wanted_queues)
        self._keep(made)
        return made

    async def fetch(self, topic: str) -> Route:
        """Ask now; several who ask for the same topic at a time share one answer."""
        asking = self._asking.get(topic)
        if asking is None:
            asking = asyncio.ensure_future(self._name_servers.route(topic))
            self._asking[topic] = asking
            asking.add_done_callback(lambda _: self._asking.pop(topic, None))
        route = await asyncio.shield(asking)
        self._keep(route)
        return route

    def _keep(self, route: Route) -> None:
        earlier = self._routes.get(route.topic)
        self._routes[route.topic] = route
        if earlier is not None and earlier != route:
            logger.info("route changed topic=%s queues=%d", route.topic, len(route.writable))
            for callback in self.changed:
                callback(route.topic)

    def forget(self, topic: str) -> None:
        self._routes.pop(topic, None)

    async def refresh(self, address: str | None = None) -> None:
        """Look at every topic in use again, or those of one broker; what cannot be learnt now stays as it was."""
        for topic, route in list(self._routes.items()):
            if address is not None and not any(address in ids.values() for ids in route.brokers.values()):
                continue
            try:
                await self.fetch(topic)
            except NoRoute:
                pass  # not made yet, or being moved: the old route is the best guess
            except (ClientError, RemotingError) as error:
                logger.warning("routes not refreshed, the old ones stay reason=%s", error)
                return
