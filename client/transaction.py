"""Messages that become visible only when a local transaction has succeeded (RocketMQ: ``TransactionMQProducer``).

The message is stored where no consumer sees it, the local transaction runs, and its outcome is told to the broker. If
that word is lost, or the program dies, the broker asks later: any live producer of the group, which looks up what
became of the transaction.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from enum import IntEnum
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeAlias, Unpack

import anyio.to_thread
import attrs

from verniermq.client.errors import ClientError
from verniermq.client.message import ReceivedMessage, decode_one
from verniermq.client.options import ProducerOptions
from verniermq.client.producer import Producer
from verniermq.client.results import SendResult, SendStatus
from verniermq.kernel import (
    Command,
    Connection,
    EndedTransaction,
    Handler,
    Message,
    Property,
    RemotingError,
    RequestCode,
    SysFlag,
    parse_offset_message_id,
)

logger = logging.getLogger(__name__)


class TransactionState(IntEnum):
    """What became of a local transaction."""

    COMMIT = SysFlag.TRANSACTION_COMMIT
    ROLLBACK = SysFlag.TRANSACTION_ROLLBACK
    UNKNOWN = 0
    """Not decided yet: the broker asks again later."""


_NAMES: Final[Mapping[TransactionState, Literal["COMMIT", "ROLLBACK", "UNKNOWN"]]] = {
    TransactionState.COMMIT: "COMMIT",
    TransactionState.ROLLBACK: "ROLLBACK",
    TransactionState.UNKNOWN: "UNKNOWN",
}

Checker: TypeAlias = Callable[[ReceivedMessage], "TransactionState | Awaitable[TransactionState]"]
LocalTransaction: TypeAlias = Callable[[Message, str], "TransactionState | Awaitable[TransactionState]"]
"""Called with the message and the transaction's id, after the message is stored."""


