"""Which queues a consumer gets, decided by the broker (RocketMQ: ``QueryAssignmentProcessor``).

A client that leaves the sharing to the broker asks for its queues and whether to pull or to pop them. Pulled
queues are shared out among the members of the group. Popped ones belong to everybody: the answer then is one
"any queue" (-1) per broker, unless the mode limits how many consumers share a queue. Modes are set per topic
and group (``mqadmin setConsumeMode``) and kept in ``config/messageRequestMode.json``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs
import orjson

from verniermq.kernel import (
    RETRY_PREFIX,
    Broker,
    Command,
    Connection,
    Document,
    GroupNotFound,
    InvalidParameter,
    MessageQueue,
    NoPermission,
    Perm,
    RemotingError,
    RequestCode,
    connect,
)

if TYPE_CHECKING:
    from verniermq.plugins.pop import Config

logger = logging.getLogger(__name__)

PULL, POP = "PULL", "POP"
ROUTE_SECONDS: Final = 30.0
"""How long a route is taken for true, as clients do."""


@attrs.frozen
class Mode:
    mode: str = PULL
    share: int = -1
    """Popped queues: how many further consumers share one; 0 or less: all of them."""


# --- sharing out ---------------------------------------------------------------------------


def averagely(queues: Sequence[MessageQueue], clients: Sequence[str], me: str) -> list[MessageQueue]:
    """Neighbouring queues to each client, the first ones get one more."""
    position, size, extra = clients.index(me), *divmod(len(queues), len(clients))
    start = position * size + min(position, extra)
    return list(queues[start : start + size + (position < extra)])


def in_a_circle(queues: Sequence[MessageQueue], clients: Sequence[str], me: str) -> list[MessageQueue]:
    return list(queues[clients.index(me) :: len(clients)])


STRATEGIES: Final = {"AVG": averagely, "AVG_BY_CIRCLE": in_a_circle}


def share_popped(
    allocate: Callable[[str], list[MessageQueue]], queues: Sequence[MessageQueue], clients: Sequence[str], me: str,
    share: int,
) -> list[MessageQueue]:  # fmt: skip
    """The queues that a popping client looks into; ``allocate`` says which a client would have for itself alone."""
    if share <= 0 or share >= len(clients) - 1:
        return list(dict.fromkeys(MessageQueue(queue.topic, queue.broker_name, -1) for queue in queues))
    position = clients.index(me)
    if len(clients) > len(queues):
        return [queues[position % len(queues)]]
    neighbours = [clients[(position + step) % len(clients)] for step in range(share + 1)]
    return list(dict.fromkeys(queue for client in neighbours for queue in allocate(client)))


# --- requests ------------------------------------------------------------------------------


class Assignment:
    def __init__(self, broker: Broker, config: Config) -> None:
        self._broker = broker
        self.config = config
        self._modes: dict[tuple[str, str], Mode] = {}
        file = broker.config_file("messageRequestMode")
        self._load(file.load() or {})
        self._document: Document = broker.documents.add(file, self.as_json)
        self._routes: dict[str, tuple[float, list[MessageQueue]]] = {}

    async def query(self, request: Command, connection: Connection) -> Command:
        data = _object(request.body)
        topic, group, client_id = str(data.get("topic")), str(data.get("consumerGroup")), str(data.get("clientId"))
        mode = self.mode(topic, group)
        queues = await self._queues(topic)
        members = self._broker.clients.consumers.get(group)
        found: list[MessageQueue] | None
        if not queues:
            found = None
        elif data.get("messageModel") == "BROADCASTING":
            found = queues
        elif members is None:
            found = None
        else:
            found = self._share(str(data.get("strategyName")), mode, queues, members.client_ids(), client_id)
        assignments = None if found is None else [
            {
                "messageQueue": {"brokerName": q.broker_name, "queueId": q.queue_id, "topic": q.topic},
                "mode": mode.mode,
            }
            for q in found
        ]  # fmt: skip
        return request.reply(body=orjson.dumps({"messageQueueAssignments": assignments}))

    def _share(
        self, strategy: str, mode: Mode, queues: list[MessageQueue], clients: list[str], me: str
    ) -> list[MessageQueue] | None:
        allocate = STRATEGIES.get(strategy)
        if allocate is None:
            logger.warning("unknown allocation strategy strategy=%s known=%s", strategy, ", ".join(STRATEGIES))
            return None
        if me not in clients:
            return []
        if mode.mode == PULL:
            return allocate(queues, clients, me)
        return share_popped(lambda client: allocate(queues, clients, client), queues, clients, me, mode.share)

    async def _queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic on all brokers, as the name servers know them; our own if they do not answer."""
        now = self._broker.clock.now()
        known = self._routes.get(topic)
        if known is None or now - known[0] > ROUTE_SECONDS:
            queues = await self._ask_for_route(topic) or self._own_queues(topic)
            if not queues:
                return []
            known = self._routes[topic] = (now, queues)
        return known[1]

    def _own_queues(self, topic: str) -> list[MessageQueue]:
        config = self._broker.topics.find(topic)
        if config is None or not config.perm & Perm.READ:
            return []
        return [MessageQueue(topic, self._broker.name, queue_id) for queue_id in range(config.read_queues)]

    async def _ask_for_route(self, topic: str) -> list[MessageQueue]:
        for address in self._broker.name_servers:
            try:
                connection = await connect(address)
                try:
                    route = Command.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
                    answer = await connection.request(route)
                finally:
                    connection.close()
            except RemotingError as error:
                logger.warning("no route from name server address=%s topic=%s: %s", address, topic, error)
                continue
            if answer.code == 0:
                return _queues_of(topic, orjson.loads(answer.body))
        return []

    # --- modes -----------------------------------------------------------------------------

    def mode(self, topic: str, group: str) -> Mode:
        known = self._modes.get((topic, group))
        if known is not None:
            return known
        if topic.startswith(RETRY_PREFIX):
            return Mode(PULL)
        return Mode(self.config.default_mode, self.config.default_share)

    async def set_mode(self, request: Command, connection: Connection) -> Command:
        data = _object(request.body)
        topic, group, mode = str(data.get("topic")), str(data.get("consumerGroup")), str(data.get("mode"))
        if topic.startswith(RETRY_PREFIX):
            raise NoPermission(f"{topic!r} is a retry topic; those are always pulled")
        self._broker.topics.get(topic)
        if group not in self._broker.groups:
            raise GroupNotFound(group)
        if mode not in (PULL, POP):
            raise InvalidParameter(f"mode is {mode!r}, expected PULL or POP")
        self._modes[topic, group] = Mode(mode, int(data.get("popShareQueueNum") or 0))
        self._document.touch()
        await self._document.saved()
        return request.reply()

    def all_modes(self, request: Command, connection: Connection) -> Command:
        return request.reply(body=orjson.dumps(self.as_json()))

    def as_json(self) -> dict[str, Any]:
        table: dict[str, dict[str, Any]] = {}
        for (topic, group), mode in self._modes.items():
            table.setdefault(topic, {})[group] = {
                "consumerGroup": group, "mode": mode.mode, "popShareQueueNum": mode.share, "topic": topic,
            }  # fmt: skip
        return {"messageRequestModeMap": table}

    def _load(self, data: Mapping[str, Any]) -> None:
        for topic, groups in (data.get("messageRequestModeMap") or {}).items():
            for group, mode in groups.items():
                self._modes[topic, group] = Mode(mode.get("mode", PULL), int(mode.get("popShareQueueNum") or 0))

    def handlers(self) -> dict[int, Callable[[Command, Connection], Command | Coroutine[Any, Any, Command]]]:
        return {
            RequestCode.QUERY_ASSIGNMENT: self.query,
            RequestCode.SET_MESSAGE_REQUEST_MODE: self.set_mode,
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: self.all_modes,
        }


def _object(body: bytes) -> dict[str, Any]:
    try:
        data = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidParameter(f"the body is no JSON: {error}") from error
    if not isinstance(data, dict):
        raise InvalidParameter(f"the body is a JSON {type(data).__name__}, expected an object")
    return data


def _queues_of(topic: str, route: Mapping[str, Any]) -> list[MessageQueue]:
    """The readable queues of a route, sorted as every client sorts them."""
    return sorted(
        MessageQueue(topic, data["brokerName"], queue_id)
        for data in route.get("queueDatas") or []
        if data.get("perm", 0) & Perm.READ
        for queue_id in range(data.get("readQueueNums", 0))
    )
