"""Telemetry: the stream on which a client says what it is, and on which it is asked about its transactions.

A client opens one to each endpoint of its routes, and does not finish its start before its settings came back. Nobody
is left without an answer: one that is refused gets the status first and the end of the stream then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any, Final

import attrs

from verniermq.contrib.grpc.brokers import Brokers
from verniermq.contrib.grpc.call import Call
from verniermq.contrib.grpc.clients import CONSUMERS, ClientTable, GrpcClient, subscription_of
from verniermq.contrib.grpc.delivery import recovery_command
from verniermq.contrib.grpc.enums import ClientType, Code
from verniermq.contrib.grpc.renewal import Renewals
from verniermq.contrib.grpc.schema import proto
from verniermq.contrib.grpc.settings import fill_in_publishing, fill_in_subscription
from verniermq.contrib.grpc.status import CallFailed, status
from verniermq.kernel import Answer, Command, Connection, Handler, RequestCode
from verniermq.protocol.transaction import CheckTransactionState

logger = logging.getLogger(__name__)

MOST_UNREAD: Final = 1024
"""Commands that wait for a client to read them; one that lets more pile up loses its stream."""
MOST_SUBSCRIPTIONS: Final = 1000

NO_LITE: Final = "lite topics are not served here"


@attrs.define(eq=False)
class Telemetry:
    """Serves the streams and the heartbeats of all clients."""

    brokers: Brokers
    clients: ClientTable
    renewals: Renewals

    # --- the stream ------------------------------------------------------------------------

    async def stream(self, commands: AsyncIterator[Any], call: Call) -> AsyncGenerator[Any, None]:
        """The commands for a client, in return for what it sends.

        Raises:
            CallFailed: the client is refused, after it was told so.
        """
        client = self.clients.of(call)
        outgoing: asyncio.Queue[Any] = asyncio.Queue(MOST_UNREAD)

        def send(command: Any) -> None:
            try:
                outgoing.put_nowait(command)
            except asyncio.QueueFull:
                logger.warning("telemetry ended, the client does not read client_id=%s", client.client_id)
                reading.cancel()

        reading = asyncio.create_task(self._read(commands, client, call, send))
        reading.add_done_callback(lambda _: _wake(outgoing))
        try:
            while (command := await outgoing.get()) is not None:
                yield command
            await reading
        except asyncio.CancelledError:
            if not reading.done():
                raise  # the client went away
        finally:
            reading.cancel()
            if client.send is send:
                # The newest stream: its end is how the client's end is noticed first.
                client.send = None
                client.close()

    async def _read(self, commands: AsyncIterator[Any], client: GrpcClient, call: Call, send: Any) -> None:
        async for command in commands:
            if command.WhichOneof("command") != "settings":
                logger.debug("telemetry client_id=%s command=%s", client.client_id, command.WhichOneof("command"))
                continue
            client.send = send
            try:
                settings = await self._take(command.settings, client, call)
            except CallFailed as error:
                send(proto.TelemetryCommand(status=error.status))
                raise
            send(proto.TelemetryCommand(status=status(Code.OK), settings=settings))

    async def _take(self, settings: Any, client: GrpcClient, call: Call) -> Any:
        """Take in what a client says of itself, and fill in what it is told."""
        branch = settings.WhichOneof("pub_sub")
        if branch is None:
            raise CallFailed(Code.BAD_REQUEST, "the settings have neither publishing nor subscription")
        if settings.client_type in (ClientType.LITE_PUSH_CONSUMER, ClientType.LITE_SIMPLE_CONSUMER):
            raise CallFailed(Code.NOT_IMPLEMENTED, NO_LITE)
        client.kind = settings.client_type
        if branch == "publishing":
            topics = [call.topic(topic) for topic in settings.publishing.topics[:MOST_SUBSCRIPTIONS]]
            client.topics.update(dict.fromkeys(topics))
            await client.register(call)
            fill_in_publishing(settings, self.brokers.max_message_size)
        else:
            subscription = settings.subscription
            client.group = call.group(subscription.group)
            entries = subscription.subscriptions[:MOST_SUBSCRIPTIONS]
            wanted = [subscription_of(call.topic(entry.topic), entry.expression) for entry in entries]
            client.subscriptions = {one.topic: one for one in wanted}
            await client.register(call)
            fill_in_subscription(settings, await self.brokers.group(client.group, ""))
        client.is_known = True
        return settings

    # --- heartbeats and goodbyes -----------------------------------------------------------

    async def heartbeat(self, request: Any, call: Call) -> Any:
        client = self._known(call)
        if request.client_type in CONSUMERS and not client.group:
            raise CallFailed(Code.UNRECOGNIZED_CLIENT_TYPE, "a heartbeat of a consumer that sent no settings")
        await client.register(call)
        return proto.HeartbeatResponse(status=status(Code.OK))

    async def terminate(self, request: Any, call: Call) -> Any:
        client = self._known(call)
        await client.leave(call)
        self.clients.forget(client)
        await self.renewals.give_back(client)
        return proto.NotifyClientTerminationResponse(status=status(Code.OK))

    def _known(self, call: Call) -> GrpcClient:
        client = self.clients.find(call)
        if client is None or not client.is_known:
            what = f"client {call.client_id!r} has sent no settings; open a telemetry stream first"
            raise CallFailed(Code.UNRECOGNIZED_CLIENT_TYPE, what)
        return self.clients.of(call)

    # --- what brokers ask of a client ------------------------------------------------------

    def handlers(self, client: GrpcClient) -> Mapping[int, Handler]:
        async def check(request: Command, connection: Connection) -> Answer:
            if client.send is not None:
                check = CheckTransactionState.of(request)
                client.send(await recovery_command(check, request.body))
            return None

        return {
            RequestCode.CHECK_TRANSACTION_STATE: check,
            # Nobody shares out queues here: whoever pops, pops from all of them.
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: lambda request, connection: None,
        }


def _wake(queue: asyncio.Queue[Any]) -> None:
    """Have the reader of a queue see its end, also of one that is full."""
    if queue.full():
        queue.get_nowait()
    queue.put_nowait(None)
