"""AckMessage, ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue: what became of a received message.

Whatever is wrong with a receipt is INVALID_RECEIPT_HANDLE: on any other failure clients try again, for ever.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any, Final

import attrs

from verniermq.contrib.grpc.brokers import Brokers
from verniermq.contrib.grpc.call import Call
from verniermq.contrib.grpc.clients import ClientTable
from verniermq.contrib.grpc.enums import Code
from verniermq.contrib.grpc.handles import Handle, Sealer
from verniermq.contrib.grpc.renewal import Renewals, change_request
from verniermq.contrib.grpc.schema import proto
from verniermq.contrib.grpc.status import CallFailed, checked, common, status
from verniermq.kernel import RequestCode, ResponseCode
from verniermq.kernel.requests import Request
from verniermq.protocol.pop import AckMessage
from verniermq.protocol.sendback import ConsumerSendMsgBack

logger = logging.getLogger(__name__)

MOST_ENTRIES: Final = 1024
LONGEST_INVISIBLE_MS: Final = 12 * 3600 * 1000
DEAD: Final = -1
"""The delay level that makes a dead letter of a message."""


@attrs.define(eq=False)
class AckCalls:
    brokers: Brokers
    clients: ClientTable
    sealer: Sealer
    renewals: Renewals

    # --- calls -----------------------------------------------------------------------------

    async def ack(self, request: Any, call: Call) -> Any:
        group, topic = call.group(request.group), call.topic(request.topic)
        if not 1 <= len(request.entries) <= MOST_ENTRIES:
            what = f"{len(request.entries)} receipts in a call; expected 1 to {MOST_ENTRIES}"
            raise CallFailed(Code.BAD_REQUEST, what)
        answer = proto.AckMessageResponse()
        for entry in request.entries:
            result = answer.entries.add(message_id=entry.message_id, receipt_handle=entry.receipt_handle)
            try:
                async with self._newest(entry.receipt_handle, group, topic) as handle:
                    await self._request(handle, _ack(group, topic, handle), call)
                result.status.CopyFrom(status(Code.OK))
            except CallFailed as error:
                result.status.CopyFrom(error.status)
        answer.status.CopyFrom(common([Code(entry.status.code) for entry in answer.entries]))
        if len(answer.entries) == 1:
            answer.status.CopyFrom(answer.entries[0].status)
        return answer

    async def change_invisible(self, request: Any, call: Call) -> Any:
        group, topic = call.group(request.group), call.topic(request.topic)
        milliseconds = request.invisible_duration.ToMilliseconds()
        if not 0 <= milliseconds <= LONGEST_INVISIBLE_MS:
            what = f"invisible for {milliseconds} ms; expected 0 to {LONGEST_INVISIBLE_MS} ms"
            raise CallFailed(Code.ILLEGAL_INVISIBLE_TIME, what)
        async with self._newest(request.receipt_handle, group, topic) as handle:
            answer = await self._request(handle, change_request(group, topic, handle, milliseconds), call)
            renewed = Handle(handle.receipt.renewed(answer), handle.log_offset)
        return proto.ChangeInvisibleDurationResponse(
            status=status(Code.OK), receipt_handle=self.sealer.write(renewed, group, topic)
        )

    async def forward_to_dead_letters(self, request: Any, call: Call) -> Any:
        group, topic = call.group(request.group), call.topic(request.topic)
        async with self._newest(request.receipt_handle, group, topic) as handle:
            reason = f"given up by its consumer after {request.delivery_attempt} attempts"
            await self._request(handle, _bury(group, topic, handle, reason), call)
            await self._request(handle, _ack(group, topic, handle), call)
        return proto.ForwardMessageToDeadLetterQueueResponse(status=status(Code.OK))

    # --- for the server itself -------------------------------------------------------------

    async def settle(self, group: str, topic: str, handle: Handle) -> None:
        """A message is not for those who asked."""
        await self.brokers.ask(handle.receipt.broker_name, _ack(group, topic, handle).command(), 3.0)

    async def bury(self, group: str, topic: str, handle: Handle, reason: str) -> None:
        """Make a dead letter of a message that came too often; if that fails, it comes once more and is one then."""
        request = _bury(group, topic, handle, reason).command()
        answer = await self.brokers.ask(handle.receipt.broker_name, request, 3.0)
        if answer.code == ResponseCode.SUCCESS:
            await self.settle(group, topic, handle)
        else:
            logger.warning("no dead letter yet group=%s reason=%s", group, answer.remark)

    # --- inside ----------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _newest(self, receipt: str, group: str, topic: str) -> AsyncIterator[Handle]:
        """The handle that a receipt stands for now; it is not renewed meanwhile, nor after it was used.

        Raises:
            CallFailed: the receipt is not good.
        """
        held = self.renewals.find(receipt)
        if held is None or (held.group, held.topic) != (group, topic):
            yield self.sealer.read(receipt, group, topic, self.brokers.clock.now_ms())
            return
        async with held.lock:
            yield held.handle
            self.renewals.drop(receipt)

    async def _request(self, handle: Handle, request: Request, call: Call) -> Any:
        client = self.clients.of(call)
        answer = await client.request(handle.receipt.broker_name, request.command(), call)
        if answer.code in (ResponseCode.NO_MESSAGE, ResponseCode.MESSAGE_ILLEGAL):
            raise CallFailed(Code.INVALID_RECEIPT_HANDLE, answer.remark)
        return checked(answer, RequestCode(request.code))


def _ack(group: str, topic: str, handle: Handle) -> AckMessage:
    receipt = handle.receipt
    return AckMessage(
        group=group,
        topic=receipt.wire_topic(topic, group),
        queue_id=receipt.queue_id,
        offset=receipt.offset,
        handle=str(receipt),
        broker_name=receipt.broker_name,
    )


def _bury(group: str, topic: str, handle: Handle, reason: str) -> ConsumerSendMsgBack:
    return ConsumerSendMsgBack(
        group=group,
        offset=handle.log_offset,
        delay_level=DEAD,
        max_reconsume_times=0,
        origin_topic=topic,
        broker_name=handle.receipt.broker_name,
        reason=reason,
    )
