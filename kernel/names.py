"""RocketMQ's own names: properties, topics and their prefixes, as they stand on the wire and in the files."""

from __future__ import annotations

from typing import Final


class Property:
    """The property names that mean something to RocketMQ (``MessageConst``), as they stand on the wire."""

    KEYS: Final = "KEYS"
    TAGS: Final = "TAGS"
    WAIT: Final = "WAIT"
    DELAY: Final = "DELAY"
    UNIQUE_KEY: Final = "UNIQ_KEY"
    PRODUCER_GROUP: Final = "PGROUP"
    TRANSACTION_PREPARED: Final = "TRAN_MSG"
    TRANSACTION_ID: Final = "__transactionId__"
    REAL_TOPIC: Final = "REAL_TOPIC"
    REAL_QUEUE_ID: Final = "REAL_QID"
    RETRY_TOPIC: Final = "RETRY_TOPIC"
    ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
    RECONSUME_TIME: Final = "RECONSUME_TIME"
    MAX_RECONSUME_TIMES: Final = "MAX_RECONSUME_TIMES"
    REGION: Final = "MSG_REGION"
    TRACE_SWITCH: Final = "TRACE_ON"
    CLUSTER: Final = "CLUSTER"
    SHARDING_KEY: Final = "__SHARDINGKEY"
    TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
    TIMER_DELAY_SEC: Final = "TIMER_DELAY_SEC"
    TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
    TIMER_OUT_MS: Final = "TIMER_OUT_MS"
    CHECK_IMMUNITY_TIME: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
    POP_CK: Final = "POP_CK"
    CORRELATION_ID: Final = "CORRELATION_ID"
    REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
    MESSAGE_TYPE: Final = "MSG_TYPE"
    TTL: Final = "TTL"
    PRIORITY: Final = "_SYS_MSG_PRIORITY_"
    INSTANCE_ID: Final = "INSTANCE_ID"


WISHES: Final = frozenset(
    {
        Property.TRANSACTION_PREPARED, Property.DELAY, Property.TIMER_DELAY_SEC, Property.TIMER_DELAY_MS,
        Property.TIMER_DELIVER_MS, Property.PRIORITY,
    }
)  # fmt: skip
"""A message with one of these asks its broker for more than to be stored; some plugin has to serve it."""

RETRY_PREFIX: Final = "%RETRY%"
"""Before the name of a group: the topic of the messages that it failed to consume."""
DEAD_LETTER_PREFIX: Final = "%DLQ%"
"""Before the name of a group: the topic of the messages that it has given up."""
SYSTEM_PREFIX: Final = "rmq_sys_"

AUTO_CREATE_TOPIC: Final = "TBW102"
"""The model of topics that are created by the first send."""
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
"""Where messages with a delay level wait."""
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
"""Where messages with a time of their own wait."""
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
"""Where messages of open transactions wait."""
OPERATION_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
"""Which transactions have ended."""
GIVEN_UP_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
"""Where messages go whose producer never said how their transaction ended."""
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
"""Where clients write what became of messages."""
OFFSET_MOVED_TOPIC: Final = "OFFSET_MOVED_EVENT"
"""Where a broker tells of consumers that asked for what was deleted."""

BROKERS_OWN_TOPICS: Final = frozenset(
    {SCHEDULE_TOPIC, HALF_TOPIC, OPERATION_TOPIC, GIVEN_UP_TOPIC, "SELF_TEST_TOPIC", OFFSET_MOVED_TOPIC}
)
"""Topics that RocketMQ's clients refuse to send to."""

SYSTEM_TOPICS: Final = BROKERS_OWN_TOPICS | {AUTO_CREATE_TOPIC, TRACE_TOPIC, "BenchmarkTest", "CHECKPOINT_TOPIC"}
"""Nobody creates, changes or deletes a topic of one of these names from outside."""


def is_system_topic(name: str) -> bool:
    """Whether a name is RocketMQ's own; a broker may have more, those of its plugins."""
    return name in SYSTEM_TOPICS or name.startswith(SYSTEM_PREFIX)
