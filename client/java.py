"""Java's names, for whoever comes from RocketMQ's own client: what each is called here.

Nothing works by these names. They make an error say what to write instead, and ``docs/client/coming-from-java.md`` is
checked against them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NoReturn

from verniermq.kernel import nearest

OPTIONS: Final[Mapping[str, str]] = {
    "namesrvAddr": "namesrv='host:9876'",
    "instanceName": "instance=",
    "clientIP": "client_ip=",
    "accessChannel": "credentials=Credentials(access_key, secret_key)",
    "rpcHook": "credentials=Credentials(access_key, secret_key)",
    "useTLS": "tls=True",
    "heartbeatBrokerInterval": "heartbeat_interval=, in seconds",
    "pollNameServerInterval": "route_interval=, in seconds",
    "sendMsgTimeout": "send_timeout=, in seconds",
    "retryTimesWhenSendFailed": "retries=",
    "retryTimesWhenSendAsyncFailed": "async_retries=",
    "retryAnotherBrokerWhenNotStoreOK": "retry_another_broker_when_not_store_ok=",
    "compressMsgBodyOverHowmuch": "compress_over=",
    "maxMessageSize": "max_message_size=",
    "defaultTopicQueueNums": "default_queues=",
    "sendLatencyFaultEnable": "fault='latency'",
    "messageModel": "broadcasting=True for BROADCASTING; CLUSTERING is the default",
    "consumeFromWhere": "start='last', 'first' or a datetime",
    "consumeTimestamp": "start= with a datetime",
    "consumeThreadMin": "concurrency=, one number for both",
    "consumeThreadMax": "concurrency=, one number for both",
    "consumeMessageBatchMaxSize": "batch_size=, with on_batch",
    "pullBatchSize": "pull_batch=",
    "pullInterval": "pull_interval=, in seconds",
    "pullThresholdForQueue": "limits=Limits(messages=1000)",
    "pullThresholdSizeForQueue": "limits=Limits(bytes=100 * 1024 * 1024)",
    "consumeConcurrentlyMaxSpan": "limits=Limits(span=2000)",
    "maxReconsumeTimes": "max_reconsume_times=",
    "suspendCurrentQueueTimeMillis": "suspend=, in seconds",
    "consumeTimeout": "stuck_after=, in seconds",
    "allocateMessageQueueStrategy": "allocate='AVG', the name of a strategy",
    "offsetStore": "offset_folder=, for broadcasting=True",
    "autoCommit": "auto_commit=",
}
"""A property of Java's clients → the keyword argument of ours."""

CALLS: Final[Mapping[str, str]] = {
    "shutdown": "close(), or the end of 'async with'",
    "sendOneway": "send_oneway(message)",
    "sendMessageInTransaction": "send_in_transaction(message, local)",
    "setTransactionListener": "on_check(checker), and the local function goes to send_in_transaction",
    "setTransactionCheckListener": "on_check(checker)",
    "fetchPublishMessageQueues": "queues(topic)",
    "recallMessage": "recall(result)",
    "viewMessage": "Admin.message(message_id, topic)",
    "queryMessage": "Admin.messages_by_key(topic, key)",
    "createTopic": "Admin.create_topic(name, queues=…)",
    "searchOffset": "offset_at(queue, when)",
    "minOffset": "min_offset(queue)",
    "maxOffset": "max_offset(queue)",
    "registerMessageListener": "on_message(handler), or on_batch(handler) for lists",
    "setMessageListener": "on_message(handler), or on_batch(handler) for lists",
    "suspend": "pause()",
    "fetchSubscribeMessageQueues": "queues(topic)",
    "fetchMessageQueuesInBalance": "queues(topic)",
    "fetchMessageQueues": "queues(topic)",
    "fetchConsumeOffset": "committed(queue)",
    "updateConsumeOffset": "commit(queue, offset)",
    "pullBlockIfNotFound": "pull(queue, offset, wait=20)",
    "sendMessageBack": "raise in the handler, or return Later()",
    "commitSync": "commit()",
    "seekToBegin": "seek_to_begin(queue)",
    "seekToEnd": "seek_to_end(queue)",
    "offsetForTimestamp": "offset_at(queue, when)",
    "changeInvisibleDuration": "change_invisible(message, seconds)",
    "getMsgId": "message_id",
    "getOffsetMsgId": "offset_message_id",
    "getMessageQueue": "queue",
    "getSendStatus": "status",
    "getPullStatus": "status",
    "getMsgFoundList": "messages",
    "getNextBeginOffset": "next_offset",
    "getUserProperty": "properties.get(name)",
    "putUserProperty": "properties[name] = value, before it is sent",
    "getDelayTimeLevel": "delay_level",
    "getStoreHostString": "store_host",
    "getBornHostString": "born_host",
}
"""A method of Java's clients and messages → what does the same."""

