"""The names of properties that are RocketMQ's own: producers may not set them by hand, consumers do not see them."""

from __future__ import annotations

from typing import Final

from verniermq.kernel import Property

BORN_HOST: Final = "__BORNHOST"
BORN_TIMESTAMP: Final = "BORN_TIMESTAMP"
TRACE_CONTEXT: Final = "TRACE_CONTEXT"
PRIORITY: Final = "_SYS_MSG_PRIORITY_"
LITE_TOPIC: Final = "__LITE_TOPIC"
DEAD_LETTER_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
DEAD_LETTER_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"

RESERVED: Final = frozenset(
    {
        *(value for name, value in vars(Property).items() if name.isupper()),
        BORN_HOST, BORN_TIMESTAMP, TRACE_CONTEXT, PRIORITY, LITE_TOPIC, DEAD_LETTER_TOPIC, DEAD_LETTER_ID,
        "MIN_OFFSET", "MAX_OFFSET", "BUYER_ID", "TRANSFER_FLAG", "CORRECTION_FLAG", "MQ2_FLAG", "CONSUME_START_TIME",
        "POP_CK_OFFSET", "1ST_POP_TIME", "TRAN_PREPARED_QUEUE_OFFSET", "TRANSACTION_CHECK_TIMES", "DUP_INFO",
        "EXTEND_UNIQ_INFO", "ARRIVE_TIME", "PUSH_REPLY_TIME", "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET",
        "INNER_NUM", "INNER_BASE", "__CRC32#", "TRACE_SWITCH",
    }
)  # fmt: skip

TIMER_PREFIX: Final = "TIMER_"


def is_reserved(name: str) -> bool:
    return name in RESERVED or name.startswith(TIMER_PREFIX)
