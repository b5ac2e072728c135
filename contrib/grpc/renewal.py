"""Messages that a push consumer works on stay invisible, for as long as it lives (``auto_renew``).

The client goes on with the receipt that it got: what it acknowledges or gives back is looked up here, and the newest
handle is used. A client that is not heard of gets no more time, so that its messages come again within a minute; one
that says goodbye gives all of them back at once. After three hours a message comes again in any case.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import attrs

from verniermq.contrib.grpc.brokers import Brokers
from verniermq.contrib.grpc.clients import GrpcClient
from verniermq.contrib.grpc.handles import Handle
from verniermq.kernel import RemotingError, RequestCode, ResponseCode
from verniermq.protocol.pop import ChangeInvisibleTime

logger = logging.getLogger(__name__)

INVISIBLE_SECONDS: Final = 60.0
RENEW_BEFORE_MS: Final = 10_000
"""A handle that has no more time left than this is renewed."""
STEPS_MS: Final = tuple(minutes * 60_000 for minutes in (1, 3, 5, 10, 30, 60))
LONGEST_MS: Final = 3 * 3600 * 1000
HEARD_SECONDS: Final = 35.0
"""Clients send a heartbeat every ten seconds."""
BACK_AT_ONCE_MS: Final = 1000
"""How soon a message comes again that is given back because nobody is there for it."""
MOST_FAILURES: Final = 3
MOST_HELD: Final = 200_000
"""Messages of all clients together; those beyond are not renewed."""


@attrs.define(eq=False)
class Held:
    """One message that a client works on."""

    client: GrpcClient
    group: str
    topic: str
    handle: Handle
    since_ms: int
    renewed: int = 0
    failures: int = 0
    lock: asyncio.Lock = attrs.field(factory=asyncio.Lock)
    """Held while the handle changes, or is used up."""


@attrs.define(eq=False)
class Renewals:
    brokers: Brokers
    _held: dict[str, Held] = attrs.field(factory=dict, init=False)
    """By the receipt that the client has."""

    def __len__(self) -> int:
        return len(self._held)

    def add(self, receipt: str, client: GrpcClient, group: str, topic: str, handle: Handle) -> None:
        if len(self._held) < MOST_HELD:
            self._held[receipt] = Held(client, group, topic, handle, self.brokers.clock.now_ms())

    def find(self, receipt: str) -> Held | None:
        return self._held.get(receipt)

    def drop(self, receipt: str) -> None:
        self._held.pop(receipt, None)

    async def renew_due(self) -> None:
        """Give more time to everything that needs it."""
        now, heard = self.brokers.clock.now_ms(), self.brokers.clock.monotonic() - HEARD_SECONDS
        for receipt, held in list(self._held.items()):
            if held.handle.visible_at - now > RENEW_BEFORE_MS:
                continue
            gone = held.client.last_heard < heard
            if gone or held.handle.visible_at <= now or now - held.since_ms > LONGEST_MS:
                self.drop(receipt)
                continue
            await self._renew(receipt, held)

    async def _renew(self, receipt: str, held: Held) -> None:
        step = STEPS_MS[min(held.renewed, len(STEPS_MS) - 1)]
        async with held.lock:
            if self._held.get(receipt) is not held:
                return  # acknowledged meanwhile
            try:
                held.handle = await change(self.brokers, held.group, held.topic, held.handle, step)
                held.renewed += 1
                held.failures = 0
            except RemotingError as error:
                held.failures += 1
                logger.warning("message not renewed group=%s reason=%s", held.group, error)
        if held.failures >= MOST_FAILURES:
            self.drop(receipt)

    async def give_back(self, client: GrpcClient) -> None:
        """A client leaves: what it has in hand is for others."""
        for receipt, held in list(self._held.items()):
            if held.client is client:
                self.drop(receipt)
                async with held.lock:
                    await return_soon(self.brokers, held.group, held.topic, held.handle)


async def change(brokers: Brokers, group: str, topic: str, handle: Handle, invisible_ms: int) -> Handle:
    """On the server's own behalf: let a message stay invisible for so long from now on.

    Raises:
        RemotingError: the broker does not answer, or refuses.
    """
    request = change_request(group, topic, handle, invisible_ms)
    answer = await brokers.ask(handle.receipt.broker_name, request.command(), 3.0)
    if answer.code != ResponseCode.SUCCESS:
        raise RemotingError(f"{RequestCode.CHANGE_MESSAGE_INVISIBLETIME.name}: {answer.remark or answer.code}")
    return Handle(handle.receipt.renewed(answer), handle.log_offset)


async def return_soon(brokers: Brokers, group: str, topic: str, handle: Handle) -> None:
    """Have a message come again in a second; if that fails, it comes when its time is over."""
    try:
        await change(brokers, group, topic, handle, BACK_AT_ONCE_MS)
    except RemotingError as error:
        logger.debug("message not given back group=%s reason=%s", group, error)


def change_request(group: str, topic: str, handle: Handle, invisible_ms: int) -> ChangeInvisibleTime:
    receipt = handle.receipt
    return ChangeInvisibleTime(
        group=group,
        topic=receipt.wire_topic(topic, group),
        queue_id=receipt.queue_id,
        offset=receipt.offset,
        handle=str(receipt),
        broker_name=receipt.broker_name,
        invisible_ms=invisible_ms,
    )
