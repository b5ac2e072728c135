"""Access control: who may send and read what (RocketMQ: its ACL of 4.x, with ``plain_acl.yml``).

Every request of a client carries an access key and a signature; a broker with this plugin serves it when the signature
is right and the account may do what the request does. Read in this order: ``signature`` (who asks), ``accounts`` (what
they may do), ``needs`` (what a request takes).

The plugin is not among the default ones. A broker without it never looks.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from typing import ClassVar, Final

import attrs

from verniermq.kernel import Command, Connection, Declaration, NoPermission, hookimpl, request_name, setting
from verniermq.plugins.acl.accounts import Account, Member, any_of, are_addresses
from verniermq.plugins.acl.needs import FINDERS, Need
from verniermq.plugins.acl.signature import ACCESS_KEY, is_signed_with

NOBODY: Final = secrets.token_bytes(20)
"""What requests of unknown accounts are checked with, so that they take as long as those of known ones."""


@attrs.frozen
class Config:
    """``[plugins.acl]``"""

    whitelist: tuple[str, ...] = setting((), "Addresses that may do everything without signing.", check=are_addresses)
    accounts: dict[str, Account] = setting({}, "The accounts: [plugins.acl.accounts.<access key>].")


@attrs.define(eq=False)
class Plugin:
    declaration: ClassVar = Declaration(
        api=1,
        config=Config,
        summary="Lets only signed requests pass, and only those that their account may make.",
        before=("flow",),
        # A check that stumbles must not be a way in, however often.
        on_failure="closed",
        when_it_keeps_failing="stop",
    )
    config: Config
    _trusts: Callable[[str], bool] = attrs.field(init=False)
    _members: dict[str, Member] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.settings_changed(self.config)

    @hookimpl
    def settings_changed(self, settings: Config) -> None:
        self.config = settings
        self._trusts = any_of(settings.whitelist)
        self._members = {key: Member(key, account) for key, account in settings.accounts.items()}

    @hookimpl
    def before_request(self, request: Command, connection: Connection) -> None:
        address = connection.peer_address.rpartition(":")[0].strip("[]")
        if self._trusts(address):
            return
        member = self._identified(request, connection, address)
        if member.is_admin:
            return
        finder = FINDERS.get(request.code)
        if finder is None:
            raise NoPermission(
                f"{request_name(request.code)} takes an administrator, and account {member.key!r} is none; "
                f"use another account, or set admin = true in [plugins.acl.accounts.{member.key}]"
            )
        self._ensure(member, finder(request))

    def _identified(self, request: Command, connection: Connection, address: str) -> Member:
        key = request.ext.get(ACCESS_KEY)
        if not key:
            raise NoPermission(
                f"{request_name(request.code)} from {connection.peer_address} is not signed; give the client its "
                f"access key and secret, or put {address} into whitelist in [plugins.acl]"
            )
        member = self._members.get(key)
        if member is not None and member.trusts(address):
            return member
        signed = is_signed_with(member.secret if member is not None else NOBODY, request)
        if member is None:
            raise NoPermission(
                f"access key {key!r:.80} is not known here; check its spelling, or add it to [plugins.acl.accounts]"
            )
        if not signed:
            raise NoPermission(
                f"the signature of access key {key!r} is wrong; check the client's secret key, and that nothing "
                "between client and broker changes requests"
            )
        return member

    @staticmethod
    def _ensure(member: Member, needs: Iterable[Need]) -> None:
        for need in needs:
            if not member.rights[need.kind].of(need.name) & need.rights:
                right = " or ".join(sorted(need.rights))
                raise NoPermission(
                    f"account {member.key!r} may not {right} with {need.kind} {need.name!r:.140}; allow it under "
                    f"{need.kind}s in [plugins.acl.accounts.{member.key}]"
                )
