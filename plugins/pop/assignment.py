"""Which queues a consumer gets, decided by the broker (RocketMQ: ``QueryAssignmentProcessor``).

A client that leaves the sharing to the broker asks for its queues and whether to pull or to pop them. Pulled
queues are shared out among the members of the group. Popped ones belong to everybody: the answer then is one
"any queue" (-1) per broker, unless the mode limits how many consumers share a queue. Modes are set per topic
and group (``mqadmin setConsumeMode``) and kept in ``config/messageRequestMode.json``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from verniermq.kernel import (
    MAX_QUEUES,
    RETRY_PREFIX,
    Command,
    Connection,
    Context,
    Document,
    InvalidParameter,
    MessageQueue,
    NoPermission,
    Perm,
    Registry,
    RemotingError,
    RequestCode,
    RequestRefused,
    TopicNotFound,
    hookspecs,
)
from verniermq.plugins.pop.requests import GetAllMessageRequestMode, QueryAssignment, SetMessageRequestMode

if TYPE_CHECKING:
    from verniermq.plugins.pop import Config

logger = logging.getLogger(__name__)

PULL, POP = "PULL", "POP"
ROUTE_SECONDS: Final = 30.0
"""How long a route is taken for true, as clients do."""


class Mode(NamedTuple):
    mode: str = PULL
    share: int = -1
    """Popped queues: how many further consumers share one; 0 or less: all of them."""


# --- sharing out ---------------------------------------------------------------------------


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


class AssignmentHandlers:
    def __init__(self, broker: Context, config: Config) -> None:
        self._broker = broker
        self.config = config
        self._modes: dict[tuple[str, str], Mode] = {}
        self._document: Document
        self._routes: dict[str, tuple[float, list[MessageQueue]]] = {}

    async def query(self, request: Command, connection: Connection) -> Command:
        asked = QueryAssignment.of(request)
        topic, group = asked.topic, asked.group
        mode = self.mode(topic, group)
        queues = await self._queues(topic)
        members = self._broker.clients.consumers.get(group)
        found: list[MessageQueue] | None
        if not queues:
            found = None
        elif asked.message_model == "BROADCASTING":
            found = queues
        elif members is None:
            found = None
        else:
            found = self._share(asked.strategy, group, mode, queues, members.client_ids(), asked.client_id)
        assignments = None if found is None else [
            {
                "messageQueue": {"brokerName": q.broker_name, "queueId": q.queue_id, "topic": q.topic},
                "mode": mode.mode,
            }
            for q in found
        ]  # fmt: skip
        return request.reply(body=orjson.dumps({"messageQueueAssignments": assignments}))

    def _share(
        self, strategy: str, group: str, mode: Mode, queues: list[MessageQueue], clients: list[str], me: str
    ) -> list[MessageQueue] | None:
        def allocate(client: str) -> list[MessageQueue] | None:
            try:
                return self._broker.hooks.ask(hookspecs.allocate_queues, strategy, group, client, queues, clients)
            except RequestRefused as error:
                logger.warning("queues not allocated strategy=%s group=%s reason=%s", strategy, group, error)
                return None

        if me not in clients:
            return []
        alone = allocate(me)
        if alone is None:
            logger.warning("unknown allocation strategy strategy=%s group=%s", strategy, group)
            return None
        if mode.mode == PULL:
            return alone
        return share_popped(lambda client: allocate(client) or [], queues, clients, me, mode.share)

    async def _queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic on all brokers, as the name servers know them; our own if they do not answer."""
        now = self._broker.clock.monotonic()
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
        from verniermq.protocol.peers import Peers  # where there is but one broker, nobody is asked

        try:
            async with Peers(self._broker.name_servers, tls=lambda: self._broker.outgoing_tls) as peers:
                return _queues_of(topic, await peers.route(topic))
        except TopicNotFound:
            return []
        except (RemotingError, AttributeError, KeyError, TypeError) as error:
            logger.warning("no route from a name server topic=%s: %r", topic, error)
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
        wanted = SetMessageRequestMode.of(request)
        topic, group, mode, share = wanted.topic, wanted.group, wanted.mode, wanted.share
        if topic.startswith(RETRY_PREFIX):
            raise NoPermission(f"{topic!r} is a retry topic; those are always pulled")
        self._broker.topics.get(topic)
        if mode not in (PULL, POP):
            raise InvalidParameter(f"mode is {mode!r:.80}, expected PULL or POP")
        if type(share) is not int or not -(2**31) <= share < 2**31:
            raise InvalidParameter(f"popShareQueueNum is {share!r:.80}, expected a whole number of 32 bits")
        self._broker.groups.for_use(group, connection.peer_host)
        self._modes[topic, group] = Mode(mode, share)
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

    def take_over(self, data: Mapping[str, Any]) -> None:
        """The modes that the master of this slave has."""
        before = dict(self._modes)
        self._modes.clear()
        self._load(data)
        if self._modes != before:
            self._document.touch()

    def setup(self, registry: Registry) -> None:
        self._document = registry.table("messageRequestMode", load=self._load, save=self.as_json)
        registry.handler(RequestCode.QUERY_ASSIGNMENT, self.query, QueryAssignment)
        registry.handler(RequestCode.SET_MESSAGE_REQUEST_MODE, self.set_mode, SetMessageRequestMode)
        registry.handler(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, self.all_modes, GetAllMessageRequestMode)


def _queues_of(topic: str, route: Mapping[str, Any]) -> list[MessageQueue]:
    """The readable queues of a route, sorted as every client sorts them."""
    return sorted(
        MessageQueue(topic, data["brokerName"], queue_id)
        for data in route.get("queueDatas") or []
        if data.get("perm", 0) & Perm.READ
        for queue_id in range(min(data.get("readQueueNums", 0), MAX_QUEUES))
    )
