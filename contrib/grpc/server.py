"""The gRPC server: calls in, answers out, on the broker's own loop.

What a call raises becomes the status of its answer. Two things end as errors of gRPC itself: a broker that is not
there (UNAVAILABLE, so that the client tries elsewhere), and a telemetry stream that is refused.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final

import attrs
from google.protobuf.message import DecodeError

from verniermq.contrib.grpc.ack import AckCalls
from verniermq.contrib.grpc.brokers import Brokers
from verniermq.contrib.grpc.call import Call
from verniermq.contrib.grpc.clients import ClientTable
from verniermq.contrib.grpc.enums import Code
from verniermq.contrib.grpc.frames import GrpcStatus
from verniermq.contrib.grpc.handles import Sealer
from verniermq.contrib.grpc.http2 import Http2Connections, Rpc
from verniermq.contrib.grpc.receive import ReceiveCalls
from verniermq.contrib.grpc.renewal import Renewals
from verniermq.contrib.grpc.routes import RouteCalls
from verniermq.contrib.grpc.schema import RPCS, SERVICE, proto
from verniermq.contrib.grpc.send import SendCalls
from verniermq.contrib.grpc.status import CallFailed, status
from verniermq.contrib.grpc.stream import RpcFailed, Stream
from verniermq.contrib.grpc.telemetry import NO_LITE, Telemetry
from verniermq.kernel import ConnectionLost, PeerUnreachable, RemotingError, RequestTimeout

logger = logging.getLogger(__name__)

ROOM: Final = 1 << 20
"""Bytes that a request may have beside the body of its message."""
STOP_SECONDS: Final = 2.0
LOOK_EVERY: Final = 5.0
"""Seconds between two looks at what needs more time, and at who is gone."""


@attrs.define(eq=False)
class GrpcServer:
    """Serves the calls of RocketMQ 5's clients."""

    brokers: Brokers
    sealer: Sealer
    max_connections: int
    max_clients: int
    max_calls: int
    clients: ClientTable = attrs.field(init=False)
    renewals: Renewals = attrs.field(init=False)
    routes: RouteCalls = attrs.field(init=False)
    _telemetry: Telemetry = attrs.field(init=False)
    _receives: ReceiveCalls = attrs.field(init=False)
    _calls: dict[str, Callable[[Any, Call], Awaitable[Any]]] = attrs.field(init=False)
    connections: Http2Connections = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.clients = ClientTable(self.brokers, self.max_clients, lambda client: self._telemetry.handlers(client))
        self.renewals = Renewals(self.brokers)
        self.routes = RouteCalls(self.brokers, self.clients, ("127.0.0.1", 0))
        self._telemetry = Telemetry(self.brokers, self.clients, self.renewals)
        sends = SendCalls(self.brokers, self.clients)
        acks = AckCalls(self.brokers, self.clients, self.sealer, self.renewals)
        self._receives = ReceiveCalls(self.brokers, self.clients, acks, self.sealer, self.renewals)
        self._calls = {
            "QueryRoute": self.routes.query_route,
            "QueryAssignment": self.routes.query_assignment,
            "Heartbeat": self._telemetry.heartbeat,
            "NotifyClientTermination": self._telemetry.terminate,
            "SendMessage": sends.send,
            "EndTransaction": sends.end_transaction,
            "RecallMessage": sends.recall,
            "AckMessage": acks.ack,
            "ChangeInvisibleDuration": acks.change_invisible,
            "ForwardMessageToDeadLetterQueue": acks.forward_to_dead_letters,
            "SyncLiteSubscription": _refuse_lite,
        }
        largest = self.brokers.max_message_size + ROOM
        self.connections = Http2Connections(self._rpcs(), largest, self.max_connections, self.max_calls)

    async def run(self) -> None:
        """What goes on all the time: messages in hand are renewed, silent clients forgotten."""
        while True:
            await self.brokers.clock.sleep(LOOK_EVERY)
            await self.renewals.renew_due()
            self.clients.forget_silent()

    async def stop(self) -> None:
        self.clients.close()  # what waits for messages ends at once
        await self.connections.close(STOP_SECONDS)

    # --- calls -----------------------------------------------------------------------------

    def _rpcs(self) -> dict[str, Rpc]:
        found = {}
        for name, kinds in RPCS.items():
            request, response = (getattr(proto, kind.removeprefix("*")) for kind in kinds.split())
            if name == "Telemetry":
                rpc = Rpc(self._stream_telemetry, takes_many=True)
            elif name == "ReceiveMessage":
                rpc = Rpc(self._stream_messages)
            else:
                rpc = Rpc(self._answering(name, request.FromString, response))
            found[f"/{SERVICE}/{name}"] = rpc
        return found

    def _answering(self, name: str, read: Callable[[bytes], Any], response: Any) -> Callable[[Stream], Awaitable[None]]:
        serve = self._calls[name]

        async def answer(stream: Stream) -> None:
            request = _only_message(stream, read)
            try:
                answer = await serve(request, Call.of(stream.metadata, stream.peer))
            except Exception as error:
                answer = response(status=self._status(name, error, stream))
            stream.finish(answer.SerializeToString())

        return answer

    async def _stream_messages(self, stream: Stream) -> None:
        request = _only_message(stream, proto.ReceiveMessageRequest.FromString)
        try:
            call = Call.of(stream.metadata, stream.peer)
            async with aclosing(self._receives.receive(request, call, stream.time_left())) as parts:
                async for part in parts:
                    await stream.send(part.SerializeToString(), soon=True)
        except Exception as error:
            refused = proto.ReceiveMessageResponse(status=self._status("ReceiveMessage", error, stream))
            await stream.send(refused.SerializeToString(), soon=True)
            last = proto.ReceiveMessageResponse()
            last.delivery_timestamp.FromMilliseconds(self.brokers.clock.now_ms())
            await stream.send(last.SerializeToString(), soon=True)
        stream.close()

    async def _stream_telemetry(self, stream: Stream) -> None:
        try:
            call = Call.of(stream.metadata, stream.peer)
            async with aclosing(self._telemetry.stream(_commands(stream), call)) as commands:
                async for command in commands:
                    await stream.send(command.SerializeToString())
        except CallFailed as error:
            refused = error.code in (Code.UNAUTHORIZED, Code.FORBIDDEN)
            code = GrpcStatus.PERMISSION_DENIED if refused else GrpcStatus.INVALID_ARGUMENT
            raise RpcFailed(code, str(error)) from None
        except RpcFailed:
            raise
        except Exception as error:
            raise RpcFailed(GrpcStatus.UNAVAILABLE, self._status("Telemetry", error, stream).message) from error
        stream.close()

    def _status(self, name: str, error: Exception, stream: Stream) -> Any:
        """What the client is told.

        Raises:
            RpcFailed: the broker is not there.
        """
        if isinstance(error, CallFailed):
            logger.debug("call refused call=%s peer=%s reason=%s", name, stream.peer, error)
            return error.status
        if isinstance(error, ConnectionLost | PeerUnreachable):
            raise RpcFailed(GrpcStatus.UNAVAILABLE, str(error)) from error
        if isinstance(error, RequestTimeout):
            return status(Code.PROXY_TIMEOUT, str(error))
        if isinstance(error, RemotingError):
            return status(Code.INTERNAL_SERVER_ERROR, str(error))
        logger.error("call failed call=%s peer=%s", name, stream.peer, exc_info=error)
        return status(Code.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}")


def _only_message(stream: Stream, read: Callable[[bytes], Any]) -> Any:
    """The request of a call that has one.

    Raises:
        RpcFailed: there is none, or another number, or it is no message of the protocol.
    """
    if len(stream.messages) != 1 or stream.incoming:
        what = f"a call with {len(stream.messages)} whole messages, expected 1"
        raise RpcFailed(GrpcStatus.INTERNAL, what)
    return _read(stream.messages.popleft(), read)


def _read(message: bytes, read: Callable[[bytes], Any]) -> Any:
    try:
        return read(message)
    except DecodeError as error:
        raise RpcFailed(GrpcStatus.INTERNAL, f"the message cannot be read: {error}") from None


async def _commands(stream: Stream) -> AsyncIterator[Any]:
    async for message in stream:
        yield _read(message, proto.TelemetryCommand.FromString)


async def _refuse_lite(request: Any, call: Call) -> Any:
    raise CallFailed(Code.NOT_IMPLEMENTED, NO_LITE)
