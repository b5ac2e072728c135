"""Access control: who may send and read what (RocketMQ: its ACL of 4.x and 5.x).

Every request of a client carries an access key and a signature; a broker with this plugin serves it when the signature
is right and the account may do what the request does. Accounts stand in ``broker.toml``; users are made by request and
kept in a table, as RocketMQ 5 does it. What a request touches is said by its class; the signature is RocketMQ's own
(``kernel/remoting/signature.py``). Read in this order: ``accounts``, ``users`` and ``policies`` (what they may do),
``handlers`` (how users and their rights are made), ``clients`` (whose client id is whose).

The plugin is not among the default ones. A broker without it never looks.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable
from typing import ClassVar, Final

import attrs

from verniermq.kernel import (
    Command,
    Connection,
    Context,
    Declaration,
    NoPermission,
    Registry,
    RequestCode,
    hookimpl,
    request_name,
    setting,
)
from verniermq.kernel.requests import ACCESS_KEY, Access, Caller, Undeclared
from verniermq.plugins.acl.accounts import Account, Principal, any_of, are_addresses
from verniermq.plugins.acl.clients import ClientOwners
from verniermq.plugins.acl.handlers import REQUESTS, AuthHandlers
from verniermq.plugins.acl.requests import CLASSES
from verniermq.plugins.acl.users import UserPrincipal, UserTable

logger = logging.getLogger(__name__)

HEARTBEAT: Final = request_name(RequestCode.HEART_BEAT)
NOBODY: Final = secrets.token_bytes(20)
"""What requests of unknown accounts are checked with, so that they take as long as those of known ones."""


@attrs.frozen
class Config:
    """``[plugins.acl]``"""

    whitelist: tuple[str, ...] = setting((), "Addresses that may do everything without signing.", check=are_addresses)
    accounts: dict[str, Account] = setting({}, "The accounts: [plugins.acl.accounts.<access key>].")

    def notes(self) -> Iterable[str]:
        """What ``config check`` says beside that it is fine."""
        if not self.whitelist and not self.accounts:
            yield (
                "[plugins.acl] has neither accounts nor a whitelist: every request is refused, but those of users that "
                "an administrator has made; add [plugins.acl.accounts.NAME] with secret and admin = true"
            )


@attrs.define(eq=False)
class Plugin:
    declaration: ClassVar = Declaration(
        api=1,
        config=Config,
        summary="Lets only signed requests pass, and only those that their account may make.",
        before=("flow",),
        requests=REQUESTS,
        # A check that stumbles must not be a way in, however often.
        on_failure="closed",
        when_it_keeps_failing="stop",
    )
    config: Config
    broker: Context
    _trusts: Callable[[str], bool] = attrs.field(init=False)
    _members: dict[str, Principal] = attrs.field(init=False)
    _users: UserTable = attrs.field(factory=UserTable, init=False)
    _owners: ClientOwners = attrs.field(factory=ClientOwners, init=False)

    def __attrs_post_init__(self) -> None:
        self.settings_changed(self.config)

    def setup(self, registry: Registry) -> None:
        handlers = AuthHandlers(self.broker, self._users, lambda: self.config.accounts, self._is_admin)
        for code, handler in handlers.handlers().items():
            registry.handler(code, handler, CLASSES.get(code, Undeclared))
        registry.sends_pass(self._sends_pass)
        handlers.document = registry.table("acl", load=self._users.load_json, save=self._users.as_json, private=True)

    @hookimpl
    def store_opened(self) -> None:
        for note in self.config.notes() if not len(self._users) else ():
            logger.warning("%s", note)

    @hookimpl
    def settings_changed(self, settings: Config) -> None:
        self.config = settings
        self._trusts = any_of(settings.whitelist)
        self._members = {key: Principal(key, account) for key, account in settings.accounts.items()}

    @hookimpl
    def before_access(self, caller: Caller, wanted: Iterable[Access]) -> None:
        if self._trusts(caller.address):
            self._claim_ids(caller, f"of {caller.address}", wanted)
            return
        member = self._identified(caller)
        if member.is_admin:
            self._claim_ids(caller, member.key, wanted)
            return
        for kind, name, actions in wanted:
            if kind == "client":
                self._claim_id(name, member.key)
                continue
            if not member.decides_about(kind, actions):
                raise NoPermission(
                    f"{caller.request}{f' for {name!r:.140}' if name else ''} takes an administrator, and account "
                    f"{member.key!r} is none; use another account, or {member.how_to_administer}"
                )
            name = self.broker.cluster if kind == "cluster" else name
            why_not = member.refusal(kind, name, actions, caller.address)
            if why_not is not None:
                raise NoPermission(why_not)

    def _sends_pass(self, group: str, topic: str, connection: Connection) -> bool:
        """Who need not sign may send everything; a signature is of one request, and each has to be looked at."""
        return connection.identity is None and self._trusts(connection.peer_host.strip("[]"))

    def _claim_ids(self, caller: Caller, owner: str, wanted: Iterable[Access]) -> None:
        """Who may do everything has its client ids for itself too."""
        if caller.request != HEARTBEAT:
            return
        for kind, name, _ in wanted:
            if kind == "client":
                self._claim_id(name, owner)

    def _claim_id(self, client_id: str, owner: str) -> None:
        holder = self._owners.claim(client_id, owner, self.broker.clock.monotonic())
        if holder != owner:
            raise NoPermission(
                f"client id {client_id!r:.140} is in use by another account; give this client another instance name"
            )

    def _is_admin(self, request: Command, connection: Connection) -> bool:
        """Whether a request that was let pass comes from an administrator."""
        if self._trusts(connection.peer_host.strip("[]")):
            return True
        member = self._member(request.ext.get(ACCESS_KEY, ""))
        return member is not None and member.is_admin

    def _member(self, key: str) -> Principal | UserPrincipal | None:
        """Accounts in ``broker.toml`` go before users."""
        return self._members.get(key) or self._users.principal(key)

    def _identified(self, caller: Caller) -> Principal | UserPrincipal:
        key = caller.access_key
        if not key:
            raise NoPermission(
                f"{caller.request} from {caller.address} is not signed; give the client its access key and secret, or "
                f"put {caller.address} into whitelist in [plugins.acl]"
            )
        member = self._member(key)
        if member is not None and member.trusts(caller.address):
            return member
        signed = caller.is_signed_with(member.secret if member is not None else NOBODY)
        if member is None:
            raise NoPermission(
                f"access key {key!r:.80} is not known here, or disabled; check its spelling, or add it to "
                "[plugins.acl.accounts]"
            )
        if not signed:
            raise NoPermission(
                f"the signature of access key {key!r} is wrong; check the client's secret key, and that nothing "
                "between client and broker changes requests"
            )
        return member