@attrs.define(eq=False)
class Transaction:
    """One transaction, as an ``async with`` block; see :meth:`TransactionProducer.transaction`."""

    _producer: TransactionProducer
    message: Message
    result: SendResult | None = None
    state: TransactionState = TransactionState.UNKNOWN
    _decided: bool = False

    @property
    def id(self) -> str:
        """What the local database should remember, so that a check can be answered: the same as the message's id."""
        assert self.result is not None, "the transaction has not begun"
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
        self.result = await self._producer._send_half(self.message)
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

    def transaction(self, message: Message) -> Transaction:
        """A block in which the local transaction runs, after the message was stored out of sight.

        The end of the block commits, an exception rolls back.

        Raises:
            SendFailed, UnexpectedAnswer: the message could not be stored; the block does not run.
        """
        self._ensure_running()
        return Transaction(self, message)

    async def send_in_transaction(
        self, message: Message, local: LocalTransaction
    ) -> tuple[SendResult, TransactionState]:
        """Store the message, run ``local(message, transaction_id)``, and tell the broker what it returned.

        ``local`` may be async or plain; a plain one runs in a worker thread. If it raises, the outcome is unknown, and
        the broker will ask the checker.

        Raises:
            SendFailed, UnexpectedAnswer: the message could not be stored; ``local`` is not run.
        """
        self._ensure_running()
        result = await self._send_half(message)
        try:
            state = await _ask(local, message, result.transaction_id or result.message_id)
        except Exception as error:
            logger.warning("local transaction failed, the broker asks message=%s", result.message_id, exc_info=error)
            state = TransactionState.UNKNOWN
        await self._finish(message, result, state)
        return result, state

    # --- how -------------------------------------------------------------------------------

    async def _started(self) -> None:
        if self._checker is None:
            raise ClientError(
                f"transaction producer {self.group!r} has no checker; set one with on_check, so that a transaction "
                "whose outcome was lost can be decided"
            )
        await super()._started()

    async def _send_half(self, message: Message) -> SendResult:
        half = attrs.evolve(message, properties=dict(message.properties), delay_level=0)
        half.properties[Property.TRANSACTION_PREPARED] = "true"
        half.properties[Property.PRODUCER_GROUP] = self._preparer.group
        result = await self.send(half)
        if result.status is not SendStatus.SEND_OK:
            # Not safely stored: the local transaction must not run on it.
            await self._finish(half, result, TransactionState.ROLLBACK)
            raise ClientError(
                f"the message of a transaction was stored with {result.status.name} only, and is rolled back; try again"
            )
        return result

    async def _finish(self, message: Message, result: SendResult, state: TransactionState) -> None:
        _, log_offset = parse_offset_message_id(result.offset_message_id)
        address = self._routes.broker_address(result.queue.broker_name)
        if address is None:
            logger.warning("transaction not ended, the broker will ask message=%s", result.message_id)
            return
        await self._tell(
            address,
            {
                "topic": result.queue.topic,
                "producerGroup": self._preparer.group,
                "tranStateTableOffset": str(result.queue_offset),
                "commitLogOffset": str(log_offset),
                "commitOrRollback": str(int(state)),
                "fromTransactionCheck": "false",
                "msgId": result.message_id,
                "transactionId": result.transaction_id,
                "bname": result.queue.broker_name,
            },
        )
        await self._ended(
            message.topic, result.message_id, result.transaction_id, state, address, message.all_properties()
        )

    async def _ended(
        self, topic: str, message_id: str, transaction_id: str, state: TransactionState, address: str,
        properties: Mapping[str, str], *, from_check: bool = False,
    ) -> None:  # fmt: skip
        """Let plugins hear of it."""
        if self.host.calls("transaction_ended"):
            tags, keys = properties.get(Property.TAGS, ""), properties.get(Property.KEYS, "")
            ended = EndedTransaction(
                self.group, self.client_id, topic, message_id, transaction_id, _NAMES[state], from_check, address,
                tags, keys,
            )  # fmt: skip
            await self.host.announce_and_wait("transaction_ended", ended)

    async def _tell(self, address: str, ext: dict[str, str]) -> None:
        try:
            await self._pool.oneway(address, Command.request(RequestCode.END_TRANSACTION, ext, oneway=True))
        except RemotingError as error:
            logger.warning("transaction not ended, the broker will ask message=%s reason=%s", ext["msgId"], error)

    def _handlers(self) -> Mapping[int, Handler]:
        return {**super()._handlers(), RequestCode.CHECK_TRANSACTION_STATE: self._check}

    async def _check(self, request: Command, connection: Connection) -> None:
        """A broker asks what became of a transaction; the answer is a request of its own."""
        message = decode_one(request.body, request.text("bname", ""))
        assert self._checker is not None
        try:
            state = await _ask(self._checker, message)
        except Exception:
            logger.exception("the checker failed, the broker will ask again message=%s", message.message_id)
            state = TransactionState.UNKNOWN
        answer = Command.request(
            RequestCode.END_TRANSACTION,
            {
                "topic": message.topic,
                "producerGroup": message.properties.get(Property.PRODUCER_GROUP, self._preparer.group),
                "tranStateTableOffset": request.text("tranStateTableOffset"),
                "commitLogOffset": request.text("commitLogOffset"),
                "commitOrRollback": str(int(state)),
                "fromTransactionCheck": "true",
                "msgId": message.message_id,
                "transactionId": request.text("transactionId", message.message_id),
                "bname": request.text("bname", ""),
            },
            oneway=True,
        )
        self._pool.sign(answer)
        connection.oneway(answer)
        await self._ended(
            message.topic, message.message_id, answer.ext["transactionId"], state, connection.peer_address,
            message.properties, from_check=True,
        )  # fmt: skip


async def _ask(function: Callable[..., Any], *arguments: Any) -> TransactionState:
    if inspect.iscoroutinefunction(function):
        answer = await function(*arguments)
    else:
        answer = await anyio.to_thread.run_sync(lambda: function(*arguments))
        if inspect.isawaitable(answer):
            answer = await answer
    return TransactionState.UNKNOWN if answer is None else TransactionState(answer)


