"""Following a topic as ``tail -f`` follows a file: all its queues at once, in the order the messages come."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import anyio

from verniermq.client.consumer.pull import PullConsumer
from verniermq.client.consumer.subscription import ALL, Selector
from verniermq.client.message import ReceivedMessage
from verniermq.client.results import PullStatus
from verniermq.kernel import MessageQueue

HOLD = 15.0


async def follow(
    consumer: PullConsumer,
    topic: str,
    show: Callable[[ReceivedMessage], Awaitable[None]],
    *,
    selector: Selector = ALL,
    from_start: bool = False,
    since_ms: int | None = None,
    until_ms: int | None = None,
    keep: Callable[[ReceivedMessage], bool] | None = None,
    limit: int | None = None,
    wait: bool = True,
    keep_place: bool = False,
    started: Callable[[], object] | None = None,
) -> int:
    """Call ``show`` with each message, until ``limit`` or for ever; without ``wait``, until the end. Say how many.

    It begins with the next message, with the first one (``from_start``), or with those stored at ``since_ms``; a
    queue ends at its first message stored after ``until_ms``. The broker selects by ``selector``, then ``keep`` does.
    With ``keep_place`` it begins where the consumer's group was, and its place is kept. ``started`` is called once it
    is known where it begins.

    Raises:
        NoRoute: there is no such topic.
    """
    shown = 0
    done = anyio.Event()

    async def read(queue: MessageQueue, offset: int) -> None:
        nonlocal shown
        while True:
            waits = wait and (until_ms is None or time.time() * 1000 <= until_ms)
            result = await consumer.pull(queue, offset, selector=selector, wait=HOLD if waits else 0.0)
            for message in result.messages:
                if limit is not None and shown >= limit:
                    return
                if until_ms is not None and message.store_timestamp > until_ms:
                    return
                if keep is None or keep(message):
                    shown += 1
                    await show(message)
                if keep_place:
                    await consumer.commit(queue, message.queue_offset + 1)
                if shown == limit:
                    done.set()
                    return
            offset = result.next_offset
            if not waits and result.status is PullStatus.NO_NEW_MESSAGE:
                return

    async def start(queue: MessageQueue) -> int:
        if keep_place:
            place = await consumer.committed(queue)
            if place is not None:
                return place
        if since_ms is not None:
            return await consumer.offset_at(queue, since_ms)
        return await (consumer.min_offset(queue) if from_start else consumer.max_offset(queue))

    # All places are looked up before the first pull, so that "from now on" is one moment.
    places = [(queue, await start(queue)) for queue in await consumer.queues(topic)]

    if started is not None:
        started()

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
