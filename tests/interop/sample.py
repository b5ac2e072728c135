"""Message number *i* as every driver makes it, from Python; the README's table is the contract."""

from __future__ import annotations

from verniermq.client import Message


def body(index: int) -> bytes:
    size = 5000 + index % 1000 if index % 10 == 0 else 64 + index % 200
    unit = b"message %d;" % index
    return (unit * (size // len(unit) + 1))[:size]


def message(topic: str, index: int) -> Message:
    return Message(
        topic,
        body(index),
        tags=("TagA", "TagB", "TagC")[index % 3],
        keys=[f"key-{index}"],
        properties={"index": str(index), "text": f"Grüße 消息 🚀 №{index}"},
    )
