"""Reading queues by hand (RocketMQ: ``DefaultMQPullConsumer``): the plainest consumer, everything is the caller's."""

from __future__ import annotations

import logging
from typing import Final, Unpack

from verniermq.client.consumer.queues import QueueInspector
from verniermq.client.consumer.subscription import ALL, Selector, TopicSubscription
from verniermq.client.errors import ClientError
from verniermq.client.java import shown
from verniermq.client.names import with_namespace
from verniermq.client.options import ConnectionOptions, check_numbers
from verniermq.client.results import PullResult
from verniermq.kernel import MessageQueue, ResponseCode, UnexpectedAnswer, check_group_name

logger = logging.getLogger(__name__)

TOOLS_GROUP: Final = "TOOLS_CONSUMER"
"""The group of tools that only look: every RocketMQ broker knows it, and it has no offsets."""
HOLD_SECONDS: Final = 20.0
"""How long a broker waits for a message, when the caller has at least so much time."""
SLACK_SECONDS: Final = 10.0
"""What an answer may take beyond the time that the broker holds the request."""


class PullConsumer(QueueInspector):
    """Lists the queues of a topic, reads any of them at any offset, and keeps offsets where it is told to.

    ::

        async with PullConsumer("audit") as consumer:
            for queue in await consumer.queues("orders"):
                offset = await consumer.min_offset(queue)
                result = await consumer.pull(queue, offset, max_messages=32)
                await consumer.commit(queue, result.next_offset)

    Args:
        group: whose offsets :meth:`commit` and :meth:`committed` are about
    """

    def __init__(self, group: str = TOOLS_GROUP, **connection: Unpack[ConnectionOptions]) -> None:
        super().__init__(**connection)
        check_group_name(group)
        self.group = group
        self._wire_group = group if group == TOOLS_GROUP else with_namespace(self.options.namespace, group)

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        max_messages: int = 32,
        selector: Selector = ALL,
        wait: float = 0.0,
        broker_id: int = 0,
    ) -> PullResult:
        """Read a queue from an offset on.

        With ``wait`` the broker holds the request so many seconds, at most 20, until there is something. A message that
        lies damaged in the broker's log is logged and in the result's ``damaged``; ``next_offset`` lies behind it.

        Raises:
            UnexpectedAnswer: the broker refused; RemotingError: it did not answer.
        """
        self._ensure_running()
        if not isinstance(offset, int):
            raise ClientError(
                f"offset={shown(offset)}, expected a number: pull(queue, offset, max_messages=32, selector='*')"
            )
        check_numbers(1, max_messages=max_messages)
        hold = min(wait, HOLD_SECONDS)
        wanted = TopicSubscription.make(queue.topic, selector, version=0)
        result = await self._api.pull(
            await self._address(queue, broker_id),
            queue,
            offset,
            group=self._wire_group,
            max_messages=max_messages,
            subscription=wanted.subscription,
            include_subscription=True,
            hold_ms=int(hold * 1000),
            timeout=hold + SLACK_SECONDS,
        )
        for damaged in result.damaged:
            logger.error("damaged message left out group=%s message=%s", self.group, damaged)
        result.messages = wanted.keep(result.messages)
        return result

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Say where the group is in a queue: the offset of the next message it wants."""
        self._ensure_running()
        address = await self._address(queue)
        try:
            await self._api.commit(address, self._wire_group, queue, offset, wait=True)
        except UnexpectedAnswer as error:
            if error.code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                raise
            # A broker that may create groups does so at the first pull, and at nothing else that we ask.
            await self.pull(queue, offset, max_messages=1)
            await self._api.commit(address, self._wire_group, queue, offset, wait=True)
