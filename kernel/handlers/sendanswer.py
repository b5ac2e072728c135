"""The fields of the answers to sends."""

from __future__ import annotations

from typing import Final

REGION: Final = "DefaultRegion"


def send_fields(message_id: str, queue_id: int, queue_offset: int, unique_key: str) -> dict[str, str]:
    """The fields of the answer that a message is stored."""
    return {
        "msgId": message_id,
        "queueId": str(queue_id),
        "queueOffset": str(queue_offset),
        "transactionId": unique_key,
        "MSG_REGION": REGION,
        "TRACE_ON": "true",
    }


def batch_fields(message_ids: str, queue_id: int, queue_offset: int) -> dict[str, str]:
    """The fields of the answer to a batch; the ids have commas between them."""
    return {
        "msgId": message_ids,
        "queueId": str(queue_id),
        "queueOffset": str(queue_offset),
        "MSG_REGION": REGION,
        "TRACE_ON": "true",
    }
