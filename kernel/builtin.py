"""The plugins that come with VernierMQ, by name: where each lives and what goes missing without it.

Only names here, no imports: a plugin's module is loaded when it is active and not before. ``requests``, ``properties``
and ``expressions`` let the kernel answer "needs the plugin X" where a plugin that is not active would have acted.
"""

from __future__ import annotations

from typing import Final

import attrs

from verniermq.kernel.codes import RequestCode as R
from verniermq.kernel.message import Property


@attrs.frozen
class Builtin:
    name: str
    target: str
    """``module:attribute``"""
    requests: tuple[R, ...] = ()
    """Served by this plugin alone."""
    properties: tuple[str, ...] = ()
    """A message that carries one of them needs this plugin."""
    expressions: tuple[str, ...] = ()
    """The types of subscription that it understands."""
    in_clients: bool = False
    """It acts in producers and consumers, not in a broker."""
    on_request: bool = False
    """``"default"`` does not stand for it; ``enable`` has to name it."""


BUILTIN: Final[dict[str, Builtin]] = {
    builtin.name: builtin
    for builtin in (
        Builtin("namesrv", "verniermq.plugins.namesrv:Plugin"),
        Builtin("filter", "verniermq.plugins.filter.tag:Plugin", expressions=("TAG",)),
        Builtin("sql", "verniermq.plugins.filter.sql:Plugin", expressions=("SQL92",)),
        Builtin(
            "txn",
            "verniermq.plugins.txn:Plugin",
            requests=(R.END_TRANSACTION, R.RESUME_CHECK_HALF_MESSAGE),
            properties=(Property.TRANSACTION_PREPARED,),
        ),
        Builtin(
            "reply", "verniermq.plugins.reply:Plugin", requests=(R.SEND_REPLY_MESSAGE, R.SEND_REPLY_MESSAGE_V2)
        ),
        Builtin(
            "pop",
            "verniermq.plugins.pop:Plugin",
            requests=(
                R.POP_MESSAGE, R.ACK_MESSAGE, R.BATCH_ACK_MESSAGE, R.CHANGE_MESSAGE_INVISIBLETIME, R.PEEK_MESSAGE,
                R.NOTIFICATION, R.POLLING_INFO, R.QUERY_ASSIGNMENT, R.SET_MESSAGE_REQUEST_MODE,
                R.GET_ALL_MESSAGE_REQUEST_MODE,
            ),
        ),
        Builtin(
            "schedule",
            "verniermq.plugins.schedule:Plugin",
            requests=(R.GET_ALL_DELAY_OFFSET, R.RECALL_MESSAGE),
            properties=(
                Property.DELAY,
                Property.TIMER_DELAY_SEC,
                Property.TIMER_DELAY_MS,
                Property.TIMER_DELIVER_MS,
            ),
        ),
        Builtin("retry", "verniermq.plugins.retry:Plugin", requests=(R.CONSUMER_SEND_MSG_BACK,)),
        Builtin(
            "admin",
            "verniermq.plugins.admin:Plugin",
            requests=(
                R.GET_BROKER_RUNTIME_INFO, R.VIEW_BROKER_STATS_DATA, R.GET_BROKER_CONFIG, R.UPDATE_BROKER_CONFIG,
                R.GET_BROKER_HA_STATUS, R.CLEAN_UNUSED_TOPIC, R.GET_TOPIC_STATS_INFO, R.GET_CONSUME_STATS,
                R.GET_BROKER_CONSUME_STATS, R.QUERY_CONSUME_TIME_SPAN, R.GET_ALL_CONSUMER_OFFSET,
                R.GET_CONSUMER_CONNECTION_LIST, R.GET_PRODUCER_CONNECTION_LIST, R.GET_ALL_PRODUCER_INFO,
                R.QUERY_TOPIC_CONSUME_BY_WHO, R.QUERY_TOPICS_BY_CONSUMER, R.QUERY_SUBSCRIPTION_BY_CONSUMER,
                R.GET_CONSUMER_RUNNING_INFO, R.CONSUME_MESSAGE_DIRECTLY, R.INVOKE_BROKER_TO_RESET_OFFSET,
                R.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, R.CLONE_GROUP_OFFSET,
            ),
        ),
        Builtin(
            "retention",
            "verniermq.plugins.retention:Plugin",
            requests=(R.DELETE_EXPIRED_COMMITLOG, R.CLEAN_EXPIRED_CONSUMEQUEUE),
        ),
        Builtin("query", "verniermq.plugins.query:Plugin", requests=(R.QUERY_MESSAGE, R.VIEW_MESSAGE_BY_ID)),
        Builtin("order", "verniermq.plugins.order:Plugin", requests=(R.LOCK_BATCH_MQ, R.UNLOCK_BATCH_MQ)),
        Builtin("flow", "verniermq.plugins.flow:Plugin", requests=(R.GET_FLOW_FIGURES,)),
        Builtin("allocate", "verniermq.plugins.allocate:Plugin", in_clients=True),
        Builtin("fault", "verniermq.plugins.fault:Plugin", in_clients=True),
        Builtin("acl", "verniermq.plugins.acl:Plugin", on_request=True),
        Builtin("enrich", "verniermq.plugins.sendhooks.enrich:Plugin", on_request=True),
        Builtin("audit", "verniermq.plugins.sendhooks.audit:Plugin", on_request=True),
        Builtin("trace", "verniermq.plugins.sendhooks.trace:Plugin", on_request=True),
        Builtin("spark", "verniermq.contrib.spark.plugin:Plugin", on_request=True),
    )
}

DEFAULT_BROKER_PLUGINS: Final = tuple(
    name for name, builtin in BUILTIN.items() if not builtin.in_clients and not builtin.on_request
)
