"""Popping: messages of any queue, each of them acknowledged by itself (RocketMQ: POP consumption).

A pop takes messages from all queues of a topic on one broker and makes them invisible to the others. Nothing waits in a
pop: who waits asks for a notification, which may be given up at any moment without a message being on its way.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable
from typing import Final

import attrs

from verniermq.client.api import BrokerApi
from verniermq.client.consumer.handback import DEAD
from verniermq.client.consumer.subscription import TopicSubscription
from verniermq.client.errors import ClientError, NoRoute
from verniermq.client.message import ReceivedMessage
from verniermq.client.names import with_namespace, without_namespace
from verniermq.client.receipt import Receipt
from verniermq.client.routes import Route, Routes
from verniermq.kernel import PeerUnreachable, Perm, RemotingError, RequestRefused, UnexpectedAnswer

logger = logging.getLogger(__name__)

MOST: Final = 32
"""Messages of one pop, since the broker keeps a bit for each in a 32-bit number."""
HOLD_SECONDS: Final = 30.0
"""How long a broker is asked to wait for something to tell of."""
AFTER_ERROR: Final = 1.0
TRIES: Final = 3
"""How often an acknowledgement is sent, when a connection breaks or no answer comes."""
BETWEEN_TRIES: Final = 0.2


@attrs.frozen
class PopSource:
    """A topic on one broker: what one pop can take from."""

    wanted: TopicSubscription
    broker_name: str


@attrs.define(eq=False)
class Popper:
    """Pops for one group, and settles what was popped."""

    api: BrokerApi
    routes: Routes
    group: str
    """As brokers know it."""
    namespace: str
    from_end: bool
    """Where a new group begins: at the end of each queue, or at its first message."""
    max_attempts: int
    """How often a message is handed out before it becomes a dead letter; 0: for ever."""
    wanted: Callable[[], Iterable[TopicSubscription]]
    in_order: bool = False
    """Look into the topics in the order in which they are wanted; otherwise in a random one."""
    _asked: dict[PopSource, asyncio.Task[None]] = attrs.field(factory=dict, init=False)

    # --- getting ---------------------------------------------------------------------------

    async def places(self) -> list[PopSource]:
        """Where there may be messages now, in a random order unless told otherwise: no broker is always the last.

        Raises:
            NoRoute: not one of the topics exists.
            NameServerUnreachable: nobody can say.
        """
        found: list[PopSource] = []
        missing: NoRoute | None = None
        for wanted in self.wanted():
            try:
                route = await self.routes.get(wanted.topic)
            except NoRoute as error:
                missing = error
                continue
            brokers = _readable(route)
            random.shuffle(brokers)
            found += [PopSource(wanted, name) for name in brokers]
        if not found and missing is not None:
            raise missing
        if not self.in_order:
            random.shuffle(found)
        return found

    async def pop(self, place: PopSource, count: int, invisible: float) -> list[ReceivedMessage]:
        """Up to ``count`` messages, without waiting. Dead letters are made of those that came too often.

        Raises:
            RemotingError: the broker does not answer, or refuses.
        """
        popped = await self.api.pop(
            self._address(place.broker_name), place.broker_name, place.wanted.subscription, group=self.group,
            max_messages=min(count, MOST), invisible_ms=int(invisible * 1000), from_end=self.from_end,
        )  # fmt: skip
        kept = place.wanted.keep(popped)
        for message in popped:
            message.topic = without_namespace(self.namespace, place.wanted.topic)
        if len(kept) < len(popped):
            # The broker goes by the hashes of tags, which may collide: the others are not for this group.
            wished = {id(message) for message in kept}
            for message in popped:
                if id(message) not in wished:
                    await self.settle(message)
        return [message for message in kept if not await self._buried(message)]

    async def wait(self, places: Iterable[PopSource], seconds: float) -> None:
        """Return when one of the places has something, or the time is over; after a failure, in a moment."""
        asked = {place: self._ask_to_be_told(place) for place in places}
        if not asked:
            await asyncio.sleep(min(seconds, AFTER_ERROR))
            return
        await asyncio.wait(asked.values(), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)

    def _ask_to_be_told(self, place: PopSource) -> asyncio.Task[None]:
        """The one request for a notification that is under way at a place: others that wait share it.

        It outlives who waits, so that brokers do not keep one for each time that something came from elsewhere.
        """
        asked = self._asked.get(place)
        if asked is None:
            asked = self._asked[place] = asyncio.create_task(self._wait_at(place))
            asked.add_done_callback(lambda _: self._asked.pop(place, None))
        return asked

    async def _wait_at(self, place: PopSource) -> None:
        try:
            address = self._address(place.broker_name)
            if not await self.api.wait_to_pop(
                address, place.wanted.subscription, group=self.group, hold_ms=int(HOLD_SECONDS * 1000)
            ):
                await asyncio.sleep(AFTER_ERROR)
        except RemotingError as error:
            logger.debug("not told of messages topic=%s reason=%s", place.wanted.topic, error)
            await asyncio.sleep(AFTER_ERROR)

    async def close(self) -> None:
        """Wait for nothing more."""
        asked = list(self._asked.values())
        for task in asked:
            task.cancel()
        if asked:
            await asyncio.wait(asked)

    def _address(self, broker_name: str) -> str:
        address = self.routes.broker_address(broker_name)
        if address is None:
            raise PeerUnreachable(broker_name, "no topic in use has a route to it")
        return address

    # --- settling --------------------------------------------------------------------------

    async def settle(self, message: ReceivedMessage) -> None:
        """The message is done with.

        Raises:
            RemotingError: no broker took the acknowledgement; the message comes again when its time is over.
        """
        receipt, topic = self._receipt(message)
        for last in (False,) * (TRIES - 1) + (True,):
            try:
                await self.api.acknowledge(self._address(receipt.broker_name), self.group, topic, receipt)
                return
            except UnexpectedAnswer:
                raise
            except RemotingError:
                if last:
                    raise
            await asyncio.sleep(BETWEEN_TRIES)

    async def change_invisible(self, message: ReceivedMessage, seconds: float) -> None:
        """Let the message come again after so many seconds from now, unless it is acknowledged before.

        Raises:
            ReceiptExpired: its time was over already.
            RemotingError: the broker does not answer, or refuses.
        """
        receipt, topic = self._receipt(message)
        address = self._address(receipt.broker_name)
        message.receipt = await self.api.change_invisible(
            address, self.group, topic, receipt, max(0, int(seconds * 1000))
        )

    async def bury(self, message: ReceivedMessage, reason: str) -> bool:
        """Make a dead letter of it; say whether the broker has it."""
        receipt, topic = self._receipt(message)
        try:
            await self.api.send_back(
                self._address(receipt.broker_name), self.group, message, delay_level=DEAD,
                max_reconsume_times=self.max_attempts, origin_topic=topic, reason=reason,
            )  # fmt: skip
            await self.settle(message)
        except (RemotingError, RequestRefused) as error:
            logger.warning("no dead letter yet, tried again later message=%s reason=%s", message.message_id, error)
            return False
        return True

    async def _buried(self, message: ReceivedMessage) -> bool:
        """Whether the message is not to be handed out, since it came too often."""
        if not 0 < self.max_attempts <= message.reconsume_times:
            return False
        # Where it fails the message stays invisible, comes again, and is buried then.
        if await self.bury(message, f"not acknowledged after {self.max_attempts} attempts"):
            logger.warning(
                "dead letter after %d attempts message=%s group=%s", self.max_attempts, message.message_id, self.group
            )
        return True

    def _receipt(self, message: ReceivedMessage) -> tuple[Receipt, str]:
        if message.receipt is None:
            raise ClientError(f"message {message.message_id} was not received by popping, so it has no receipt")
        return message.receipt, with_namespace(self.namespace, message.topic)


def _readable(route: Route) -> list[str]:
    return [
        data.broker_name
        for data in route.queues
        if data.perm & Perm.READ and data.read and data.broker_name in route.brokers
    ]
