"""The requests that create, change, show and delete consumer groups: an operator's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import orjson

from verniermq.kernel import RequestCode
from verniermq.kernel.requests import (
    CREATE,
    DELETE,
    GET,
    LIST,
    Access,
    Finder,
    Request,
    boolean,
    cluster_access,
    group_access,
    in_body,
    integer,
    json_object,
    objects,
    request,
    text,
)


@request
class UpdateGroup(Request):
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    config: dict[str, Any] = in_body()

    def take_body(self, body: bytes) -> None:
        self.config = json_object(body)

    def body(self) -> bytes:
        return orjson.dumps(self.config)

    def touches(self, finder: Finder) -> Iterator[Access]:
        yield group_access(str(self.config.get("groupName") or ""), CREATE)


@request
class UpdateGroupList(Request):
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
    groups: list[dict[str, Any]] = in_body()

    def take_body(self, body: bytes) -> None:
        self.groups = objects(json_object(body), "groupConfigList")

    def body(self) -> bytes:
        return orjson.dumps({"groupConfigList": self.groups})

    def touches(self, finder: Finder) -> Iterator[Access]:
        for group in self.groups:
            yield group_access(str(group.get("groupName") or ""), CREATE)


@request
class DeleteGroup(Request):
    code = RequestCode.DELETE_SUBSCRIPTIONGROUP
    group: str = text("groupName")
    clean_offset: bool = boolean("cleanOffset", default=False)

    def touches(self, finder: Finder) -> Iterator[Access]:
        yield group_access(self.group, DELETE)


@request
class GetGroupConfig(Request):
    code = RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG
    group: str = text("group")

    def touches(self, finder: Finder) -> Iterator[Access]:
        yield group_access(self.group, GET)


@request
class GetAllGroupConfig(Request):
    code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
    TOTAL: ClassVar = "totalGroupNum"
    """The field of an answer that says how many there are."""
    first: int | None = integer("groupSeq", default=None)
    """From this group on, where a broker answers in pages."""
    count: int | None = integer("maxGroupNum", default=None)

    def touches(self, finder: Finder) -> Iterator[Access]:
        yield cluster_access(LIST)