CLASSES: Final[Mapping[str, str]] = {
    "DefaultMQProducer": "Producer",
    "TransactionMQProducer": "TransactionProducer",
    "DefaultMQPushConsumer": "PushConsumer",
    "DefaultMQPullConsumer": "PullConsumer",
    "DefaultLitePullConsumer": "LitePullConsumer",
    "DefaultMQAdminExt": "Admin",
    "AclClientRPCHook": "Credentials",
    "SessionCredentials": "Credentials",
    "MessageExt": "ReceivedMessage",
    "MessageSelector": "Sql",
    "LocalTransactionState": "TransactionState",
    "ConsumeConcurrentlyStatus": "Outcome",
    "ConsumeOrderlyStatus": "Outcome",
}
"""A class of Java's clients → the one that does the same."""

ANSWERS: Final[Mapping[str, str]] = {
    "CONSUME_SUCCESS": "return nothing, or Outcome.CONSUMED",
    "SUCCESS": "return nothing, or Outcome.CONSUMED",
    "RECONSUME_LATER": "raise an error, or return Outcome.LATER",
    "SUSPEND_CURRENT_QUEUE_A_MOMENT": "raise an error, or return Outcome.LATER",
    "COMMIT_MESSAGE": "return TransactionState.COMMIT",
    "ROLLBACK_MESSAGE": "return TransactionState.ROLLBACK",
    "UNKNOW": "return TransactionState.UNKNOWN",
}
"""What Java's listeners answer → what a handler, a checker or a local transaction answers here."""


def instead_of_option(name: str, known: Iterable[str]) -> str:
    """What to write instead of an option that there is not."""
    java = OPTIONS.get(_camel(name))
    return f"Java's {_camel(name)} is {java} here" if java is not None else nearest(name, sorted(known))


def instead_of_answer(answer: object) -> str:
    """The end of a sentence about an answer that means nothing; empty if it is not one of Java's."""
    name = answer if isinstance(answer, str) else getattr(answer, "name", "")
    return f" (Java's {name}: {ANSWERS[name]})" if name in ANSWERS else ""


def instead_of_call(what: str, name: str) -> str:
    """What to write instead of a method that there is not; empty if nothing is known."""
    if name in CALLS:
        return f"; Java's {name} is {CALLS[name]} here"
    if name.startswith("set") and (option := OPTIONS.get(name[3:4].lower() + name[4:])) is not None:
        return f"; Java's {name} is an argument here: {what}(…, {option})"
    if name.startswith("get") and name[3:4].isupper():
        return f"; write .{_snake(name[3:])} for Java's {name}()"
    return ""


def no_such_name(module: str, name: str) -> NoReturn:
    """The end of a look for a name that a module does not have, for its ``__getattr__``.

    Raises:
        ImportError: it is a class of Java's; ``from … import`` would put its own words in place of any other error.
        AttributeError: it is any other.
    """
    if name in CLASSES:
        raise ImportError(f"Java's {name} is {CLASSES[name]} here: from {module} import {CLASSES[name]}", name=module)
    raise AttributeError(f"module {module!r} has no attribute {name!r}")


class JavaNames:
    """A base that explains Java's method names when somebody calls them."""

    __slots__ = ()

    if not TYPE_CHECKING:  # or type checkers would take every name for one that is there

        def __getattr__(self, name: str) -> NoReturn:
            what = type(self).__name__
            hint = "" if name.startswith("_") else instead_of_call(what, name)
            raise AttributeError(f"{what!r} object has no attribute {name!r}{hint}", name=name, obj=self)


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in others) if others else name


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")


def shown(value: Any) -> str:
    """A wrong value for an error: short enough to read."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"
