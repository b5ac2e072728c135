"""Users and rights by request: created, changed, deleted, shown (RocketMQ: AUTH_*, and ACL requests of 4.x).

Only administrators may: accounts of ``broker.toml`` with ``admin = true``, users of type ``Super``, trusted addresses.
Whatever changes is on the disk before it is answered, takes effect at once, and is logged with who did it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from verniermq.kernel import (
    Command,
    Connection,
    Context,
    Document,
    Handler,
    InvalidParameter,
    RequestCode,
    RequestRefused,
    ResponseCode,
    parse_fastjson,
    request_name,
)
from verniermq.kernel.requests import EITHER
from verniermq.plugins.acl.accounts import PERMISSIONS, Account
from verniermq.plugins.acl.policies import ALLOW, CUSTOM, DEFAULT, DENY, Policies, Resource
from verniermq.plugins.acl.requests import DeleteAcl, ListAcls, ListUsers, OfAccount, OfSubject, OfUser, UpdateAccount
from verniermq.plugins.acl.users import NORMAL, SUPER, UserTable

logger = logging.getLogger(__name__)

IN_FILE: Final = "broker.toml"
"""Where a user or a right says that it is from there: it cannot be changed by request."""
SUBJECT: Final = "User:"


REQUESTS: Final = (
    RequestCode.AUTH_CREATE_USER,
    RequestCode.AUTH_UPDATE_USER,
    RequestCode.AUTH_DELETE_USER,
    RequestCode.AUTH_GET_USER,
    RequestCode.AUTH_LIST_USER,
    RequestCode.AUTH_CREATE_ACL,
    RequestCode.AUTH_UPDATE_ACL,
    RequestCode.AUTH_DELETE_ACL,
    RequestCode.AUTH_GET_ACL,
    RequestCode.AUTH_LIST_ACL,
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG,
    RequestCode.DELETE_ACL_CONFIG,
    RequestCode.GET_BROKER_CLUSTER_ACL_INFO,
    RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
    RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG,
)


class AuthHandlers:
    """``accounts`` are those of ``broker.toml``; ``is_admin`` says whether a request comes from an administrator."""

    def __init__(
        self,
        broker: Context,
        users: UserTable,
        accounts: Callable[[], Mapping[str, Account]],
        is_admin: Callable[[Command, Connection], bool],
    ) -> None:
        self._broker = broker
        self._users = users
        self._accounts = accounts
        self._is_admin = is_admin
        self.document: Document
        """The file that the users are kept in."""

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.AUTH_CREATE_USER: self.create_user,
            RequestCode.AUTH_UPDATE_USER: self.update_user,
            RequestCode.AUTH_DELETE_USER: self.delete_user,
            RequestCode.AUTH_GET_USER: self.get_user,
            RequestCode.AUTH_LIST_USER: self.list_users,
            RequestCode.AUTH_CREATE_ACL: self.set_acl,
            RequestCode.AUTH_UPDATE_ACL: self.set_acl,
            RequestCode.AUTH_DELETE_ACL: self.delete_acl,
            RequestCode.AUTH_GET_ACL: self.get_acl,
            RequestCode.AUTH_LIST_ACL: self.list_acls,
            RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: self.update_account,
            RequestCode.DELETE_ACL_CONFIG: self.delete_account,
            RequestCode.GET_BROKER_CLUSTER_ACL_INFO: self.account_version,
            RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: self.update_whitelist,
            RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG: self.all_accounts,
        }

    # --- users -----------------------------------------------------------------------------

    async def create_user(self, request: Command, connection: Connection) -> Command:
        name = self._changeable(request, connection, OfUser.of(request).name)
        self._users.create(name, _body(request))
        return await self._done(request, connection, f"created user {name}")

    async def update_user(self, request: Command, connection: Connection) -> Command:
        name = self._changeable(request, connection, OfUser.of(request).name)
        self._users.update(name, _body(request))
        return await self._done(request, connection, f"changed user {name}")

    async def delete_user(self, request: Command, connection: Connection) -> Command:
        name = self._changeable(request, connection, OfUser.of(request).name)
        self._users.delete(name)
        return await self._done(request, connection, f"deleted user {name}")

    def get_user(self, request: Command, connection: Connection) -> Command:
        self._ensure_admin(request, connection)
        name = OfUser.of(request).name
        account, user = self._accounts().get(name), self._users.find(name)
        if account is not None:
            return _answer(request, _account_as_user(name, account))
        return request.reply() if user is None else _answer(request, user.as_json())

    def list_users(self, request: Command, connection: Connection) -> Command:
        self._ensure_admin(request, connection)
        text = ListUsers.of(request).filter
        accounts = self._accounts()
        listed = [_account_as_user(name, account) for name, account in sorted(accounts.items()) if text in name]
        listed += [user.as_json() for user in self._users.listed(text) if user.name not in accounts]
        return _answer(request, listed) if listed else request.reply()

    # --- rights ----------------------------------------------------------------------------

    async def set_acl(self, request: Command, connection: Connection) -> Command:
        name = self._changeable(request, connection, _user_of(OfSubject.of(request).subject))
        self._users.set_policies(name, Policies.from_json(_body(request).get("policies")))
        return await self._done(request, connection, f"changed rights of {name}")

    async def delete_acl(self, request: Command, connection: Connection) -> Command:
        asked = DeleteAcl.of(request)
        name = self._changeable(request, connection, _user_of(asked.subject))
        kind, resource = asked.policy_type or CUSTOM, asked.resource
        if kind.lower() not in (CUSTOM.lower(), DEFAULT.lower()):
            raise InvalidParameter(f"policyType {kind!r:.80}; expected {CUSTOM} or {DEFAULT}")
        self._users.delete_policies(name, kind.capitalize(), Resource.parse(resource) if resource else None)
        return await self._done(request, connection, f"deleted rights of {name} to {resource or 'everything'}")

    def get_acl(self, request: Command, connection: Connection) -> Command:
        self._ensure_admin(request, connection)
        name = _user_of(OfSubject.of(request).subject)
        account = self._accounts().get(name)
        policies = _account_as_policies(account) if account is not None else self._users.get(name).policies.as_json()
        return _answer(request, {"policies": policies, "subject": SUBJECT + name}) if policies else request.reply()

    def list_acls(self, request: Command, connection: Connection) -> Command:
        self._ensure_admin(request, connection)
        asked = ListAcls.of(request)
        subjects, resources = asked.subject_filter, asked.resource_filter
        accounts = self._accounts()
        found = {name: _account_as_policies(account, resources) for name, account in accounts.items()}
        found |= {u.name: u.policies.as_json(resources) for u in self._users.listed() if u.name not in accounts}
        listed = [
            {"policies": policies, "subject": SUBJECT + name}
            for name, policies in sorted(found.items())
            if policies and subjects in SUBJECT + name
        ]
        return _answer(request, listed) if listed else request.reply()

    # --- RocketMQ 4's requests, on the same table ------------------------------------------

    async def update_account(self, request: Command, connection: Connection) -> Command:
        asked = UpdateAccount.of(request)
        name = self._changeable(request, connection, asked.access_key)
        if asked.white_addresses:
            raise InvalidParameter(f"account {name!r}: addresses that need not sign are set in broker.toml")
        given = _policies_of_account(asked)
        policies = Policies.from_json(given) if given else Policies()
        kind = SUPER if asked.admin else NORMAL
        data = {"password": asked.secret_key or None, "userType": kind}
        known = self._users.find(name)
        rights = (Policies() if known is None else known.policies).changed(policies)  # or refused, and nothing changes
        if known is None:
            self._users.create(name, data)
        else:
            self._users.update(name, data)
        self._users.set_policies(name, rights)
        return await self._done(request, connection, f"changed account {name}")

    async def delete_account(self, request: Command, connection: Connection) -> Command:
        name = self._changeable(request, connection, OfAccount.of(request).access_key)
        self._users.delete(name)
        return await self._done(request, connection, f"deleted account {name}")

    def account_version(self, request: Command, connection: Connection) -> Command:
        self._ensure_admin(request, connection)
        version = {"counter": self.document.changes, "stateVersion": 0, "timestamp": self._broker.clock.now_ms()}
        ext = {
            "brokerAddr": self._broker.address, "brokerName": self._broker.name, "clusterName": self._broker.cluster,
            "version": orjson.dumps(version).decode(), "allAclFileVersion": orjson.dumps({"acl": version}).decode(),
        }  # fmt: skip
        return request.reply(ext=ext)

    def update_whitelist(self, request: Command, connection: Connection) -> Command:
        self._ensure_admin(request, connection)
        raise RequestRefused(
            "addresses that need not sign are set by whitelist in [plugins.acl] of broker.toml, which is reloaded",
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        )

    def all_accounts(self, request: Command, connection: Connection) -> Command:
        self._ensure_admin(request, connection)
        accounts = self._accounts()
        listed = [{"accessKey": name, "admin": account.admin} for name, account in sorted(accounts.items())]
        listed += [
            {"accessKey": user.name, "admin": user.is_super}
            for user in self._users.listed()
            if user.name not in accounts
        ]
        return _answer(request, {"globalWhiteAddrs": [], "plainAccessConfigs": listed})

    # --- who may, and what stays of it -----------------------------------------------------

    def _ensure_admin(self, request: Command, connection: Connection) -> None:
        if not self._is_admin(request, connection):
            raise RequestRefused(
                f"{request_name(request.code)} takes an administrator: an account with admin = true in broker.toml, "
                "or a user of type Super",
                ResponseCode.NO_PERMISSION,
            )

    def _changeable(self, request: Command, connection: Connection, name: str) -> str:
        self._ensure_admin(request, connection)
        if name in self._accounts():
            raise InvalidParameter(f"account {name!r} is in broker.toml, which wins; change it there")
        return name

    async def _done(self, request: Command, connection: Connection, what: str) -> Command:
        self.document.touch()
        await self.document.saved()
        who = request.ext.get("AccessKey", "")
        logger.info("access control: %s by=%r peer=%s", what, who, connection.peer_address)
        return request.reply()


def _answer(request: Command, data: Any) -> Command:
    return request.reply(body=orjson.dumps(data))


def _body(request: Command) -> Mapping[str, Any]:
    try:
        body = parse_fastjson(request.body)
    except ValueError as error:
        raise InvalidParameter(f"the body is no JSON that can be used: {error}") from None
    if not isinstance(body, Mapping):
        raise InvalidParameter(f"the body is a JSON {type(body).__name__}, expected an object")
    return body


def _user_of(subject: str) -> str:
    kind, _, name = subject.partition(":")
    if kind.lower() != "user" or not name:
        raise InvalidParameter(f"subject {subject!r:.140}; expected User: and a name")
    return name


def _account_as_user(name: str, account: Account) -> dict[str, Any]:
    kind = SUPER if account.admin else NORMAL
    return {"userStatus": "enable", "userType": f"{kind} ({IN_FILE})", "username": name}


def _account_as_policies(account: Account, resource_filter: str = "") -> list[dict[str, Any]]:
    named = [*_rights("Topic", account.topics), *_rights("Group", account.groups)]
    others = [*_rights("Topic", {"*": account.default_topic}), *_rights("Group", {"*": account.default_group})]
    shown = [entry for entry in named + others if resource_filter in entry["resource"]]
    return [{"entries": shown, "policyType": IN_FILE}] if shown else []


def _rights(kind: str, table: Mapping[str, str]) -> list[dict[str, Any]]:
    """Permissions of 4.x as entries: ``orders=PUB`` allows it, ``orders=DENY`` denies both."""
    entries = []
    for name, permission in table.items():
        actions = sorted(PERMISSIONS[permission])
        entries.append(
            {
                "actions": [str(action) for action in actions or sorted(EITHER)],
                "decision": ALLOW if actions else DENY,
                "resource": f"{kind}:{name}",
                "sourceIps": [],
            }
        )
    return entries


def _policies_of_account(asked: UpdateAccount) -> list[dict[str, Any]]:
    """What a request of 4.x says: ``topicPerms`` is ``orders=PUB|SUB,logs=SUB``."""
    policies = []
    named = [
        *_rights("Topic", _permissions("topicPerms", asked.topic_permissions)),
        *_rights("Group", _permissions("groupPerms", asked.group_permissions)),
    ]
    others = []
    for kind, field, permission in (
        ("Topic", "defaultTopicPerm", asked.default_topic_permission),
        ("Group", "defaultGroupPerm", asked.default_group_permission),
    ):
        if permission:
            others += _rights(kind, {"*": _permission(field, permission)})
    for policy, entries in ((CUSTOM, named), (DEFAULT, others)):
        if entries:
            policies.append({"entries": entries, "policyType": policy})
    return policies


def _permissions(field: str, text: str) -> dict[str, str]:
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    return {name.strip(): _permission(field, permission.strip()) for name, _, permission in pairs}


def _permission(field: str, text: str) -> str:
    if text not in PERMISSIONS:
        raise InvalidParameter(f"{field}: {text!r:.80}; expected PUB, SUB, PUB|SUB or DENY")
    return text
