"""A consumer that receives and acknowledges message by message (RocketMQ 5: ``SimpleConsumer``)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Literal, Unpack

from verniermq.client.base import Client
from verniermq.client.consumer.checks import check_sql
from verniermq.client.consumer.membership import heartbeat_data, leave
from verniermq.client.consumer.popper import AFTER_ERROR, MOST, Popper
from verniermq.client.consumer.renewal import Renewal
from verniermq.client.consumer.subscription import ALL, Selector, TopicSubscription
from verniermq.client.errors import ClientError, NameServerUnreachable, NoRoute
from verniermq.client.message import ReceivedMessage
from verniermq.client.names import with_namespace
from verniermq.client.options import ConnectionOptions
from verniermq.kernel import RETRY_PREFIX, RemotingError, check_group_name, check_topic_name


class SimpleOptions(ConnectionOptions, total=False):
    """The keyword arguments of a :class:`SimpleConsumer`, for classes that pass them on."""

    invisible: float
    wait: float
    start: Literal["last", "first"]
    max_attempts: int
    auto_renew: bool
    in_order: bool


class SimpleConsumer(Client):
    """Receives messages of any queue; each is acknowledged by itself.

    All members of a group take from all queues: one slow message holds up no other. A message that was received is
    invisible to the others for ``invisible`` seconds; if it is not acknowledged by then it comes again, to any member.

    ::

        async with SimpleConsumer("billing", namesrv="127.0.0.1:9876") as consumer:
            consumer.subscribe("orders")
            for message in await consumer.receive(16):
                ...
                await consumer.ack(message)

    Args:
        invisible: seconds until a message that was not acknowledged comes again
        wait: seconds that :meth:`receive` waits for a first message
        start: where a new group begins: ``"last"`` for new messages only, ``"first"`` for all that are there
        max_attempts: how often a message is handed out before it becomes a dead letter; 0: for ever
        auto_renew: ask for more time again and again for everything that was received and is not settled, until it
            is, or this consumer is closed
        in_order: look into the topics in the order of their subscriptions: those of the first ones go first
    """

    def __init__(
        self,
        group: str,
        *,
        invisible: float = 60.0,
        wait: float = 20.0,
        start: Literal["last", "first"] = "last",
        max_attempts: int = 16,
        auto_renew: bool = False,
        in_order: bool = False,
        **connection: Unpack[ConnectionOptions],
    ) -> None:
        super().__init__(**connection)
        check_group_name(group)
        if start not in ("last", "first"):
            raise ClientError(f"start={start!r}, expected 'last' or 'first'")
        if invisible <= 0:
            raise ClientError(f"invisible={invisible!r}, expected more than 0 seconds")
        if wait < 0 or max_attempts < 0:
            raise ClientError(f"wait={wait!r}, max_attempts={max_attempts!r}; neither can be less than 0")
        self.group = group
        self._wire_group = with_namespace(self.options.namespace, group)
        self._invisible = invisible
        self._wait = wait
        self._start_from: Literal["last", "first"] = start
        self._max_attempts = max_attempts
        self._auto_renew = auto_renew
        self._in_order = in_order
        self._subscriptions: dict[str, TopicSubscription] = {}
        self._checked: set[TopicSubscription] = set()
        self._popper: Popper
        self._renewal: Renewal

    # --- what is wanted --------------------------------------------------------------------

    def subscribe(self, topic: str, selector: Selector = ALL) -> None:
        """Want the messages of a topic: all, some tags (``"a || b"``), or an :class:`Sql` condition."""
        wire = with_namespace(self.options.namespace, topic)
        check_topic_name(wire)
        self._subscriptions[wire] = TopicSubscription.make(wire, selector)
        if self._state == "runs":
            self._background.spawn(self._heartbeat)

    def unsubscribe(self, topic: str) -> None:
        self._subscriptions.pop(with_namespace(self.options.namespace, topic), None)
        if self._state == "runs":
            self._background.spawn(self._heartbeat)

    # --- messages --------------------------------------------------------------------------

    async def receive(
        self, max_messages: int = 1, *, wait: float | None = None, invisible: float | None = None
    ) -> list[ReceivedMessage]:
        """Up to ``max_messages`` messages (at most 32), waiting for the first one; none if the time is over.

        What was on its way when the caller is cancelled is given back at once.

        Raises:
            ClientError: there is nothing to receive from, ``max_messages`` is not from 1 to 32, or ``invisible`` is too
                short for ``auto_renew``.
            NoRoute, NameServerUnreachable, RemotingError: no topic or broker was there, all the time.
        """
        self._ensure_running()
        if not self._subscriptions:
            raise ClientError(f"consumer {self.group!r} subscribes to nothing; call subscribe(topic) first")
        if not 1 <= max_messages <= MOST:
            raise ClientError(f"max_messages={max_messages!r}, expected 1 to {MOST}")
        invisible = self._invisible if invisible is None else invisible
        if self._auto_renew and invisible < self._invisible:
            raise ClientError(
                f"invisible={invisible!r} is shorter than the {self._invisible!r} s of this consumer, at a third of "
                "which it asks for more time; give the consumer itself the shorter time"
            )
        deadline = time.monotonic() + (self._wait if wait is None else wait)
        trouble: Exception | None = None
        while True:
            try:
                places = await self._popper.places()
                for place in places:
                    await self._check(place.wanted)
                found, trouble = await self._take(places, max_messages, invisible)
                if found:
                    return found
            except (NoRoute, NameServerUnreachable) as error:
                places, trouble = [], error
            left = deadline - time.monotonic()
            if left <= 0:
                if trouble is not None:
                    raise trouble
                return []
            if trouble is not None:
                await asyncio.sleep(min(left, AFTER_ERROR))
            else:
                await self._popper.wait(places, left)
            self._ensure_running()

    async def wait_for_messages(self, seconds: float) -> None:
        """Return when there may be something to receive, or the time is over. For programs that are not always ready.

        Raises:
            NoRoute, NameServerUnreachable: no topic is there.
        """
        self._ensure_running()
        await self._popper.wait(await self._popper.places(), seconds)

    async def _take(self, places: Any, count: int, invisible: float) -> tuple[list[ReceivedMessage], Exception | None]:
        """What all places together have, and an error if not one of them answered."""
        taking = asyncio.create_task(self._pop_round(places, count, invisible))
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            self._background.spawn(self._give_back, taking)
            raise

    async def _pop_round(
        self, places: Any, count: int, invisible: float
    ) -> tuple[list[ReceivedMessage], Exception | None]:
        found: list[ReceivedMessage] = []
        errors: list[Exception] = []
        for place in places:
            if len(found) == count:
                break
            try:
                found += await self._popper.pop(place, count - len(found), invisible)
            except RemotingError as error:
                errors.append(error)
        if self._auto_renew:
            self._renewal.add(found)
        return found, errors[0] if errors and len(errors) == len(places) else None

    async def _give_back(self, taking: asyncio.Task[tuple[list[ReceivedMessage], Exception | None]]) -> None:
        for message in (await taking)[0]:
            await self.change_invisible(message, 0)

    async def ack(self, message: ReceivedMessage) -> None:
        """The message is done with. Late acknowledgements do nothing: the message is on its way to somebody already.

        Raises:
            ClientError: the message was not received by popping.
            RemotingError: the broker was not reached in several tries, so the message comes again.
        """
        self._ensure_running()
        await self._renewal.release(message)
        await self._popper.settle(message)

    async def change_invisible(self, message: ReceivedMessage, seconds: float) -> None:
        """Have the message come again in so many seconds from now, unless it is acknowledged before; 0: at once.

        Raises:
            ReceiptExpired: its time was over already, or it was acknowledged.
        """
        self._ensure_running()
        await self._renewal.release(message)
        await self._popper.change_invisible(message, seconds)

    async def dead_letter(self, message: ReceivedMessage, reason: str = "") -> bool:
        """Put the message to the dead letters now; ``False`` if the broker did not take it, so that it comes again."""
        self._ensure_running()
        await self._renewal.release(message)
        return await self._popper.bury(message, reason)

    # --- joining and leaving ---------------------------------------------------------------

    async def _started(self) -> None:
        self._popper = Popper(
            self._api, self._routes, self._wire_group, self.options.namespace, self._start_from == "last",
            self._max_attempts, lambda: list(self._subscriptions.values()), self._in_order,
        )  # fmt: skip
        self._renewal = Renewal(self._popper, self._invisible)
        if self._auto_renew:
            self._background.every(self._renewal.interval, self._renewal.renew)

    async def _check(self, wanted: TopicSubscription) -> None:
        if wanted.is_sql and wanted not in self._checked:
            await check_sql(self._api, self._routes, self.client_id, self._wire_group, wanted)
            self._checked.add(wanted)

    async def _stopping(self) -> None:
        await self._popper.close()
        if self._subscriptions:
            await leave(self._pool, self._api, self.options.namesrv, self.client_id, self._wire_group)

    def _heartbeat_addresses(self) -> set[str]:
        return self._routes.addresses(masters_only=True)

    def _heartbeat_data(self) -> dict[str, Any] | None:
        if not self._subscriptions:
            return None
        retry = RETRY_PREFIX + self._wire_group
        wanted: Mapping[str, TopicSubscription] = {**self._subscriptions, retry: TopicSubscription.make(retry)}
        return heartbeat_data(self._wire_group, wanted, self._start_from, is_asked=True)
