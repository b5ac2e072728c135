"""How a call ends: a code and a text inside its answer, while gRPC's own status stays OK.

What a broker answers to a request becomes one of these; where Apache's proxy answers with an internal error that makes
clients try for ever (a handle that cannot be read, an acknowledgement of nothing), the code says what is wrong.
"""

from __future__ import annotations

from typing import Any, Final

from verniermq.contrib.grpc.enums import Code
from verniermq.contrib.grpc.schema import proto
from verniermq.kernel import Command, ResponseCode, VernierMQError, request_name

LONGEST_TEXT: Final = 1000
"""Characters of a text that a client gets to see."""

CODES: Final = {
    ResponseCode.SYSTEM_BUSY: Code.TOO_MANY_REQUESTS,
    ResponseCode.FLOW_CONTROL: Code.TOO_MANY_REQUESTS,
    ResponseCode.POLLING_FULL: Code.TOO_MANY_REQUESTS,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: Code.NOT_IMPLEMENTED,
    ResponseCode.FLUSH_DISK_TIMEOUT: Code.MASTER_PERSISTENCE_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: Code.SLAVE_PERSISTENCE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: Code.HA_NOT_AVAILABLE,
    ResponseCode.MESSAGE_ILLEGAL: Code.BAD_REQUEST,
    ResponseCode.INVALID_PARAMETER: Code.BAD_REQUEST,
    ResponseCode.ILLEGAL_OPERATION: Code.BAD_REQUEST,
    ResponseCode.NO_PERMISSION: Code.UNAUTHORIZED,
    ResponseCode.TOPIC_NOT_EXIST: Code.TOPIC_NOT_FOUND,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: Code.CONSUMER_GROUP_NOT_FOUND,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: Code.ILLEGAL_FILTER_EXPRESSION,
    ResponseCode.POLLING_TIMEOUT: Code.MESSAGE_NOT_FOUND,
    ResponseCode.PULL_NOT_FOUND: Code.MESSAGE_NOT_FOUND,
}
"""A broker's answer → what a client is told. A topic's own permission is looked at before a request is made, so that
NO_PERMISSION comes from access control alone. All others are internal errors."""

STORED: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
    }
)
"""Answers to a send that mean that the message is in the log."""


class CallFailed(VernierMQError):
    """A call cannot be served; the client gets to see code and text."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code = code

    @property
    def status(self) -> Any:
        return status(self.code, str(self))


def status(code: Code, text: str = "OK") -> Any:
    # A text may hold what UTF-8 cannot, from a file name: it must not fail here.
    return proto.Status(code=code, message=text[:LONGEST_TEXT].encode("utf-8", "replace").decode())


def code_of(answer: Command) -> Code:
    if answer.code == ResponseCode.SUCCESS:
        return Code.OK
    known = ResponseCode._value2member_map_
    return CODES.get(ResponseCode(answer.code), Code.INTERNAL_SERVER_ERROR) if answer.code in known else (
        Code.INTERNAL_SERVER_ERROR
    )  # fmt: skip


def checked(answer: Command, request: int) -> Command:
    """
    Raises:
        CallFailed: the broker refused it.
    """
    if answer.code != ResponseCode.SUCCESS:
        raise CallFailed(code_of(answer), answer.remark or f"{request_name(request)} was answered with {answer.code}")
    return answer


def common(codes: list[Code]) -> Any:
    """The status of several results together."""
    if len(set(codes)) == 1:
        return status(codes[0], codes[0].name)
    return status(Code.MULTIPLE_RESULTS, "the results differ; each entry has its own status")
