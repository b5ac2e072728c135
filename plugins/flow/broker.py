"""Rules at the broker's door: every handler gets a gate in front of it.

A send that is refused is answered with SYSTEM_BUSY, which makes Apache's producers try another broker; a pull
with FLOW_CONTROL, after which Apache's 5.x consumers ask again soon (20 ms) instead of treating it as a failure
(3 s). A request that has to wait for its turn waits in a coroutine, and all others go on.

The gates stand in front of the handlers rather than in ``before_request``, because a gate has to hear when a
request is over: concurrency, response times and breakers are about that. They stand there only while there are
rules: without any, the table of handlers is as if there were no flow control, and costs as much.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from verniermq.kernel import Broker, Command, Connection, Handler, RequestCode, RequestRefused, ResponseCode
from verniermq.plugins.flow.engine import Engine
from verniermq.plugins.flow.gate import FlowRefused, Gate, Stay

Answer = Command | None

SENDS: Final[Mapping[int, tuple[str, str]]] = {
    RequestCode.SEND_MESSAGE: ("producerGroup", "topic"),
    RequestCode.SEND_MESSAGE_V2: ("a", "b"),
    RequestCode.SEND_BATCH_MESSAGE: ("a", "b"),
    RequestCode.SEND_REPLY_MESSAGE: ("producerGroup", "topic"),
    RequestCode.SEND_REPLY_MESSAGE_V2: ("a", "b"),
}
"""Where a request has its group and its topic."""

PULLS: Final[Mapping[int, tuple[str, str]]] = {
    RequestCode.PULL_MESSAGE: ("consumerGroup", "topic"),
    RequestCode.LITE_PULL_MESSAGE: ("consumerGroup", "topic"),
    RequestCode.POP_MESSAGE: ("consumerGroup", "topic"),
}

FAILURES: Final = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
    }
)
"""Answers that count as errors for a breaker: the broker's troubles, not the mistakes of a peer."""


class Doorkeeper:
    """Puts gates in front of a broker's handlers, and takes them away."""

    def __init__(self, engine: Engine, broker: Broker, clock_ns: Callable[[], int]) -> None:
        self.engine = engine
        self._broker = broker
        self._clock_ns = clock_ns
        self._behind: dict[int, Handler] = {}

    def attend(self) -> None:
        """Be at the door if there are rules, and only then. Called again whenever the rules changed."""
        handlers = self._broker.handlers
        if self.engine.is_active and not self._behind:
            self._behind = dict(handlers)
            handlers.update({code: self.guarded(code, handler) for code, handler in self._behind.items()})
        elif not self.engine.is_active and self._behind:
            handlers.update(self._behind)
            self._behind = {}

    def guarded(self, code: int, handler: Handler) -> Handler:
        """The handler with its gate."""
        name = RequestCode(code).name if code in RequestCode._value2member_map_ else str(code)
        fields = SENDS.get(code) or PULLS.get(code)
        refusal = ResponseCode.FLOW_CONTROL if code in PULLS else ResponseCode.SYSTEM_BUSY
        engine, clock_ns = self.engine, self._clock_ns

        def guard(request: Command, connection: Connection) -> Answer | Coroutine[Any, Any, Answer]:
            if request.code != code:
                # A handler that calls another one with its own request; that came through a gate already.
                return handler(request, connection)
            if fields is not None:
                group, topic = request.ext.get(fields[0], ""), request.ext.get(fields[1], "")
                client = self._client(code, group, connection) if engine.limits_clients else ""
                gate = engine.gate(group, topic, client, name)
            else:
                gate = engine.gate("", "", "", name, inbound=False) if engine.limits_requests else None
            if gate is None:
                return handler(request, connection)
            now_ns = clock_ns()
            wait_ns = gate.enter(now_ns)
            if wait_ns == 0:
                return self._run(gate, now_ns, handler, request, connection)
            if wait_ns < 0:
                raise FlowRefused(gate.refused_by, refusal)
            return self._run_later(gate, wait_ns, handler, request, connection, refusal)

        return guard

    def _run(
        self, gate: Gate, begun_ns: int, handler: Handler, request: Command, connection: Connection
    ) -> Answer | Coroutine[Any, Any, Answer]:
        try:
            result = handler(request, connection)
        except BaseException as error:
            gate.leave(begun_ns, self._clock_ns(), failed=_is_failure(error))
            raise
        if result is None or isinstance(result, Command):
            # None: a pull that is held until something arrives. It costs nothing while it waits, so it is over here.
            gate.leave(begun_ns, self._clock_ns(), failed=result is not None and result.code in FAILURES)
            return result
        return _finish(_Served(gate, begun_ns, self._clock_ns, result))

    async def _run_later(
        self,
        gate: Gate,
        wait_ns: int,
        handler: Handler,
        request: Command,
        connection: Connection,
        refusal: ResponseCode,
    ) -> Answer:
        await self._broker.clock.sleep(wait_ns / 1_000_000_000)
        now_ns = self._clock_ns()
        if gate.begin(now_ns) < 0:
            raise FlowRefused(gate.refused_by, refusal)
        result = self._run(gate, now_ns, handler, request, connection)
        return result if result is None or isinstance(result, Command) else await result

    def _client(self, code: int, group: str, connection: Connection) -> str:
        """The client's id, or its address as long as no heartbeat told the id."""
        clients = self._broker.clients
        if code in PULLS:
            consumers = clients.consumers.get(group)
            member = consumers.members.get(connection) if consumers is not None else None
        else:
            member = clients.producers.get(group, {}).get(connection)
        return member.client_id if member is not None else connection.peer_address.rpartition(":")[0]


class _Served(Stay):
    """A request inside its gate while a coroutine serves it."""

    __slots__ = ("work",)

    def __init__(
        self, gate: Gate, begun_ns: int, clock_ns: Callable[[], int], work: Coroutine[Any, Any, Answer]
    ) -> None:
        super().__init__(gate, begun_ns, clock_ns)
        self.work = work

    def __del__(self) -> None:
        self.work.close()  # does nothing to one that came to its end
        super().__del__()


async def _finish(served: _Served) -> Answer:
    failed = False
    try:
        answer = await served.work
        failed = answer is not None and answer.code in FAILURES
        return answer
    except Exception as error:
        failed = _is_failure(error)
        raise
    finally:
        served.end(failed=failed)


def _is_failure(error: BaseException) -> bool:
    return error.code in FAILURES if isinstance(error, RequestRefused) else isinstance(error, Exception)
