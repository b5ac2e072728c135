"""The gRPC server: calls in, answers out, on the broker's own loop.

What a call raises becomes the status of its answer. Two things end as errors of gRPC itself: a broker that is not
there (UNAVAILABLE, so that the client tries elsewhere), and a telemetry stream that is refused.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import attrs
import grpc
import grpc.aio

from verniermq.contrib.grpc.ack import AckCalls
from verniermq.contrib.grpc.brokers import Brokers
from verniermq.contrib.grpc.call import Call
from verniermq.contrib.grpc.clients import ClientTable
from verniermq.contrib.grpc.enums import Code
from verniermq.contrib.grpc.handles import Sealer
from verniermq.contrib.grpc.receive import ReceiveCalls
from verniermq.contrib.grpc.renewal import Renewals
from verniermq.contrib.grpc.routes import RouteCalls
from verniermq.contrib.grpc.schema import RPCS, SERVICE, proto
from verniermq.contrib.grpc.send import SendCalls
from verniermq.contrib.grpc.status import CallFailed, status
from verniermq.contrib.grpc.telemetry import NO_LITE, Telemetry
from verniermq.kernel import ConnectionLost, PeerUnreachable, RemotingError, RequestTimeout

logger = logging.getLogger(__name__)

OPTIONS: Final = (
    # Two brokers on one port would share the clients in silence.
    ("grpc.so_reuseport", 0),
    # C++ clients ping every minute and Java's every five, also while nothing else happens.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
    ("grpc.http2.max_ping_strikes", 0),
    # Our own pings find peers that went away without a word.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
)
ROOM: Final = 1 << 20
"""Bytes that a request may have beside the body of its message."""
STOP_SECONDS: Final = 2.0
LOOK_EVERY: Final = 5.0
"""Seconds between two looks at what needs more time, and at who is gone."""

PeerOf = Callable[[int], tuple[str, int]]
"""The client's address, by the port that its connection comes from."""


def port_of(peer: str) -> int:
    """The port in what gRPC takes for a peer: ``ipv4:127.0.0.1:43210``."""
    port = peer.rpartition(":")[2]
    return int(port) if port.isdecimal() else 0


@attrs.define(eq=False)
class GrpcServer:
    """Serves the calls of RocketMQ 5's clients."""

    brokers: Brokers
    sealer: Sealer
    max_clients: int
    max_calls: int
    peer_of: PeerOf
    clients: ClientTable = attrs.field(init=False)
    renewals: Renewals = attrs.field(init=False)
    routes: RouteCalls = attrs.field(init=False)
    _telemetry: Telemetry = attrs.field(init=False)
    _receives: ReceiveCalls = attrs.field(init=False)
    _calls: dict[str, Callable[[Any, Call], Awaitable[Any]]] = attrs.field(init=False)
    _server: Any = attrs.field(default=None, init=False)

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

    # --- start and stop --------------------------------------------------------------------

    async def start(self, address: str) -> int:
        """Listen, and return the port.

        Raises:
            RuntimeError: it cannot be listened there.
        """
        largest = ("grpc.max_receive_message_length", self.brokers.max_message_size + ROOM)
        self._server = grpc.aio.server(options=(*OPTIONS, largest), maximum_concurrent_rpcs=self.max_calls)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, self._handlers()),))
        port = self._server.add_insecure_port(address)
        await self._server.start()
        return int(port)

    async def run(self) -> None:
        """What goes on all the time: messages in hand are renewed, silent clients forgotten."""
        while True:
            await self.brokers.clock.sleep(LOOK_EVERY)
            await self.renewals.renew_due()
            self.clients.forget_silent()

    async def stop(self) -> None:
        if self._server is not None:
            self.clients.close()  # what waits for messages ends at once
            await self._server.stop(STOP_SECONDS)
            self._server = None

    def _handlers(self) -> dict[str, Any]:
        handlers = {}
        for name, kinds in RPCS.items():
            request, response = (getattr(proto, kind.removeprefix("*")) for kind in kinds.split())
            coding = {"request_deserializer": request.FromString, "response_serializer": response.SerializeToString}
            if name == "Telemetry":
                handlers[name] = grpc.stream_stream_rpc_method_handler(self._stream_telemetry, **coding)
            elif name == "ReceiveMessage":
                handlers[name] = grpc.unary_stream_rpc_method_handler(self._stream_messages, **coding)
            else:
                handlers[name] = grpc.unary_unary_rpc_method_handler(self._answering(name, response), **coding)
        return handlers

    # --- calls -----------------------------------------------------------------------------

    def _call(self, context: Any) -> Call:
        return Call.of(context.invocation_metadata() or (), self.peer_of(port_of(context.peer())))

    def _answering(self, name: str, response: Any) -> Any:
        serve = self._calls[name]

        async def answer(request: Any, context: Any) -> Any:
            try:
                return await serve(request, self._call(context))
            except Exception as error:
                return response(status=await self._status(name, error, context))

        return answer

    async def _stream_messages(self, request: Any, context: Any) -> AsyncIterator[Any]:
        try:
            async for part in self._receives.receive(request, self._call(context), context.time_remaining()):
                yield part
        except Exception as error:
            yield proto.ReceiveMessageResponse(status=await self._status("ReceiveMessage", error, context))
            last = proto.ReceiveMessageResponse()
            last.delivery_timestamp.FromMilliseconds(self.brokers.clock.now_ms())
            yield last

    async def _stream_telemetry(self, commands: Any, context: Any) -> AsyncIterator[Any]:
        try:
            async for command in self._telemetry.stream(commands, self._call(context)):
                yield command
        except CallFailed as error:
            refused = error.code in (Code.UNAUTHORIZED, Code.FORBIDDEN)
            code = grpc.StatusCode.PERMISSION_DENIED if refused else grpc.StatusCode.INVALID_ARGUMENT
            await context.abort(code, str(error))
        except Exception as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, (await self._status("Telemetry", error, context)).message)

    async def _status(self, name: str, error: Exception, context: Any) -> Any:
        """What the client is told. Ends the call if the broker is not there."""
        if isinstance(error, CallFailed):
            logger.debug("call refused call=%s peer=%s reason=%s", name, context.peer(), error)
            return error.status
        if isinstance(error, ConnectionLost | PeerUnreachable):
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        if isinstance(error, RequestTimeout):
            return status(Code.PROXY_TIMEOUT, str(error))
        if isinstance(error, RemotingError):
            return status(Code.INTERNAL_SERVER_ERROR, str(error))
        if isinstance(error, grpc.aio.AbortError):
            raise error
        logger.error("call failed call=%s peer=%s", name, context.peer(), exc_info=error)
        return status(Code.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}")


async def _refuse_lite(request: Any, call: Call) -> Any:
    raise CallFailed(Code.NOT_IMPLEMENTED, NO_LITE)
