"""Where a scenario takes place: a running broker of ours, or of Apache's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import count
from math import inf
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import attrs

from verniermq.client import Admin, Message, Producer, PullConsumer, PullStatus, ReceivedMessage

T = TypeVar("T")

_numbers = count(1)

PATIENCE = 30.0


@attrs.define(eq=False)
class Place:
    """A name server with a broker; many scenarios share one, so each uses names of its own."""

    namesrv: str
    broker: str
    advance: Callable[[float], None] | None = None
    """Moves the broker's clock, where it has one that can be moved."""
    longest_delay: float = inf
    """Nothing that a scenario waits for takes the broker longer: where time cannot be moved, so much is enough."""

    def name(self, base: str) -> str:
        return f"{base}-{next(_numbers)}"

    async def pass_time(self, seconds: float) -> None:
        """Let the broker believe that so much time has passed, or let it pass."""
        if self.advance is not None:
            await anyio.to_thread.run_sync(self.advance, seconds)
        else:
            await anyio.sleep(min(seconds, self.longest_delay))

    async def topic(self, base: str, queues: int = 4) -> str:
        """A topic of the scenario's own."""
        name = self.name(base)
        async with Admin(namesrv=self.namesrv) as admin:
            await admin.create_topic(name, queues=queues)
        return name

    def producer(self, group: str = "senders", **options: Any) -> Producer:
        """One that waits for an answer on a busy machine too: what is sent again comes twice."""
        return Producer(group, namesrv=self.namesrv, **{"send_timeout": PATIENCE, **options})

    async def send(self, topic: str, bodies: list[bytes], **options: Any) -> None:
        async with self.producer() as producer:
            for body in bodies:
                await producer.send(Message(topic, body, **options))

    async def stored(self, topic: str) -> list[ReceivedMessage]:
        """Everything that lies in a topic now, queue by queue."""
        found: list[ReceivedMessage] = []
        async with PullConsumer(namesrv=self.namesrv) as consumer:
            for queue in await consumer.queues(topic):
                offset = await consumer.min_offset(queue)
                while True:
                    result = await consumer.pull(queue, offset)
                    if result.status is PullStatus.NO_NEW_MESSAGE:
                        break
                    found += result.messages
                    offset = result.next_offset
        return found

    async def now_ms(self, topic: str) -> int:
        """A moment after everything that lies in a topic and before all that is yet to come, by the broker's clock."""
        latest = max(message.store_timestamp for message in await self.stored(topic))
        await anyio.sleep(0.05)
        return latest + 20


async def until(condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Wait for something to become true; what it was shows in the traceback."""
    with anyio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110 - what is waited for happens in a client, which tells nobody
            await anyio.sleep(0.02)


async def eventually(ask: Callable[[], Awaitable[T]], is_good: Callable[[T], object] = bool) -> T:
    """Ask until the answer is good, and return it."""
    with anyio.fail_after(PATIENCE):
        while not is_good(answer := await ask()):  # noqa: ASYNC110 - the broker tells nobody
            await anyio.sleep(0.05)
    return answer


def numbered(count_: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count_)]
