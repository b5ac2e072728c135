"""What every producer is made of: its settings, its hooks, and how a message finds its queue."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final, Literal, Unpack

import anyio
import attrs

from verniermq.client.base import Client
from verniermq.client.batch import encode_batch
from verniermq.client.compression import Compression, check_compression
from verniermq.client.errors import ClientError
from verniermq.client.hooks import SendHook, SendHooks
from verniermq.client.options import ConnectionOptions
from verniermq.client.outgoing import Outgoing, Preparer
from verniermq.client.requests import Replies
from verniermq.client.results import SendResult
from verniermq.client.selectors import QueueSelector, RoundRobin, queue_by_key
from verniermq.client.sending import Sender
from verniermq.client.submitting import Bound, Submitter
from verniermq.kernel import (
    BadName,
    FaultStrategy,
    Handler,
    Message,
    MessageQueue,
    Property,
    RemotingError,
    RequestCode,
    Sending,
    check_group_name,
    nearest,
)

ROUND_ROBIN: Final = "round_robin"


class ProducerBase(Client):
    """A producer without its faces; see :class:`~verniermq.client.Producer` for what the arguments mean."""

    def __init__(
        self,
        group: str,
        *,
        send_timeout: float = 3.0,
        timeout_per_try: float | None = None,
        retries: int = 2,
        async_retries: int = 2,
        retry_another_broker_when_not_store_ok: bool = False,
        compress_over: int = 4096,
        compression: Compression = "zlib",
        max_message_size: int = 4 * 1024 * 1024,
        default_queues: int = 4,
        max_in_flight: int = 1024,
        fault: str = ROUND_ROBIN,
        **connection: Unpack[ConnectionOptions],
    ) -> None:
        super().__init__(**connection)
        check_group_name(group)
        if group == "DEFAULT_PRODUCER":
            raise BadName("group", group, "is reserved; choose one that says what this program sends")
        check_compression(compression)
        if max_in_flight < 1:
            raise ClientError(f"max_in_flight={max_in_flight}, expected at least 1")
        self.group = group
        self.send_timeout = send_timeout
        self._timeout_per_try = timeout_per_try
        self._retries = retries
        self._async_retries = async_retries
        self._retry_another_broker = retry_another_broker_when_not_store_ok
        self._default_queues = default_queues
        self._max_message_size = max_message_size
        self._fault = fault
        self._preparer = Preparer(
            group,
            namespace=self.options.namespace,
            compress_over=compress_over,
            compression=compression,
            max_message_size=max_message_size,
            default_queues=default_queues,
        )
        self._hooks = SendHooks()
        self._replies = Replies()
        self._bound = Bound(max_in_flight)
        self._sender: Sender
        self._submitter: Submitter

    async def flush(self) -> None:
        """Wait until every message of :meth:`submit` has its answer."""
        await self._bound.flush()

    # --- hooks -----------------------------------------------------------------------------

    def before_send(self, hook: SendHook) -> SendHook:
        """Call a function before each send; it may change the message, or refuse it by raising. A decorator."""
        self._hooks.before.append(hook)
        return hook

    def after_send(self, hook: SendHook) -> SendHook:
        """Call a function after each send, whether it went well or not. A decorator."""
        self._hooks.after.append(hook)
        return hook

    # --- how -------------------------------------------------------------------------------

    async def _send(
        self,
        message: Message,
        mode: Literal["sync", "async", "oneway"],
        queue: MessageQueue | None,
        selector: QueueSelector | None,
        sharding_key: str | None,
        timeout: float | None,
    ) -> SendResult:
        if not self._hooks:
            outgoing = self._preparer.prepare(message)
            return await self._send_prepared(outgoing, message, mode, queue, selector, sharding_key, timeout)
        sending = Sending(self.group, self.client_id, message, mode, queue=queue)
        started = time.monotonic()
        try:
            await self._hooks.run_before(sending)
            message = sending.message
            outgoing = self._preparer.prepare(message)
            sending.message_id = outgoing.message_id
            result = await self._send_prepared(outgoing, message, mode, queue, selector, sharding_key, timeout)
            if mode != "oneway":
                sending.result, sending.queue = result, result.queue
                sending.broker = self._routes.broker_address(result.queue.broker_name) or ""
            return result
        except BaseException as error:
            sending.error = error
            raise
        finally:
            sending.latency_ms = (time.monotonic() - started) * 1000
            await self._hooks.run_after(sending)

    async def _send_prepared(
        self,
        outgoing: Outgoing,
        message: Message,
        mode: str,
        queue: MessageQueue | None,
        selector: QueueSelector | None,
        sharding_key: str | None,
        timeout: float | None,
    ) -> SendResult:
        chosen = await self._choose(outgoing.topic, message, queue, selector, sharding_key)
        if sharding_key is not None:
            outgoing.ext["i"] += f"{Property.SHARDING_KEY}\x01{sharding_key}\x02"
        if mode == "oneway":
            await self._sender.oneway(outgoing, chosen)
            return None  # type: ignore[return-value]  # nobody looks: send_oneway returns nothing
        if mode == "async":
            return await self._sender.send_async(outgoing, chosen, timeout)
        if chosen is not None:
            return await self._sender.send_to(outgoing, chosen, timeout)
        return await self._sender.send(outgoing, timeout)

    async def _choose(
        self, topic: str, message: Message, queue: MessageQueue | None, selector: QueueSelector | None,
        sharding_key: str | None,
    ) -> MessageQueue | None:  # fmt: skip
        if queue is not None:
            return queue
        if selector is None and sharding_key is None:
            return None
        route = await self._sender.route(topic)
        if selector is not None:
            return selector(route.writable, message)
        assert sharding_key is not None
        return queue_by_key(route.writable, sharding_key)

    async def _send_batch(
        self, batch: list[Message], queue: MessageQueue | None, selector: QueueSelector | None,
        sharding_key: str | None, timeout: float | None,
    ) -> SendResult:  # fmt: skip
        outgoing = encode_batch(self._preparer, batch)
        chosen = await self._choose(outgoing.topic, batch[0], queue, selector, sharding_key)
        if chosen is None:
            return await self._sender.send(outgoing, timeout)
        return await self._sender.send_to(outgoing, chosen, timeout)

    async def _send_batch_with_hooks(
        self, batch: list[Message], queue: MessageQueue | None, selector: QueueSelector | None,
        sharding_key: str | None, timeout: float | None,
    ) -> SendResult:  # fmt: skip
        """Each message of the batch for itself; if one is refused, all of them are."""
        sendings = [Sending(self.group, self.client_id, message, "sync", queue=queue) for message in batch]
        started = time.monotonic()
        try:
            for sending in sendings:
                await self._hooks.run_before(sending)
            messages = [sending.message for sending in sendings]
            result = await self._send_batch(messages, queue, selector, sharding_key, timeout)
            ids = zip(result.message_id.split(","), result.offset_message_id.split(","), strict=True)
            for position, (sending, (message_id, place)) in enumerate(zip(sendings, ids, strict=True)):
                sending.message_id, sending.queue = message_id, result.queue
                sending.broker = self._routes.broker_address(result.queue.broker_name) or ""
                sending.result = attrs.evolve(
                    result, message_id=message_id, offset_message_id=place, queue_offset=result.queue_offset + position
                )
            return result
        except BaseException as error:
            for sending in sendings:
                sending.error = error
            raise
        finally:
            for sending in sendings:
                sending.latency_ms = (time.monotonic() - started) * 1000
                await self._hooks.run_after(sending)

    # --- life ------------------------------------------------------------------------------

    def _wanted_plugins(self) -> tuple[str, ...]:
        return () if self._fault == ROUND_ROBIN else ("fault",)

    def _handlers(self) -> Mapping[int, Handler]:
        return {RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: self._replies.arrived}

    def _heartbeat_data(self) -> dict[str, Any] | None:
        return {"producerDataSet": [{"groupName": self._preparer.group}]}

    async def _started(self) -> None:
        self._hooks.add_plugins(self.host)
        self._sender = Sender(
            self._pool,
            self._routes,
            self._strategy(),
            self._name_servers.text,
            self.send_timeout,
            self._timeout_per_try,
            self._retries,
            self._async_retries,
            self._retry_another_broker,
            self._default_queues,
        )
        self._submitter = Submitter(
            self._pool, self._routes, self._sender, self._preparer, self._background, self._bound
        )

    def _strategy(self) -> FaultStrategy:
        if self._fault == ROUND_ROBIN:
            return RoundRobin()
        strategy: FaultStrategy | None = self.host.ask("fault_strategy", self._fault)
        if strategy is None:
            known = [ROUND_ROBIN, "latency", "timeout", "flag", "fewest_failures"]
            raise ClientError(
                f"fault={self._fault!r}: no plugin of this producer knows that strategy; {nearest(self._fault, known)}"
            )
        return strategy

    async def _stopping(self) -> None:
        with anyio.move_on_after(self.send_timeout):
            await self.flush()
        for address in self._pool.connected():
            if address in self.options.namesrv:
                continue
            try:
                await self._api.unregister(address, self.client_id, producer_group=self._preparer.group)
            except RemotingError:
                pass  # closing the connection tells the broker the same
