"""Messages that become visible only when a local transaction has succeeded (RocketMQ: ``TransactionMQProducer``).

The message is stored where no consumer sees it, the local transaction runs, and its outcome is told to the broker. If
that word is lost, or the program dies, the broker asks later: any live producer of the group, which looks up what
became of the transaction.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum, IntEnum
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeAlias, Unpack

import anyio.to_thread
import attrs

from verniermq.client import hookspecs
from verniermq.client.errors import BadMessage, BadOutcome, ClientError
from verniermq.client.java import instead_of_answer, shown
from verniermq.client.message import ReceivedMessage, decode_one
from verniermq.client.options import ProducerOptions
from verniermq.client.producer import Producer
from verniermq.client.results import SendResult, SendStatus
from verniermq.client.selectors import QueueSelector
from verniermq.kernel import (
    PRODUCT,
    PRODUCT_FIELD,
    Command,
    Connection,
    EndedTransaction,
    Handler,
    Message,
    MessageQueue,
    Property,
    RemotingError,
    RequestCode,
    SysFlag,
    parse_offset_message_id,
)
from verniermq.protocol.transaction import CheckTransactionState, EndTransaction

logger = logging.getLogger(__name__)


class TransactionState(IntEnum):
    """What became of a local transaction."""

    COMMIT = SysFlag.TRANSACTION_COMMIT
    ROLLBACK = SysFlag.TRANSACTION_ROLLBACK
    UNKNOWN = 0
    """Not decided yet: the broker asks again later."""

    def __str__(self) -> str:
        return self.name

    __format__ = Enum.__format__


_NAMES: Final[Mapping[TransactionState, Literal["COMMIT", "ROLLBACK", "UNKNOWN"]]] = {
    TransactionState.COMMIT: "COMMIT",
    TransactionState.ROLLBACK: "ROLLBACK",
    TransactionState.UNKNOWN: "UNKNOWN",
}

Checker: TypeAlias = Callable[[ReceivedMessage], "TransactionState | Awaitable[TransactionState]"]
LocalTransaction: TypeAlias = Callable[..., "TransactionState | Awaitable[TransactionState]"]
"""Called with the message, the transaction's id and what else was given, after the message is stored."""

_DELAYS: Final = (Property.DELAY, Property.TIMER_DELIVER_MS, Property.TIMER_DELAY_MS, Property.TIMER_DELAY_SEC)


@attrs.frozen
class Where:
    """How the queue of a transaction's message is chosen."""

    queue: MessageQueue | None = None
    selector: QueueSelector | None = None
    sharding_key: str | None = None


@attrs.define(eq=False)
class Transaction:
    """One transaction, as an ``async with`` block; see :meth:`TransactionProducer.transaction`."""

    _producer: TransactionProducer
    message: Message
    _where: Where
    result: SendResult | None = None
    state: TransactionState = TransactionState.UNKNOWN
    _decided: bool = False

    @property
    def id(self) -> str:
        """What the local database should remember, so that a check can be answered: the same as the message's id."""
        if self.result is None:
            raise ClientError("this transaction has not begun, so it has no id; it begins with its block")
        return self.result.transaction_id or self.result.message_id

    def commit(self) -> None:
        """Decide that the message becomes visible; without a decision, that is what the end of the block means."""
        self.state, self._decided = TransactionState.COMMIT, True

    def rollback(self) -> None:
        """Decide that the message is never seen."""
        self.state, self._decided = TransactionState.ROLLBACK, True

    def unknown(self) -> None:
        """Leave it open: the broker asks the checker later."""
        self.state, self._decided = TransactionState.UNKNOWN, True

    async def __aenter__(self) -> Self:
        self.result = await self._producer._send_half(self.message, self._where)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            self.state = TransactionState.ROLLBACK
        elif not self._decided:
            self.state = TransactionState.COMMIT
        assert self.result is not None
        with anyio.CancelScope(shield=True):
            await self._producer._finish(self.message, self.result, self.state)


