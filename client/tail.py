"""Following a topic as ``tail -f`` follows a file: all its queues at once, in the order the messages come."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

from verniermq.client.consumer.pull import PullConsumer
from verniermq.client.message import ReceivedMessage
from verniermq.client.results import PullStatus
from verniermq.kernel import MessageQueue

HOLD = 15.0


async def follow(
    consumer: PullConsumer,
    topic: str,
    show: Callable[[ReceivedMessage], Awaitable[None]],
    *,
    tags: str = "*",
    from_start: bool = False,
    limit: int | None = None,
    wait: bool = True,
    keep_place: bool = False,
) -> int:
    """Call ``show`` with each message, until ``limit`` or for ever; without ``wait``, until the end. Say how many.

    With ``keep_place`` it begins where the consumer's group was, and its place is kept.

    Raises:
        NoRoute: there is no such topic.
    """
    shown = 0
    done = anyio.Event()

    async def read(queue: MessageQueue, offset: int) -> None:
        nonlocal shown
        while True:
            result = await consumer.pull(queue, offset, selector=tags, wait=HOLD if wait else 0.0)
            for message in result.messages:
                if limit is not None and shown >= limit:
                    return
                shown += 1
                await show(message)
                if keep_place:
                    await consumer.commit(queue, message.queue_offset + 1)
                if shown == limit:
                    done.set()
                    return
            offset = result.next_offset
            if not wait and result.status is PullStatus.NO_NEW_MESSAGE:
                return

    async def start(queue: MessageQueue) -> int:
        if keep_place:
            place = await consumer.committed(queue)
            if place is not None:
                return place
        return await (consumer.min_offset(queue) if from_start else consumer.max_offset(queue))

    # All places are looked up before the first pull, so that "from now on" is one moment.
    places = [(queue, await start(queue)) for queue in await consumer.queues(topic)]

    async def read_all() -> None:
        async with anyio.create_task_group() as readers:
            for queue, offset in places:
                readers.start_soon(read, queue, offset)
        done.set()

    async with anyio.create_task_group() as group:
        group.start_soon(read_all)
        await done.wait()
        group.cancel_scope.cancel()
    return shown
