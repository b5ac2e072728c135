"""QueryRoute and QueryAssignment: which queues a topic has, and where.

The endpoints in the answer are those that the client used, since they reach this server: behind a port mapping, a load
balancer or a name of its own. A consumer that pushes gets "any queue" of each broker, for popping needs no sharing out.
"""

from __future__ import annotations

from typing import Any, Final

import attrs

from verniermq.contrib.grpc.brokers import BrokerQueues, Brokers
from verniermq.contrib.grpc.call import Call
from verniermq.contrib.grpc.clients import ClientTable
from verniermq.contrib.grpc.enums import AddressScheme, Code, MessageType, Permission
from verniermq.contrib.grpc.schema import proto
from verniermq.contrib.grpc.settings import is_fifo
from verniermq.contrib.grpc.status import CallFailed, status
from verniermq.kernel import Perm, TopicConfig
from verniermq.protocol.topics import MESSAGE_TYPE

MIXED: Final = (MessageType.NORMAL, MessageType.FIFO, MessageType.DELAY, MessageType.TRANSACTION)
ANY_QUEUE: Final = -1


def accepted_types(topic: TopicConfig) -> tuple[MessageType, ...]:
    """The kinds of messages that a topic is for; without an attribute that says so, all that need no other topic."""
    kind = topic.attributes.get(MESSAGE_TYPE, "UNSPECIFIED")
    return (MessageType[kind],) if kind in MessageType.__members__ else MIXED


def endpoints(host: str, port: int) -> Any:
    scheme = AddressScheme.DOMAIN_NAME
    if ":" in host:
        scheme = AddressScheme.IPv6
    elif host.replace(".", "").isdecimal():
        scheme = AddressScheme.IPv4
    return proto.Endpoints(scheme=scheme, addresses=[proto.Address(host=host, port=port)])


@attrs.define(eq=False)
class RouteCalls:
    brokers: Brokers
    clients: ClientTable
    address: tuple[str, int]
    """Where the server listens, for clients that do not say where they came to."""

    async def query_route(self, request: Any, call: Call) -> Any:
        topic = call.topic(request.topic)
        answer = proto.QueryRouteResponse(status=status(Code.OK))
        for found in await self.brokers.whole_route(topic):
            where = self._endpoints(found, request)
            for queue_id, permission in enumerate(_permissions(found.topic)):
                queue = answer.message_queues.add(id=queue_id, permission=permission)
                self._fill_in(queue, request.topic, found, where)
        if not answer.message_queues:
            raise CallFailed(Code.TOPIC_NOT_FOUND, f"topic {topic!r} has no queue")
        return answer

    async def query_assignment(self, request: Any, call: Call) -> Any:
        topic, group = call.topic(request.topic), call.group(request.group)
        answer = proto.QueryAssignmentResponse(status=status(Code.OK))
        in_order = is_fifo(await self.brokers.group(group, ""))
        for found in await self.brokers.whole_route(topic):
            if not found.topic.perm & Perm.READ or not found.topic.read_queues:
                continue
            where = self._endpoints(found, request)
            for queue_id in range(found.topic.read_queues) if in_order else (ANY_QUEUE,):
                queue = answer.assignments.add().message_queue
                queue.id, queue.permission = queue_id, Permission.READ_WRITE
                self._fill_in(queue, request.topic, found, where)
        if not answer.assignments:
            raise CallFailed(Code.FORBIDDEN, f"topic {topic!r} has no queue that may be read")
        return answer

    def _fill_in(self, queue: Any, topic: Any, found: BrokerQueues, where: Any) -> None:
        queue.topic.CopyFrom(topic)
        queue.broker.name, queue.broker.id = found.broker_name, 0
        queue.broker.endpoints.CopyFrom(where)
        queue.accept_message_types.extend(accepted_types(found.topic))

    def _endpoints(self, found: BrokerQueues, request: Any) -> Any:
        if found.address is not None:
            return endpoints(*found.address)
        return request.endpoints if request.endpoints.addresses else endpoints(*self.address)


def _permissions(topic: TopicConfig) -> list[Permission]:
    """For each queue: both, as long as there are queues of both kinds, then what is left."""
    may_read, may_write = bool(topic.perm & Perm.READ), bool(topic.perm & Perm.WRITE)
    reads, writes = topic.read_queues if may_read else 0, topic.write_queues if may_write else 0
    both = min(reads, writes)
    left = [Permission.READ] * (reads - both) + [Permission.WRITE] * (writes - both)
    return [Permission.READ_WRITE] * both + left or [Permission.NONE] * topic.queues
