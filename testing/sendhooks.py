"""The contract of every plugin around sends: run it on your own.

``check_send_hooks(plugin)`` plays a producer with an instance of the plugin and asserts what producers rely on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import attrs

from verniermq.kernel.errors import RequestRefused, VernierMQError
from verniermq.kernel.message import Message, MessageQueue
from verniermq.kernel.traffic import Sending


@attrs.frozen
class Stored:
    """What a send comes back with, as the client's ``SendResult``."""

    message_id: str = "7F000001000018B4AAC2000000000001"
    offset_message_id: str = "7F00000100002A9F0000000000000000"
    queue: MessageQueue = attrs.field(factory=lambda: MessageQueue("orders", "broker-a", 0))
    queue_offset: int = 41
    transaction_id: str = ""
    region: str = "DefaultRegion"
    trace_on: bool = True


def odd_messages() -> Iterator[Message]:
    """Messages as programs send them, usual and unusual."""
    yield Message("orders", b"plain")
    yield Message("orders", b"tagged", tags="paid", keys=["T1", "T2"], properties={"region": "eu"})
    yield Message("orders", b"\x00\xff" * 10_000, keys="one key as text")
    yield Message("orders", "Grüße 消息 🚀".encode(), tags="ä", keys=["消息"], properties={"text": "🚀" * 100})
    yield Message("orders", b"later", delay_level=3, wait_store_ok=False)
    yield Message("%RETRY%billing", b"again")
    yield Message("orders", b"half", properties={"TRAN_MSG": "true", "PGROUP": "billing"})


async def check_send_hooks(plugin: Any) -> None:
    """Assert that a plugin can stand around any send.

    ``before_send`` either lets a message pass, with a topic, a body of bytes and properties of text without the two
    separators, or raises ``RequestRefused`` with a readable text. ``after_send`` raises nothing, changes no message,
    and copes with a send that went well, one without an answer, one that failed, and one that an earlier plugin
    refused. Either hook may be missing, and either may be ``async``.
    """
    before, after = getattr(plugin, "before_send", None), getattr(plugin, "after_send", None)
    assert before or after, f"{type(plugin).__name__} has neither before_send nor after_send"
    for message in odd_messages():
        sending = Sending("billing", "10.0.0.5@7", message, "sync")
        refusal: Exception | None = None
        if before is not None:
            try:
                await _call(before, sending)
            except RequestRefused as error:
                refusal = error
            assert refusal is None or str(refusal).strip(), "a refusal must say what is wrong"
            _check_message(sending.message)
        if after is None:
            continue
        for outcome in [refusal] if refusal else [None, "oneway", VernierMQError("the broker is gone")]:
            ended = attrs.evolve(sending, notes=dict(sending.notes))
            if isinstance(outcome, Exception):
                ended.error = outcome
            elif outcome is None:
                ended.result, ended.message_id, ended.broker = Stored(), Stored().message_id, "10.0.0.9:10911"
            kept = attrs.evolve(ended.message, properties=dict(ended.message.properties))
            await _call(after, ended)
            assert ended.message == kept, "after_send must not change a message"
        await _call(after, Sending("billing", "10.0.0.5@7", message, "sync", error=RequestRefused("somebody else")))


async def _call(hook: Callable[..., Any], sending: Sending) -> None:
    result = hook(sending)
    if result is not None:
        await result


def _check_message(message: Message) -> None:
    assert isinstance(message.topic, str), f"the topic became {message.topic!r}"
    assert message.topic, "the topic became empty"
    assert isinstance(message.body, bytes), f"the body became {type(message.body).__name__}"
    assert message.body, "the body became empty, which brokers refuse"
    for name, value in message.all_properties().items():
        assert isinstance(name, str) and isinstance(value, str), f"property {name!r} is {value!r}, expected text"  # noqa: PT018
        assert {"\x01", "\x02"}.isdisjoint(name + value), f"property {name!r} holds a separator"
