"""Messages whose bodies a consumer must not have: it goes on behind them."""

from __future__ import annotations

import zlib
from typing import Any

import pytest

from tests.client.place import Place, eventually, until
from verniermq.client import Admin, Message, Producer, PushConsumer, ReceivedMessage
from verniermq.client.errors import BodyTooLarge
from verniermq.kernel import SysFlag

pytestmark = pytest.mark.anyio

LIMIT = 1 << 20
BOMB = zlib.compress(bytes(64 << 20), 9)


async def _send_bomb(place: Place, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three messages; the second claims to be small and is not."""
    async with Producer("senders", namesrv=place.namesrv, compress_over=LIMIT) as producer:
        await producer.send(Message(topic, b"first"))
        with monkeypatch.context() as patch:
            # What somebody else's client sends: a body that is compressed already.
            patch.setattr("verniermq.client.encoder.compress", lambda body, kind: BOMB)
            await producer.send(Message(topic, bytes(LIMIT + 1)))
        await producer.send(Message(topic, b"third"))


@pytest.mark.parametrize("kind", ["concurrent", "orderly", "batch"])
async def test_a_body_that_inflates_too_far_becomes_a_dead_letter_and_the_next_is_consumed(
    place: Place, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await place.topic("bomb", queues=1)
    await _send_bomb(place, topic, monkeypatch)
    options: dict[str, Any] = {"orderly": kind == "orderly", "batch_size": 1 if kind != "batch" else 2}
    consumer = PushConsumer(
        place.name("group"), namesrv=place.namesrv, start="first", max_body_size=LIMIT, concurrency=1, **options
    )
    consumer.subscribe(topic)
    got: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        try:
            got.append(message.body)
        except BodyTooLarge as error:
            raise ValueError("the order cannot be read") from error

    async def handle_all(messages: list[ReceivedMessage]) -> None:
        for message in messages:
            await handle(message)

    if kind == "batch":
        consumer.on_batch(handle_all)
    else:
        consumer.on_message(handle)
    async with consumer, Admin(namesrv=place.namesrv, max_body_size=LIMIT) as admin:
        await until(lambda: b"third" in got)
        letters = await eventually(lambda: admin.dead_letters(consumer.group))
        resent = await admin.resend_dead_letters(consumer.group)

    (letter,) = letters
    assert got[0] == b"first"
    assert letter.sys_flag & SysFlag.COMPRESSED
    with pytest.raises(BodyTooLarge, match=f"message {letter.message_id} of topic '{topic}' .* {LIMIT} bytes"):
        _ = letter.body
    assert resent == 0