class TransactionProducer(Producer):
    """Sends messages together with a local transaction.

    ::

        producer = TransactionProducer("orders")

        @producer.on_check
        async def check(message):                    # asked for transactions of dead members of the group too
            return TransactionState.COMMIT if await paid(message.transaction_id) else TransactionState.ROLLBACK

        async with producer:
            async with producer.transaction(Message("orders", b"…")) as tx:
                await database.store(tx.id)          # an exception here rolls the message back

    """

    def __init__(self, group: str, *, checker: Checker | None = None, **options: Unpack[ProducerOptions]) -> None:
        super().__init__(group, **options)
        self._checker = checker

    def on_check(self, checker: Checker) -> Checker:
        """Set the function that knows what became of a transaction. A decorator."""
        self._checker = checker
        return checker

    def transaction(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        sharding_key: str | None = None,
    ) -> Transaction:
        """A block in which the local transaction runs, after the message was stored out of sight.

        The end of the block commits, an exception rolls back. A delay of the message begins with the commit. ``queue``,
        ``selector`` and ``sharding_key`` choose where it is then, as in :meth:`send`.

        Raises:
            SendFailed, UnexpectedAnswer: the message could not be stored; the block does not run.
            BadMessage: it has a delay, and a broker of its topic is one that would lose it.
        """
        self._ensure_running()
        return Transaction(self, message, Where(queue, selector, sharding_key))

    async def send_in_transaction(
        self,
        message: Message,
        local: LocalTransaction,
        *arguments: object,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        sharding_key: str | None = None,
    ) -> tuple[SendResult, TransactionState]:
        """Store the message, run ``local(message, transaction_id, *arguments)``, and tell the broker what it returned.

        ``local`` may be async or plain; a plain one runs in a worker thread. If it raises, the outcome is unknown, and
        the broker will ask the checker.

        Raises:
            SendFailed, UnexpectedAnswer, BadMessage: the message could not be stored; ``local`` is not run.
            BadOutcome: ``local`` returned something that is no state; the broker will ask the checker.
        """
        self._ensure_running()
        result = await self._send_half(message, Where(queue, selector, sharding_key))
        wrong: BadOutcome | None = None
        try:
            state = await _ask(local, message, result.transaction_id or result.message_id, *arguments)
        except BadOutcome as error:
            wrong, state = error, TransactionState.UNKNOWN
        except Exception as error:
            logger.warning("local transaction failed, the broker asks message=%s", result.message_id, exc_info=error)
            state = TransactionState.UNKNOWN
        await self._finish(message, result, state)
        if wrong is not None:
            raise wrong
        return result, state

    # --- how -------------------------------------------------------------------------------

    async def _started(self) -> None:
        if self._checker is None:
            raise ClientError(
                f"transaction producer {self.group!r} has no checker; set one with on_check, so that a transaction "
                "whose outcome was lost can be decided"
            )
        await super()._started()

    async def _send_half(self, message: Message, where: Where) -> SendResult:
        if any(message.all_properties().get(name, "0") != "0" for name in _DELAYS):
            await self._ensure_delays_last(message)
        half = attrs.evolve(message, properties=dict(message.properties))
        half.properties[Property.TRANSACTION_PREPARED] = "true"
        half.properties[Property.PRODUCER_GROUP] = self._encoder.group
        result = await self.send(half, queue=where.queue, selector=where.selector, sharding_key=where.sharding_key)
        if result.status is not SendStatus.SEND_OK:
            # Not safely stored: the local transaction must not run on it.
            await self._finish(half, result, TransactionState.ROLLBACK)
            raise ClientError(
                f"the message of a transaction was stored with {result.status.name} only, and is rolled back; try again"
            )
        return result

    async def _ensure_delays_last(self, message: Message) -> None:
        """
        Raises:
            BadMessage: a broker of the topic would delay the half message, and lose it, as Apache's do.
        """
        route = await self._sender.route(self._encoder.wire_topic(message.topic))
        for name in sorted({queue.broker_name for queue in route.writable}):
            heartbeat = self._heartbeat_command()
            assert heartbeat is not None  # every producer has one
            address = self._sender.address(route, MessageQueue(route.topic, name, 0))
            answer = await self._pool.request(address, heartbeat, self.options.request_timeout)
            if answer.ext.get(PRODUCT_FIELD) != PRODUCT:
                raise BadMessage(
                    f"a message with a delay cannot be sent in a transaction to broker {name!r}, which would lose it; "
                    "send it without a delay, or after the local transaction and without the broker's"
                )

    async def _finish(self, message: Message, result: SendResult, state: TransactionState) -> None:
        _, log_offset = parse_offset_message_id(result.offset_message_id)
        address = self._routes.broker_address(result.queue.broker_name)
        if address is None:
            logger.warning("transaction not ended, the broker will ask message=%s", result.message_id)
            return
        await self._tell(
            address,
            EndTransaction(
                topic=result.queue.topic,
                group=self._encoder.group,
                half_offset=result.queue_offset,
                log_offset=log_offset,
                outcome=int(state),
                message_id=result.message_id,
                transaction_id=result.transaction_id,
                broker_name=result.queue.broker_name,
            ),
        )
        await self._ended(
            message.topic, result.message_id, result.transaction_id, state, address, message.all_properties()
        )

    async def _ended(
        self, topic: str, message_id: str, transaction_id: str, state: TransactionState, address: str,
        properties: Mapping[str, str], *, from_check: bool = False,
    ) -> None:  # fmt: skip
        """Let plugins hear of it."""
        if self.host.calls(hookspecs.transaction_ended):
            tags, keys = properties.get(Property.TAGS, ""), properties.get(Property.KEYS, "")
            ended = EndedTransaction(
                self.group, self.client_id, topic, message_id, transaction_id, _NAMES[state], from_check, address,
                tags, keys,
            )  # fmt: skip
            await self.host.announce_and_wait(hookspecs.transaction_ended, ended)

    async def _tell(self, address: str, end: EndTransaction) -> None:
        try:
            await self._pool.oneway(address, end.command(oneway=True))
        except RemotingError as error:
            logger.warning("transaction not ended, the broker will ask message=%s reason=%s", end.message_id, error)

    def _handlers(self) -> Mapping[int, Handler]:
        return {**super()._handlers(), RequestCode.CHECK_TRANSACTION_STATE: self._check}

    async def _check(self, request: Command, connection: Connection) -> None:
        """A broker asks what became of a transaction; the answer is a request of its own."""
        check = CheckTransactionState.of(request)
        message = decode_one(request.body, check.broker_name or "", self.options.max_body_size)
        assert self._checker is not None
        try:
            state = await _ask(self._checker, message)
        except BadOutcome as error:
            logger.error("%s; the broker will ask again message=%s", error, message.message_id)
            state = TransactionState.UNKNOWN
        except Exception:
            logger.exception("the checker failed, the broker will ask again message=%s", message.message_id)
            state = TransactionState.UNKNOWN
        end = EndTransaction(
            topic=message.topic,
            group=message.properties.get(Property.PRODUCER_GROUP, self._encoder.group),
            half_offset=check.half_offset,
            log_offset=check.log_offset,
            outcome=int(state),
            from_check=True,
            message_id=message.message_id,
            transaction_id=check.transaction_id or message.message_id,
            broker_name=check.broker_name or "",
        )
        answer = end.command(oneway=True)
        self._pool.sign(answer)
        connection.oneway(answer)
        await self._ended(
            message.topic, message.message_id, end.transaction_id or "", state, connection.peer_address,
            message.properties, from_check=True,
        )  # fmt: skip


async def _ask(function: Callable[..., Any], *arguments: Any) -> TransactionState:
    if inspect.iscoroutinefunction(function):
        answer = await function(*arguments)
    else:
        answer = await anyio.to_thread.run_sync(lambda: function(*arguments))
        if inspect.isawaitable(answer):
            answer = await answer
    if answer is None:
        return TransactionState.UNKNOWN
    if not isinstance(answer, TransactionState):
        raise BadOutcome(
            f"{getattr(function, '__qualname__', function)!r} returned {shown(answer)}{instead_of_answer(answer)}; "
            "expected TransactionState.COMMIT, ROLLBACK or UNKNOWN"
        )
    return answer
