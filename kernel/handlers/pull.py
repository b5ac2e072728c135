"""PULL_MESSAGE: read a queue, match, answer with slices of the log, or wait (RocketMQ: ``PullMessageProcessor``).

Records are never decoded here: the consume queue says where they lie, the filter is asked about the tag's
hash in the entry, and the answer's body is cut out of the log as it is. Only a filter that tests properties
makes us look into a record.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Awaitable, Coroutine
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import attrs

from verniermq.kernel.codes import Perm, RequestCode, ResponseCode
from verniermq.kernel.commitlog.record import properties_of
from verniermq.kernel.dispatch.longpoll import HeldPull
from verniermq.kernel.errors import NoPermission, QueueOutOfRange, RequestRefused
from verniermq.kernel.message import MATCH_ALL, MessageFilter, Subscription
from verniermq.kernel.remoting import Command, Connection, Handler

if TYPE_CHECKING:
    from verniermq.kernel.broker import Broker

logger = logging.getLogger(__name__)

COMMIT_OFFSET: Final = 0x1
SUSPEND: Final = 0x2
SUBSCRIPTION_INCLUDED: Final = 0x4

_ENTRY: Final = struct.Struct(">qiq")


@attrs.frozen
class Pull:
    """The fields of a request, read once; a waiting pull is executed a second time with them."""

    group: str
    topic: str
    queue_id: int
    offset: int
    max_messages: int
    filter: MessageFilter
    wait_ms: int


class PullHandler:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._store = broker.store
        self._limits = broker.configuration.pull
        self._pulled = broker.host.calls("messages_pulled")
        self._compile = lru_cache(maxsize=1024)(self._compile_expression)

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.PULL_MESSAGE: self.pull, RequestCode.LITE_PULL_MESSAGE: self.pull}

    def pull(self, request: Command, connection: Connection) -> Command | Coroutine[Any, Any, Command | None] | None:
        pull, flags = self._decode(request)
        if flags & COMMIT_OFFSET:
            committed = request.integer("commitOffset")
            if committed >= 0:
                self._broker.offsets.commit(pull.group, pull.topic, pull.queue_id, committed)
        fetching = self._fetching(pull)
        if fetching is not None:
            return self._answer_after(fetching, request, connection, pull, flags)
        return self._answer(request, connection, pull, flags)

    async def _answer_after(
        self, fetching: Awaitable[None], request: Command, connection: Connection, pull: Pull, flags: int
    ) -> Command | None:
        await fetching
        return self._answer(request, connection, pull, flags)

    def _answer(self, request: Command, connection: Connection, pull: Pull, flags: int) -> Command | None:
        """Answer now, or when there is something to answer with."""
        answer = self._execute(request, pull)
        if answer.code != ResponseCode.PULL_NOT_FOUND or not flags & SUSPEND or pull.wait_ms <= 0:
            return answer
        deadline = self._broker.clock.now() + min(pull.wait_ms / 1000, self._limits.max_wait)
        self._broker.held_pulls.hold(
            HeldPull(
                topic=pull.topic,
                queue_id=pull.queue_id,
                offset=pull.offset,
                filter=pull.filter,
                deadline=deadline,
                connection=connection,
                resume=lambda: connection.answer(request, self._execute_again(request, pull)),
            )
        )
        return None

    def _execute_again(self, request: Command, pull: Pull) -> Command:
        """Whoever wakes a pull must not hear of its trouble; its consumer does."""
        try:
            return self._execute(request, pull)
        except RequestRefused as error:
            return request.reply(error.code, remark=str(error))
        except Exception as error:
            logger.exception("a pull that was held failed topic=%s queue=%d", pull.topic, pull.queue_id)
            return request.reply(ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}")

    def _decode(self, request: Command) -> tuple[Pull, int]:
        group, topic = request.text("consumerGroup"), request.text("topic")
        queue_id, flags = request.integer("queueId"), request.integer("sysFlag")
        config = self._broker.topics.get(topic)
        if not config.perm & Perm.READ:
            raise NoPermission(f"topic {topic!r} may not be read (perm {config.perm})")
        if not 0 <= queue_id < config.read_queues:
            raise QueueOutOfRange(topic, queue_id, config.read_queues)
        self._check_group(group, topic)
        pull = Pull(
            group, topic, queue_id, request.integer("queueOffset"), request.integer("maxMsgNums"),
            self._filter(request, group, topic, flags), request.integer("suspendTimeoutMillis", 0),
        )  # fmt: skip
        return pull, flags

    def _check_group(self, name: str, topic: str) -> None:
        group = self._broker.groups.for_use(name)
        if not group.may_consume:
            raise NoPermission(f"group {name!r} may not consume (consumeEnable is false)")
        live = self._broker.clients.consumers.get(name)
        if not group.may_broadcast and live is not None and live.message_model == "BROADCASTING":
            raise NoPermission(f"group {name!r} may not consume by broadcast (consumeBroadcastEnable is false)")
        if self._broker.groups.forbidden.get(name, {}).get(topic, 0) & Perm.READ:
            raise NoPermission(f"group {name!r} may not read topic {topic!r} (it is in its forbiddenTable)")

    # --- which filter ----------------------------------------------------------------------

    def _filter(self, request: Command, group: str, topic: str, flags: int) -> MessageFilter:
        if flags & SUBSCRIPTION_INCLUDED:
            return self._compile(
                topic, request.text("subscription", "*") or "*", request.text("expressionType", "TAG") or "TAG"
            )
        live = self._broker.clients.subscription(group, topic)
        if live is None:
            raise RequestRefused(
                f"group {group!r} has no live subscription to topic {topic!r} yet; it comes with the heartbeat",
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
            )
        if live.subscription.version < request.integer("subVersion", 0):
            raise RequestRefused(
                f"group {group!r} pulls topic {topic!r} with a newer subscription than its last heartbeat brought",
                ResponseCode.SUBSCRIPTION_NOT_LATEST,
            )
        if live.error is not None:
            raise live.error.with_traceback(None)  # or it would grow with each raise
        return live.filter

    def _compile_expression(self, topic: str, expression: str, expression_type: str) -> MessageFilter:
        return self._broker.compile_filter(Subscription(topic, expression, expression_type))

    # --- reading ---------------------------------------------------------------------------

    def _execute(self, request: Command, pull: Pull) -> Command:
        """Answer from what is there now."""
        reset = self._broker.offsets.take_reset(pull.group, pull.topic, pull.queue_id)
        queue = self._store.queue(pull.topic, pull.queue_id)
        low, high = (0, 0) if queue is None else (queue.min_offset, queue.max_offset)
        pieces: list[bytes] = []
        if reset is not None:
            code, following = ResponseCode.PULL_OFFSET_MOVED, reset
        elif queue is not None and low <= pull.offset < high:
            following, pieces = self._read(pull, high)
            code = ResponseCode.SUCCESS if pieces else ResponseCode.PULL_RETRY_IMMEDIATELY
            self._broker.offsets.note_pull(pull.group, pull.topic, pull.queue_id, following)
            for call in self._pulled if pieces else ():
                call(pull.group, pull.topic, pull.queue_id, len(pieces), sum(map(len, pieces)))
        elif pull.offset == high:
            code, following = ResponseCode.PULL_NOT_FOUND, high
        else:
            code, following = ResponseCode.PULL_OFFSET_MOVED, low if pull.offset < low else high
        ext = {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": str(following),
            "minOffset": str(low),
            "maxOffset": str(high),
        }
        return request.reply(code, ext, pieces)

    def _fetching(self, pull: Pull) -> Awaitable[None] | None:
        """Something to await if what the pull will read is old and has to come from the disk."""
        queue = self._store.queue(pull.topic, pull.queue_id)
        if queue is None or not queue.min_offset <= pull.offset < queue.tail_start:
            return None  # nearly always: what was appended a moment ago is in memory
        wanted = max(1, min(pull.max_messages, self._limits.max_messages))
        codes, look_at = pull.filter.tag_codes, self._look_at(pull, wanted)
        entries = queue.read(pull.offset, min(look_at, queue.max_offset - pull.offset))
        if int.from_bytes(entries[:8], "big") >= self._store.fresh_from:
            return None  # and so are those behind it
        found = _ENTRY.iter_unpack(entries)
        places = [(position, size) for position, size, code in found if codes is None or code in codes]
        return self._store.fetching(places if pull.filter.test is not None else places[:wanted])

    def _look_at(self, pull: Pull, wanted: int) -> int:
        """How many entries of the queue are looked at to find as many messages as wanted."""
        return wanted if pull.filter is MATCH_ALL else max(wanted, self._limits.max_scan)

    def _read(self, pull: Pull, high: int) -> tuple[int, list[bytes]]:
        """The records from an offset on that pass the filter, and the offset after the last one looked at."""
        queue = self._store.queue(pull.topic, pull.queue_id)
        assert queue is not None  # the caller saw it
        wanted = max(1, min(pull.max_messages, self._limits.max_messages))
        codes, test = pull.filter.tag_codes, pull.filter.test
        look_at = self._look_at(pull, wanted)
        read, budget = self._store.read, self._limits.max_bytes
        pieces: list[bytes] = []
        offset = pull.offset
        for position, size, code in _ENTRY.iter_unpack(queue.read(offset, min(look_at, high - offset))):
            if codes is None or code in codes:
                record = None
                if budget >= size or not pieces:
                    record = read(position, size)
                elif pieces:
                    break
                # A record that is gone was deleted by retention while the queue still named it.
                if record is not None and (test is None or test(properties_of(record))):
                    pieces.append(record)
                    budget -= size
                    if len(pieces) == wanted:
                        return offset + 1, pieces
            offset += 1
        return max(offset, pull.offset + 1) if not pieces else offset, pieces
