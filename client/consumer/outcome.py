"""What a handler may say about its messages.

A handler that returns has consumed them, one that raises has not. The rest is for those who want to say more:
``return Later(delay_level=5)``, ``return Consumed(3)`` for the first three of a batch.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any, TypeAlias

import attrs

from verniermq.client.errors import ClientError
from verniermq.client.java import instead_of_answer, shown
from verniermq.client.message import ReceivedMessage


class Outcome(Enum):
    """The plain answers."""

    CONSUMED = "consumed"
    LATER = "later"
    LEFT = "left"
    """Nobody looked at it, since the consumer is closing: whoever reads the queue next gets it, without a delay."""


@attrs.frozen
class Later:
    """Not now: offer the messages again.

    ``delay_level`` 1 to 18 is a delay of the broker's table; 0 lets the broker choose by how often the message failed;
    -1 makes it a dead letter at once. In order, the queue waits ``seconds`` and tries the same message again.
    """

    delay_level: int = 0
    seconds: float | None = None
    reason: str = ""

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.delay_level, int) or self.delay_level < -1:
            raise ClientError(
                f"Later(delay_level={shown(self.delay_level)}), expected 1 to 18, 0 for the broker's choice, -1 for a "
                "dead letter; a text is reason="
            )


@attrs.frozen
class Consumed:
    """The first ``count`` messages of a batch are consumed, the others are to come again."""

    count: int

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.count, int) or self.count < 0:
            raise ClientError(f"Consumed({shown(self.count)}), expected how many of the batch, from the first one on")


MessageHandler: TypeAlias = Callable[[ReceivedMessage], Any | Awaitable[Any]]
BatchHandler: TypeAlias = Callable[[list[ReceivedMessage]], Any | Awaitable[Any]]


@attrs.frozen
class Verdict:
    """An answer, worked out: how many were consumed, and when the others come again."""

    consumed: int
    delay_level: int = 0
    seconds: float | None = None
    reason: str = ""
    left: bool = False
    put_off: bool = False
    """A hook says that it is too much now: the messages stay in hand and are asked about again, at no cost."""


def verdict_of(answer: object, count: int, *, none_means_later: bool) -> Verdict:
    """
    Raises:
        ClientError: the answer is none of those that mean something.
    """
    if answer is None:
        return Verdict(0 if none_means_later else count, reason="the handler returned None" if none_means_later else "")
    if answer is Outcome.CONSUMED or answer is True:
        return Verdict(count)
    if answer is Outcome.LATER or answer is False:
        return Verdict(0, reason="the handler said later")
    if answer is Outcome.LEFT:
        return Verdict(0, left=True)
    if isinstance(answer, Later):
        return Verdict(0, answer.delay_level, answer.seconds, answer.reason or "the handler said later")
    if isinstance(answer, Consumed):
        return Verdict(max(0, min(answer.count, count)), reason="the handler consumed a part only")
    raise ClientError(
        f"a handler returned {shown(answer)}{instead_of_answer(answer)}; expected nothing, an Outcome, Later(…) or "
        "Consumed(…), so the messages are offered again"
    )


def check_handler(handler: object, takes_batch: bool) -> None:
    """
    Raises:
        ClientError: it cannot be called with one message, or one list of them.
    """
    what = "a list of messages" if takes_batch else "one message"
    if not callable(handler):
        raise ClientError(f"{shown(handler)} is no handler; expected a function that takes {what}")
    try:
        # Not what a decorator hides: it may give its function more than it gets itself.
        inspect.signature(handler, follow_wrapped=False).bind(None)
    except TypeError as error:
        name = getattr(handler, "__qualname__", handler)
        raise ClientError(
            f"handler {name!r} does not take {what} ({error}); on_message is for def take(message), on_batch for "
            "def take(messages), and there is no context"
        ) from None
    except ValueError:
        pass  # a builtin that does not tell its arguments


def is_async(handler: Callable[..., Any]) -> bool:
    """Whether calling it gives something to await; others run in worker threads."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004
