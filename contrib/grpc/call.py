"""What comes with a call beside its message: who calls, from where, on whose behalf.

A client says it in the metadata of each call (``x-mq-client-id`` and others). With credentials it signs the text of
``x-mq-date-time`` alone, neither the message nor the name of the call: whoever reads along can call in its name, so
that access control over plain connections protects from mistakes only. The time is the client's local one with a "Z"
behind it, so that its age says nothing and is not looked at.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import attrs

from verniermq.contrib.grpc.enums import Code
from verniermq.contrib.grpc.status import CallFailed
from verniermq.kernel import (
    BadName,
    Command,
    check_group_name,
    check_topic_name,
    is_system_topic,
    request_name,
)
from verniermq.kernel.requests import ACCESS_KEY, PUB, Access, Caller, topic_access

SCHEME: Final = "MQv2-HMAC-SHA1"
SIGNATURE: Final = "GrpcSignature"
SIGNED_TEXT: Final = "GrpcDateTime"
"""Fields of our own with which a request inside the process carries what its call was signed with."""

LONGEST_CLIENT_ID: Final = 255
SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"


@attrs.frozen
class Call:
    """One call."""

    client_id: str
    peer: tuple[str, int]
    """The client's address, as the operating system knows it."""
    namespace: str = ""
    language: str = ""
    version: str = ""
    access_key: str = ""
    signature: str = ""
    signed_text: str = ""

    @classmethod
    def of(cls, fields: Mapping[str, str], peer: tuple[str, int]) -> Call:
        """
        Raises:
            CallFailed: it does not say who calls.
        """
        client_id = fields.get("x-mq-client-id", "")
        if not client_id:
            raise CallFailed(Code.CLIENT_ID_REQUIRED, "the call has no metadata x-mq-client-id")
        if len(client_id) > LONGEST_CLIENT_ID:
            raise CallFailed(Code.BAD_REQUEST, f"x-mq-client-id has more than {LONGEST_CLIENT_ID} characters")
        key, signature = _credentials(fields.get("authorization", ""))
        return cls(
            client_id,
            peer,
            fields.get("x-mq-namespace", ""),
            fields.get("x-mq-language", ""),
            fields.get("x-mq-client-version", ""),
            key,
            signature,
            fields.get("x-mq-date-time", ""),
        )

    def sign(self, command: Command) -> Command:
        """Have a request inside the process carry what the call was signed with."""
        if self.access_key:
            command.ext[ACCESS_KEY] = self.access_key
            command.ext[SIGNATURE] = self.signature
            command.ext[SIGNED_TEXT] = self.signed_text
        return command

    # --- names -----------------------------------------------------------------------------

    def topic(self, resource: Any) -> str:
        """The broker's name of a topic.

        Raises:
            CallFailed: no topic can be called so.
        """
        name = self._name(resource)
        try:
            check_topic_name(name)
        except BadName as error:
            raise CallFailed(Code.ILLEGAL_TOPIC, str(error)) from None
        if is_system_topic(name):
            raise CallFailed(Code.ILLEGAL_TOPIC, f"topic {name!r} is the broker's own")
        return name

    def group(self, resource: Any) -> str:
        """The broker's name of a consumer group.

        Raises:
            CallFailed: no group can be called so.
        """
        name = self._name(resource)
        try:
            check_group_name(name)
        except BadName as error:
            raise CallFailed(Code.ILLEGAL_CONSUMER_GROUP, str(error)) from None
        if name.startswith(SYSTEM_GROUP_PREFIX):
            raise CallFailed(Code.ILLEGAL_CONSUMER_GROUP, f"group {name!r} is the broker's own")
        return name

    def _name(self, resource: Any) -> str:
        namespace = resource.resource_namespace or self.namespace
        return f"{namespace}%{resource.name}" if namespace and resource.name else str(resource.name)


def _credentials(authorization: str) -> tuple[str, str]:
    """Access key and signature; two empty texts for one that is not signed.

    A client of Python without credentials signs with an empty key, one of Go writes ``key//Rocketmq``.
    """
    scheme, _, rest = authorization.partition(" ")
    if scheme != SCHEME:
        return "", ""
    pairs = dict(part.strip().partition("=")[::2] for part in rest.split(","))
    key = pairs.get("Credential", "").partition("/")[0]
    return (key, pairs.get("Signature", "")) if key else ("", "")


def is_signed_with(secret: bytes, text: str, signature: str) -> bool:
    """Compared in constant time."""
    if not text:
        return False
    expected = hmac.digest(secret, text.encode(), "sha1").hex()
    return hmac.compare_digest(expected.encode(), signature.lower().encode())


@attrs.frozen
class ClientIdentity:
    """Who makes the requests that calls of one client become."""

    host: str

    def caller(self, request: Command) -> Caller:
        ext = request.ext
        return Caller(
            address=self.host,
            request=request_name(request.code),
            access_key=ext.get(ACCESS_KEY, ""),
            is_signed_with=partial(
                is_signed_with, text=ext.get(SIGNED_TEXT, ""), signature=ext.get(SIGNATURE, "")
            ),
        )  # fmt: skip

    def wanted(self, access: Access) -> Access:
        """A producer of this protocol is in no group: it is one of its topic's, and needs the right to send there."""
        return topic_access(access.name, PUB) if access.kind == "group" and access.actions == PUB else access


@attrs.frozen
class OwnIdentity:
    """The server's own requests: it renews what it handed out, and looks things up."""

    def caller(self, request: Command) -> None:
        return None

    def wanted(self, access: Access) -> Access:
        return access
