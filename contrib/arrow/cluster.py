"""Where topics live and how far their queues go, asked of name servers and brokers.

A broker may go away and come back, at the same address or another: what fails is tried again for a while, with a
fresh look at the route.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs

from verniermq.contrib.arrow.errors import BrokerGone, ClusterUnreachable, NoSuchTopic, TableError
from verniermq.contrib.arrow.requests import GetQueueRanges, ReportStream
from verniermq.contrib.arrow.wire import Wire
from verniermq.kernel import (
    AUTO_CREATE_TOPIC,
    Command,
    MessageQueue,
    PeerUnreachable,
    Perm,
    RemotingError,
    RequestCode,
    ResponseCode,
    UnexpectedAnswer,
    parse_answer,
    request_name,
)
from verniermq.kernel.requests import GetMaxOffset, GetMinOffset, Request, SearchOffset, UpdateConsumerOffset
from verniermq.protocol.nameserver import GetRouteInfo

if TYPE_CHECKING:
    from verniermq.contrib.arrow.progress import BatchDone

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 2.0

NEW_QUEUES: Final = 4


@attrs.frozen
class Bounds:
    """What a queue has: offsets from ``low`` to just before ``high``."""

    low: int
    high: int


class Refused(TableError):
    """A broker or a name server answered no; trying again would not help."""

    def __init__(self, address: str, code: int, answer: Command) -> None:
        super().__init__(f"{address} refused {request_name(code)}: {answer.remark or answer.code}")
        self.code = answer.code


def expect(answer: Command, code: int, address: str) -> Command:
    """The answer, if it is a success.

    Raises:
        UnexpectedAnswer: the peer is busy or failing just now.
        Refused: it is not.
    """
    if answer.code == ResponseCode.SUCCESS:
        return answer
    if answer.code in (ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE):
        raise UnexpectedAnswer(address, request_name(code), answer.code, answer.remark)
    raise Refused(address, code, answer)


def _object(answer: Command, code: int, address: str) -> dict[Any, Any]:
    """The JSON object in the body of a successful answer."""
    return parse_answer(expect(answer, code, address).body, address, request_name(code))


class Cluster:
    """The brokers behind some name servers, with one connection to each that was asked something."""

    def __init__(self, name_servers: Sequence[str], retry_seconds: float = 30.0) -> None:
        self.name_servers = list(name_servers)
        self.retry_seconds = retry_seconds
        self._wires: dict[str, Wire] = {}
        self._addresses: dict[str, str] = {}
        """Broker name → its address."""
        self._without_ranges: set[str] = set()
        """Brokers that do not have the ``spark`` plugin."""

    def close(self) -> None:
        for wire in self._wires.values():
            wire.close()
        self._wires.clear()

    def forget(self) -> None:
        """Look for the brokers anew: one that went away may come back elsewhere."""
        self._addresses.clear()

    def patiently(self, what: str, work: Callable[[], Result]) -> Result:
        """Do something, again and again if a peer is not there, until the patience is over.

        Raises:
            BrokerGone: it is.
        """
        deadline = time.monotonic() + self.retry_seconds
        pause = FIRST_PAUSE
        while True:
            try:
                return work()
            except RemotingError as error:
                self.forget()
                if time.monotonic() + pause > deadline:
                    raise BrokerGone(what, self.retry_seconds, error) from error
                logger.warning("%s: %s; trying again in %.1f s", what, error, pause)
            time.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    def ask(self, address: str, asked: Command | Request) -> Command:
        """One request to one address, on the connection that is kept for it; the answer whatever its code."""
        wire = self.wire(address)
        wire.send(asked.command() if isinstance(asked, Request) else asked)
        return wire.receive()

    def wire(self, address: str) -> Wire:
        return self._wires.setdefault(address, Wire(address))

    # --- name servers ----------------------------------------------------------------------

    def expect_name_server(self) -> None:
        """For somebody who waits: an address that is wrong is told at once, before patience is tried.

        Raises:
            ClusterUnreachable: none can be reached.
        """
        try:
            self._ask_name_server(Command.request(RequestCode.GET_BROKER_CLUSTER_INFO))
        except PeerUnreachable as error:
            raise ClusterUnreachable(error) from error
        except RemotingError:
            pass  # it is there, and the first who needs it asks again

    def _ask_name_server(self, asked: Command | Request) -> Command:
        failure: Exception | None = None
        for address in list(self.name_servers):
            try:
                return self.ask(address, asked)
            except RemotingError as error:
                failure = error
                self.name_servers.append(self.name_servers.pop(0))  # the next one first, the next time
        assert failure is not None, "there is at least one name server"
        raise failure

    def topics(self) -> list[str]:
        """Every topic there is, the brokers' own too, but for those that have the name of a cluster or a broker."""
        topics = self._listed(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, "list the topics").get("topicList") or []
        info = self._listed(RequestCode.GET_BROKER_CLUSTER_INFO, "list the brokers")
        names = {*(info.get("clusterAddrTable") or ()), *(info.get("brokerAddrTable") or ())}
        return sorted(set(topics) - names)

    def _listed(self, code: RequestCode, what: str) -> dict[Any, Any]:
        answer = self.patiently(what, lambda: self._ask_name_server(Command.request(code)))
        return _object(answer, code, self.name_servers[0])

    def route(self, topic: str, writable: bool = False) -> list[MessageQueue] | None:
        """The queues of a topic that can be read (or written); ``None`` if there is no such topic."""
        asked = GetRouteInfo(topic=topic, standard_json=True)
        answer = self._ask_name_server(asked)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        data = _object(answer, asked.code, self.name_servers[0])
        for broker in data.get("brokerDatas") or []:
            addresses = {int(number): address for number, address in broker["brokerAddrs"].items()}
            if addresses and (0 in addresses or not writable):
                self._addresses[broker["brokerName"]] = addresses[min(addresses)]
        count, needed = ("writeQueueNums", Perm.WRITE) if writable else ("readQueueNums", Perm.READ)
        return sorted(
            MessageQueue(topic, queues["brokerName"], number)
            for queues in data.get("queueDatas") or []
            if queues["brokerName"] in self._addresses and int(queues.get("perm", 6)) & needed
            for number in range(int(queues[count]))
        )

    def queues(self, topics: Iterable[str]) -> list[MessageQueue]:
        """The queues of all these topics that can be read.

        Raises:
            NoSuchTopic: one of them does not exist.
            BrokerGone: nobody can be asked.
        """
        found: list[MessageQueue] = []
        missing = []
        for topic in topics:
            route = self.patiently(f"find topic {topic!r}", lambda topic=topic: self.route(topic))  # type: ignore[misc]
            if route is None:
                missing.append(topic)
            else:
                found += route
        if missing:
            raise NoSuchTopic(missing, ", ".join(self.name_servers), self.topics())
        return found

    def queues_to_send_to(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic, or those that it will have: the first message creates it, where brokers allow that.

        Raises:
            NoSuchTopic: it does not exist, and no broker would create it.
        """
        what = f"find topic {topic!r}"
        route = self.patiently(what, lambda: self.route(topic, writable=True))
        if route is None:
            template = self.patiently(what, lambda: self.route(AUTO_CREATE_TOPIC, writable=True)) or []
            route = [attrs.evolve(queue, topic=topic) for queue in template if queue.queue_id < NEW_QUEUES]
        if not route:
            raise NoSuchTopic([topic], ", ".join(self.name_servers), self.topics())
        return route

    def address(self, queue: MessageQueue) -> str:
        """Where a queue's broker is.

        Raises:
            RemotingError: nobody knows at the moment.
        """
        if queue.broker_name not in self._addresses and self.route(queue.topic) is None:
            self.route(AUTO_CREATE_TOPIC)  # a topic that is about to be created
        address = self._addresses.get(queue.broker_name)
        if address is None:
            why = f"no name server of {', '.join(self.name_servers)} knows broker {queue.broker_name!r} at the moment"
            raise UnexpectedAnswer(self.name_servers[0], "GET_ROUTEINFO_BY_TOPIC", ResponseCode.TOPIC_NOT_EXIST, why)
        return address

    # --- brokers ---------------------------------------------------------------------------

    def bounds(self, queues: Sequence[MessageQueue]) -> dict[MessageQueue, Bounds]:
        """Where each queue begins and ends now."""
        by_broker: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            by_broker.setdefault(queue.broker_name, []).append(queue)
        found: dict[MessageQueue, Bounds] = {}
        for name, some in by_broker.items():
            what = f"ask broker {name!r} where its queues end"
            found |= self.patiently(what, lambda some=some: self._bounds(some))  # type: ignore[misc]
        return found

    def _bounds(self, queues: Sequence[MessageQueue]) -> dict[MessageQueue, Bounds]:
        address = self.address(queues[0])
        if address not in self._without_ranges:
            names = sorted({queue.topic for queue in queues})
            answer = self.ask(address, GetQueueRanges(topics=names))
            if answer.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                topics = _object(answer, RequestCode.GET_QUEUE_RANGES, address)["topics"]
                return {queue: _bounds_in(topics, queue) for queue in queues}
            self._without_ranges.add(address)
        return {
            queue: Bounds(
                self._offset(address, GetMinOffset(topic=queue.topic, queue_id=queue.queue_id)),
                self._offset(address, GetMaxOffset(topic=queue.topic, queue_id=queue.queue_id)),
            )
            for queue in queues
        }

    def _offset(self, address: str, asked: Request) -> int:
        return int(expect(self.ask(address, asked), asked.code, address).ext["offset"])

    def offset_by_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The offset of the first message that was stored at or after a time."""
        asked = SearchOffset(topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp_ms)
        return self.patiently(
            f"find the offset of {timestamp_ms} ms in {queue}", lambda: self._offset(self.address(queue), asked)
        )

    def committed(self) -> dict[str, dict[str, dict[str, dict[str, int]]]]:
        """How far the groups are: group → topic → broker → queue → offset. Only brokers with the plugin tell."""
        found: dict[str, dict[str, dict[str, dict[str, int]]]] = {}
        for name, address in self.brokers().items():
            answer = self.ask(address, GetQueueRanges(groups=True, topics=[]))
            if answer.code != ResponseCode.SUCCESS:
                continue
            for group, topics in _object(answer, RequestCode.GET_QUEUE_RANGES, address)["groups"].items():
                for topic, queues in topics.items():
                    found.setdefault(group, {}).setdefault(topic, {})[name] = queues
        return found

    def brokers(self) -> dict[str, str]:
        """Every broker's name and address."""
        code = RequestCode.GET_BROKER_CLUSTER_INFO
        answer = self.patiently("list the brokers", lambda: self._ask_name_server(Command.request(code)))
        table = _object(answer, code, self.name_servers[0]).get("brokerAddrTable") or {}
        return {
            name: data["brokerAddrs"][min(data["brokerAddrs"], key=int)]
            for name, data in table.items()
            if data.get("brokerAddrs")
        }

    def report(self, group: str, done: BatchDone) -> None:
        """Tell one broker with the plugin what a batch did, for its metrics and its console."""
        milliseconds = int(done.seconds * 1000)
        told = ReportStream(group=group, batch=done.number, rows=done.rows, milliseconds=milliseconds, behind=done.lag)
        for _, address in sorted(self.brokers().items()):
            answer = self.ask(address, told)
            if answer.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                expect(answer, RequestCode.REPORT_STREAM, address)
                return

    def commit(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Publish how far a group is, so that its lag is seen where people look for it."""
        for queue, offset in offsets.items():
            told = UpdateConsumerOffset(group=group, topic=queue.topic, queue_id=queue.queue_id, offset=offset)
            address = self.address(queue)
            expect(self.ask(address, told), told.code, address)


def _bounds_in(topics: dict[str, Any], queue: MessageQueue) -> Bounds:
    found = topics.get(queue.topic, {}).get(str(queue.queue_id), {})
    return Bounds(found.get("min", 0), found.get("max", 0))
