"""Rules at the broker's door: a gate that a request passes before its handler is called.

A send that is refused is answered with SYSTEM_BUSY, which makes Apache's producers try another broker; a pull
with FLOW_CONTROL, after which Apache's 5.x consumers ask again soon (20 ms) instead of treating it as a failure
(3 s). A request that has to wait for its turn waits in a coroutine, and all others go on.

Without rules the hooks are paused, and flow control costs nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from verniermq.kernel import Command, Connection, Context, RequestCode, RequestRefused, ResponseCode
from verniermq.plugins.flow.engine import Engine
from verniermq.plugins.flow.gate import FlowRefused, Gate, Passage

SENDS: Final = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
    }
)
PULLS: Final = frozenset({RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE, RequestCode.POP_MESSAGE})
"""The requests that rules for groups, topics and clients are about; their classes have a topic and a group."""

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


class RequestGates:
    """Lets requests through the gates of their rules, one object for each that is inside."""

    def __init__(self, engine: Engine, broker: Context, clock_ns: Callable[[], int]) -> None:
        self.engine = engine
        self._broker = broker
        self._clock_ns = clock_ns
        self._inside: dict[Command, Passage] = {}

    def enter(self, request: Command, connection: Connection) -> Awaitable[None] | None:
        """Let a request pass, make it wait, or refuse it.

        Raises:
            FlowRefused: a rule refuses it, or it would have to wait too long.
        """
        gate = self._gate(request, connection)
        if gate is None:
            return None
        now_ns = self._clock_ns()
        wait_ns = gate.enter(now_ns)
        if wait_ns > 0:
            return self._enter_later(request, gate, wait_ns)
        self._begin(request, gate, now_ns, wait_ns)
        return None

    async def _enter_later(self, request: Command, gate: Gate, wait_ns: int) -> None:
        await self._broker.clock.sleep(wait_ns / 1_000_000_000)
        now_ns = self._clock_ns()
        self._begin(request, gate, now_ns, gate.begin(now_ns))

    def _begin(self, request: Command, gate: Gate, now_ns: int, verdict: int) -> None:
        if verdict < 0:
            refusal = ResponseCode.FLOW_CONTROL if request.code in PULLS else ResponseCode.SYSTEM_BUSY
            raise FlowRefused(gate.refused_by, refusal)
        self._inside[request] = Passage(gate, now_ns, self._clock_ns)

    def leave(self, request: Command, answer: Command | None, error: Exception | None) -> None:
        """A request is over. One without an answer is a pull that is held; it costs nothing while it waits."""
        passage = self._inside.pop(request, None)
        if passage is not None:
            failed = _is_failure(error) if error is not None else answer is not None and answer.code in FAILURES
            passage.end(failed=failed)

    def forget(self) -> None:
        """There are no rules any more: nobody tells when those that are inside leave."""
        self._inside.clear()

    def _gate(self, request: Command, connection: Connection) -> Gate | None:
        engine, code = self.engine, request.code
        if code not in SENDS and code not in PULLS:
            return engine.gate("", "", "", _name(code), inbound=False) if engine.limits_requests else None
        decoded = self._broker.decode(request)
        group, topic = getattr(decoded, "group", ""), getattr(decoded, "topic", "")
        client = self._client(code, group, connection) if engine.limits_clients else ""
        return engine.gate(group, topic, client, _name(code))

    def limits_sends(self, group: str, topic: str) -> bool:
        """Whether a rule other than those about clients is about sends of a group to a topic."""
        return any(self.engine.gate(group, topic, request=_name(code)) is not None for code in SENDS)

    def _client(self, code: int, group: str, connection: Connection) -> str:
        """The client's id, or its address as long as no heartbeat told the id."""
        clients = self._broker.clients
        if code in PULLS:
            consumers = clients.consumers.get(group)
            member = consumers.members.get(connection) if consumers is not None else None
        else:
            member = clients.producers.get(group, {}).get(connection)
        return member.client_id if member is not None else connection.peer_address.rpartition(":")[0]


def _name(code: int) -> str:
    member = RequestCode._value2member_map_.get(code)
    return str(code) if member is None else member.name


def _is_failure(error: BaseException) -> bool:
    return error.code in FAILURES if isinstance(error, RequestRefused) else isinstance(error, Exception)
