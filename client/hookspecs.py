"""The hooks of a client, in the order in which a producer and a consumer meet them; see ``kernel/hookspecs.py``.

``allocate_queues`` is a hook of both, and specified there.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from verniermq.kernel import hookspec
from verniermq.kernel.hookspecs import allocate_queues as allocate_queues

if TYPE_CHECKING:
    from verniermq.kernel import Consuming, EndedTransaction, FaultStrategy, Sending


@hookspec("announcement", may_wait=True, at_start=True)
def client_started() -> Awaitable[None] | None:
    """A producer or consumer is connected, before it sends or handles the first message. Awaited in order.

    Used by ``trace``.
    """


@hookspec("question")
def fault_strategy(name: str) -> FaultStrategy | None:
    """Make the object that steers a producer away from brokers that fail or are slow (RocketMQ: ``MQFaultStrategy``).

    Asked once per producer with the name from its settings; ``None`` for a name that is not yours. Used by ``fault``.
    """


@hookspec("change", may_wait=True)
def before_send(sending: Sending) -> Awaitable[None] | None:
    """Change, delay or refuse a message before a producer sends it (RocketMQ: ``SendMessageHook``).

    Called once per message, not once per try, for each message of a batch too; first the plugins in their order, then
    the functions of the program. Raise ``RequestRefused`` to refuse it: the caller of the send gets that error, later
    plugins are not asked, nothing is sent. When it raises anything else the message is put back as it was before the
    call, and ``on_failure`` decides. An ``async`` implementation makes this send wait. Used by ``enrich``.
    """


@hookspec("announcement", may_wait=True)
def after_send(sending: Sending) -> Awaitable[None] | None:
    """A send ended, well or with an error: its broker's, or the refusal of a ``before_send``.

    Called once per message, in the order of ``before_send``, also for a plugin whose ``before_send`` was not reached.
    Nothing that it raises changes what became of the send. Used by ``trace``, ``audit``.
    """


@hookspec("announcement", may_wait=True)
def transaction_ended(ended: EndedTransaction) -> Awaitable[None] | None:
    """A producer told its broker how a transaction ended (RocketMQ: ``EndTransactionHook``). Used by ``trace``."""


@hookspec("change", may_wait=True)
def before_consume(consuming: Consuming) -> Awaitable[None] | None:
    """Delay messages that are about to be handed to a consumer's handler, or hand them back.

    An ``async`` implementation makes them wait, and one of the consumer's handlers with them (flow rules spread
    messages this way). ``Busy`` means: too much now. The messages stay in hand, later plugins and ``after_consume`` are
    not called, and in 50 ms all are asked again; it costs no attempt. Any other ``RequestRefused`` hands them back as
    if the handler had failed. Used by ``flow``, ``trace``.
    """


@hookspec("announcement", may_wait=True)
def after_consume(consuming: Consuming) -> Awaitable[None] | None:
    """A handler is done with messages, well or not, or a ``before_consume`` handed them back.

    Used by ``flow``, ``trace``.
    """


@hookspec("announcement", may_wait=True)
def client_stopping() -> Awaitable[None] | None:
    """A client is about to close: it takes nothing new, its connections are still there.

    Awaited in reverse order, at most 5 s each. Used by ``trace``.
    """
