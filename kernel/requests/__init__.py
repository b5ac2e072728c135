"""The kinds of requests that the kernel serves, a class each; read ``request`` first.

Those that plugins serve and clients send are in ``verniermq.protocol``.
"""

from verniermq.kernel.remoting.signature import ACCESS_KEY
from verniermq.kernel.requests.access import (
    CREATE,
    DELETE,
    EITHER,
    GET,
    LIST,
    PUB,
    SUB,
    UPDATE,
    Access,
    Action,
    Caller,
    Finder,
    Identity,
    cluster_access,
    group_access,
    topic_access,
)
from verniermq.kernel.requests.body import check_json_size, json_object, objects
from verniermq.kernel.requests.clients import (
    CheckClientConfig,
    GetConsumerList,
    Heartbeat,
    NotifyConsumersChanged,
    UnregisterClient,
)
from verniermq.kernel.requests.consume import (
    GetEarliestStoreTime,
    GetMaxOffset,
    GetMinOffset,
    PullMessage,
    QueryConsumerOffset,
    SearchOffset,
    UpdateConsumerOffset,
)
from verniermq.kernel.requests.request import Request, Undeclared, boolean, in_body, integer, request, text
from verniermq.kernel.requests.send import SHORT_NAMES, SendMessage, producer_of

__all__ = [
    "ACCESS_KEY",
    "CREATE",
    "DELETE",
    "EITHER",
    "GET",
    "LIST",
    "PUB",
    "SHORT_NAMES",
    "SUB",
    "UPDATE",
    "Access",
    "Action",
    "Caller",
    "CheckClientConfig",
    "Finder",
    "GetConsumerList",
    "GetEarliestStoreTime",
    "GetMaxOffset",
    "GetMinOffset",
    "Heartbeat",
    "Identity",
    "NotifyConsumersChanged",
    "PullMessage",
    "QueryConsumerOffset",
    "Request",
    "SearchOffset",
    "SendMessage",
    "Undeclared",
    "UnregisterClient",
    "UpdateConsumerOffset",
    "boolean",
    "check_json_size",
    "cluster_access",
    "group_access",
    "in_body",
    "integer",
    "json_object",
    "objects",
    "producer_of",
    "request",
    "text",
    "topic_access",
]  # fmt: skip
