"""PULL_MESSAGE: read a queue, match, answer with slices of the log, or wait (RocketMQ: ``PullMessageProcessor``).

Records are never decoded here: the consume queue says where they lie, the filter is asked about the tag's
hash in the entry, and the answer's body is cut out of the log as it is. Only a filter that tests properties
makes us look into a record.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from verniermq.kernel import hookspecs
from verniermq.kernel.codes import Perm, RequestCode, ResponseCode
from verniermq.kernel.errors import NoPermission, QueueOutOfRange, RequestRefused
from verniermq.kernel.handlers.longpoll import HeldPull
from verniermq.kernel.handlers.table import HandlerTable
from verniermq.kernel.maybe import then
from verniermq.kernel.message import MATCH_ALL, MessageFilter, Subscription
from verniermq.kernel.remoting import Answer, Command, Connection, Work
from verniermq.kernel.requests import PullMessage

if TYPE_CHECKING:
    from verniermq.kernel.handlers.parts import BrokerParts

logger = logging.getLogger(__name__)

TESTED_PER_PULL: Final = 256
"""Messages that one pull has its filter test: an expression may be long, and everybody else waits meanwhile."""


class Pull(NamedTuple):
    """What a request reads, and through which filter; a waiting pull is executed a second time with it."""

    group: str
    topic: str
    queue_id: int
    offset: int
    max_messages: int
    filter: MessageFilter
    wait_ms: int


class PullHandler:
    def __init__(self, broker: BrokerParts) -> None:
        self._broker = broker
        self._store = broker.store
        self._limits = broker.configuration.pull
        self._compile = lru_cache(maxsize=1024)(self._compile_expression)

    def register(self, table: HandlerTable) -> None:
        table.serve(RequestCode.PULL_MESSAGE, PullMessage, self.pull)
        table.serve(RequestCode.LITE_PULL_MESSAGE, PullMessage, self.pull)

    def pull(self, request: Command, connection: Connection) -> Answer | Work:
        asked = PullMessage.of(request)
        pull, flags = self._pull(asked, connection), asked.sys_flag
        if flags & PullMessage.COMMIT_OFFSET and asked.commit_offset >= 0:
            self._broker.offsets.commit(pull.group, pull.topic, pull.queue_id, asked.commit_offset)
        return then(self._fetching(pull), lambda: self._answer(request, connection, pull, flags))

    def _answer(self, request: Command, connection: Connection, pull: Pull, flags: int) -> Command | None:
        """Answer now, or when there is something to answer with."""
        answer = self._execute(request, pull)
        if answer.code != ResponseCode.PULL_NOT_FOUND or not flags & PullMessage.SUSPEND or pull.wait_ms <= 0:
            return answer
        deadline = self._broker.clock.monotonic() + min(pull.wait_ms / 1000, self._limits.max_wait)
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

    def _pull(self, asked: PullMessage, connection: Connection) -> Pull:
        group, topic, queue_id = asked.group, asked.topic, asked.queue_id
        config = self._broker.topics.get(topic)
        if not config.perm & Perm.READ:
            raise NoPermission(f"topic {topic!r} may not be read (perm {config.perm})")
        if not 0 <= queue_id < config.read_queues:
            raise QueueOutOfRange(topic, queue_id, config.read_queues)
        self._check_group(group, topic, connection)
        return Pull(group, topic, queue_id, asked.offset, asked.max_messages, self._filter(asked), asked.wait_ms)

    def _check_group(self, name: str, topic: str, connection: Connection) -> None:
        groups = self._broker.groups
        group = groups.find(name) or groups.for_use(name, connection.peer_host)
        if not group.may_consume:
            raise NoPermission(f"group {name!r} may not consume (consumeEnable is false)")
        live = self._broker.clients.consumers.get(name)
        if not group.may_broadcast and live is not None and live.message_model == "BROADCASTING":
            raise NoPermission(f"group {name!r} may not consume by broadcast (consumeBroadcastEnable is false)")
        if self._broker.groups.forbidden.get(name, {}).get(topic, 0) & Perm.READ:
            raise NoPermission(f"group {name!r} may not read topic {topic!r} (it is in its forbiddenTable)")

    # --- which filter ----------------------------------------------------------------------

    def _filter(self, asked: PullMessage) -> MessageFilter:
        group, topic = asked.group, asked.topic
        if asked.sys_flag & PullMessage.SUBSCRIPTION_INCLUDED:
            return self._compile(topic, asked.expression or "*", asked.expression_type)
        live = self._broker.clients.subscription(group, topic)
        if live is None:
            raise RequestRefused(
                f"group {group!r} has no live subscription to topic {topic!r} yet; it comes with the heartbeat",
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
            )
        if live.subscription.version < asked.sub_version:
            if live.error is None and live.subscription.expression_type == asked.expression_type == "TAG":
                # Java's client numbers its subscription anew when its queues change, and the heartbeat that tells of it
                # may be the next one, 30 s later. It compares tags itself, since their hashes may collide.
                return MATCH_ALL
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
        remark = ""
        if reset is not None:
            code, following = ResponseCode.PULL_OFFSET_MOVED, reset
        elif queue is not None and low <= pull.offset < high:
            following, pieces, count, remark = self._read(pull, high)
            code = ResponseCode.SUCCESS if pieces else ResponseCode.PULL_RETRY_IMMEDIATELY
            self._broker.offsets.note_pull(pull.group, pull.topic, pull.queue_id, following)
            if pieces:
                size = sum(map(len, pieces))
                self._broker.messages_pulled(pull.group, pull.topic, pull.queue_id, count, size)
        elif pull.offset == high:
            code, following = ResponseCode.PULL_NOT_FOUND, high
            self._broker.held_pulls.missed += 1
        else:
            code, following = ResponseCode.PULL_OFFSET_MOVED, low if pull.offset < low else high
            self._broker.host.announce(
                hookspecs.offset_moved, pull.group, pull.topic, pull.queue_id, pull.offset, following
            )
        ext = {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": str(following),
            "minOffset": str(low),
            "maxOffset": str(high),
        }
        return request.reply(code, ext, pieces, remark)

    def _fetching(self, pull: Pull) -> Awaitable[None] | None:
        """Something to await if what the pull will read is old and has to come from the disk."""
        queue = self._store.queue(pull.topic, pull.queue_id)
        if queue is None:
            return None
        wanted = max(1, min(pull.max_messages, self._limits.max_messages))
        look_at = self._look_at(pull, wanted)
        return self._store.fetching_entries(queue, pull.offset, look_at, pull.filter, wanted)

    def _look_at(self, pull: Pull, wanted: int) -> int:
        """How many entries of the queue are looked at to find as many messages as wanted."""
        if pull.filter is MATCH_ALL:
            return wanted
        most = max(wanted, self._limits.max_scan)
        return most if pull.filter.test is None else min(most, TESTED_PER_PULL)

    def _read(self, pull: Pull, high: int) -> tuple[int, list[bytes], int, str]:
        """The offset after the last entry looked at, the records from an offset on that pass the filter, in pieces, how
        many they are, and a remark."""
        queue = self._store.queue(pull.topic, pull.queue_id)
        assert queue is not None  # the caller saw it
        wanted = max(1, min(pull.max_messages, self._limits.max_messages))
        damage, limits = self._store.damage, self._limits
        check_before = damage.old_before if limits.verify_old else 0
        entries = queue.read(pull.offset, min(self._look_at(pull, wanted), high - pull.offset))
        # What lies in a queue lies in the log in the same order: if the first is not old, no other is.
        if pull.filter is MATCH_ALL and int.from_bytes(entries[:8], "big") >= check_before:
            side_by_side = self._store.adjacent(entries, most=wanted, max_bytes=limits.max_bytes)
            if side_by_side is not None:
                pieces, count = side_by_side
                return pull.offset + max(count, 1), pieces, count, ""
        found = self._store.matches(
            entries, pull.filter, most=wanted, max_bytes=limits.max_bytes, check_before=check_before
        )
        remark = ""
        if found.damaged is not None:
            number, position = found.damaged
            remark = f"the message at offset {pull.offset + number} is damaged: {damage.why(position)}"
        # At least one further: an entry that cannot be read must not hold up a consumer.
        return pull.offset + max(found.looked_at, 1), found.records, len(found.records), remark
