"""The requests about users and rights: RocketMQ 5's, and those of RocketMQ 4 on the same table.

All are for administrators, as a request is that says nothing else. What the bodies hold, passwords among it, is read by
the handlers alone.
"""

from __future__ import annotations

from typing import Final

from verniermq.kernel import RequestCode
from verniermq.kernel.requests import Request, boolean, request, text


@request
class OfUser(Request):
    code = RequestCode.AUTH_GET_USER
    name: str = text("username")


@request
class ListUsers(Request):
    code = RequestCode.AUTH_LIST_USER
    filter: str = text("filter", default="")


@request
class OfSubject(Request):
    """Rights of somebody: ``User:`` and a name."""

    code = RequestCode.AUTH_GET_ACL
    subject: str = text("subject")


@request
class DeleteAcl(OfSubject):
    code = RequestCode.AUTH_DELETE_ACL
    policy_type: str = text("policyType", default="")
    resource: str = text("resource", default="")


@request
class ListAcls(Request):
    code = RequestCode.AUTH_LIST_ACL
    subject_filter: str = text("subjectFilter", default="")
    resource_filter: str = text("resourceFilter", default="")


@request
class OfAccount(Request):
    code = RequestCode.DELETE_ACL_CONFIG
    access_key: str = text("accessKey")


@request
class UpdateAccount(OfAccount):
    code = RequestCode.UPDATE_AND_CREATE_ACL_CONFIG
    secret_key: str = text("secretKey", default="")
    admin: bool = boolean("admin", default=False)
    white_addresses: str = text("whiteRemoteAddress", default="")
    topic_permissions: str = text("topicPerms", default="")
    """``orders=PUB|SUB,logs=SUB``"""
    group_permissions: str = text("groupPerms", default="")
    default_topic_permission: str = text("defaultTopicPerm", default="")
    default_group_permission: str = text("defaultGroupPerm", default="")

    def __repr__(self) -> str:
        return f"UpdateAccount(access_key={self.access_key!r})"  # the secret stays out of messages


CLASSES: Final[dict[int, type[Request]]] = {
    RequestCode.AUTH_CREATE_USER: OfUser,
    RequestCode.AUTH_UPDATE_USER: OfUser,
    RequestCode.AUTH_DELETE_USER: OfUser,
    RequestCode.AUTH_GET_USER: OfUser,
    RequestCode.AUTH_LIST_USER: ListUsers,
    RequestCode.AUTH_CREATE_ACL: OfSubject,
    RequestCode.AUTH_UPDATE_ACL: OfSubject,
    RequestCode.AUTH_DELETE_ACL: DeleteAcl,
    RequestCode.AUTH_GET_ACL: OfSubject,
    RequestCode.AUTH_LIST_ACL: ListAcls,
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: UpdateAccount,
    RequestCode.DELETE_ACL_CONFIG: OfAccount,
}
"""Which class a code has; the others have no fields."""
