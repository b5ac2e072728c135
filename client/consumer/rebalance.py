"""Who reads which queue: worked out by every member for itself, from the same lists (RocketMQ: ``RebalanceImpl``).

All members sort the queues of a topic and the ids of the group in the same way and ask the same strategy, so each queue
finds exactly one owner without anybody deciding. It is done again when a broker says that the members changed, when
a route changed, and every 20 seconds in case nobody said anything.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Final

import attrs

from verniermq.client import hookspecs
from verniermq.client.api import BrokerApi
from verniermq.client.errors import ClientError, NoRoute
from verniermq.client.routes import Route, Routes
from verniermq.kernel import RETRY_PREFIX, MessageQueue, PluginHost, RemotingError, RequestRefused, nearest

logger = logging.getLogger(__name__)

INTERVAL: Final = 20.0
SOON: Final = 1.0
"""After a round that could not be finished."""
SETTLE: Final = 0.05
"""Several notices come at once when several members start; one round is enough for all."""

BUILT_IN: Final = "allocate"
STRATEGIES: Final = ("AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH", "MACHINE_ROOM", "MACHINE_ROOM_NEARBY", "CONFIG")


@attrs.define(eq=False)
class Rebalancer:
    """Keeps one consumer's share of its topics right."""

    api: BrokerApi
    routes: Routes
    host: PluginHost
    group: str
    client_id: str
    strategy: str
    broadcasting: bool
    topics: Callable[[], list[str]]
    apply: Callable[[str, set[MessageQueue]], Awaitable[bool]]
    """Takes and drops queues of a topic; says whether all wanted ones are taken."""
    heartbeat: Callable[[str], Awaitable[None]]
    interval: float = INTERVAL
    rounds: int = attrs.field(default=0, init=False)
    _wake: asyncio.Event = attrs.field(factory=asyncio.Event, init=False)
    _warned: set[str] = attrs.field(factory=set, init=False)

    def check_strategy(self) -> None:
        """Ask it about the topics that are there already, as if this member were alone.

        Raises:
            ClientError: no plugin knows the strategy, or it cannot share these queues.
        """
        for topic in self.topics():
            route = self.routes.known(topic)
            if route is not None and route.readable:
                self._share(sorted(route.readable), [self.client_id])

    def _share(self, queues: list[MessageQueue], clients: list[str]) -> list[MessageQueue]:
        """
        Raises:
            ClientError: the same.
        """
        try:
            answer = self.host.ask(
                hookspecs.allocate_queues, self.strategy, self.group, self.client_id, queues, clients
            )
        except RequestRefused as error:
            raise ClientError(f"allocate={self.strategy!r}: {error}") from error
        if answer is None:
            raise ClientError(f"allocate={self.strategy!r}: {self._why_no_answer()}")
        return answer

    def _why_no_answer(self) -> str:
        if not self.host.is_active(BUILT_IN):
            return f"the plugin {BUILT_IN!r} does not run in this consumer; leave it out of disable"
        return f"no plugin of this consumer knows that strategy; {nearest(self.strategy, STRATEGIES)}"

    def wake(self) -> None:
        """Do the next round now."""
        self._wake.set()

    async def run(self) -> None:
        while True:
            self._wake.clear()
            complete = await self.round()
            try:
                async with asyncio.timeout(self.interval if complete else SOON):
                    await self._wake.wait()
                await asyncio.sleep(SETTLE)
            except TimeoutError:
                pass

    async def round(self) -> bool:
        """One look at all topics; say whether everything is as it should be."""
        complete = True
        for topic in self.topics():
            try:
                complete &= await self._balance(topic)
            except NoRoute as error:
                # The retry topic comes with the first failed message; another one that is missing may be a mistake.
                if not topic.startswith(RETRY_PREFIX):
                    complete = False
                    if topic not in self._warned:
                        self._warned.add(topic)
                        logger.warning("waiting for a topic: %s", error)
            except (RemotingError, ClientError) as error:
                complete = False
                logger.warning("not rebalanced group=%s topic=%s reason=%s", self.group, topic, error)
        self.rounds += 1
        return complete

    async def _balance(self, topic: str) -> bool:
        route = await self.routes.get(topic)
        queues = sorted(route.readable)
        if self.broadcasting:
            return await self.apply(topic, set(queues))
        address = _some_broker(route)
        clients = await self.api.consumer_ids(address, self.group)
        if self.client_id not in clients:
            # The broker has not heard of us, perhaps because it has just started. Tell it, and look again.
            await self.heartbeat(address)
            return False
        answer = self._share(queues, clients)
        # A list written by hand names queues of all topics, whichever is asked about.
        return await self.apply(topic, {queue for queue in answer if queue.topic == topic})


def _some_broker(route: Route) -> str:
    names = [name for name, ids in route.brokers.items() if ids]
    if not names:
        raise NoRoute(route.topic, "the name server", "no broker has it now")
    address = route.address(random.choice(names))
    assert address is not None
    return address
