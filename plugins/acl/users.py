"""The users that administrators make at run time, with their rights (RocketMQ: its ``auth`` module).

Kept in ``config/acl.json``, which only the owner of the broker's process can read: requests are signed with the
passwords, so the broker needs them as they are. They are never given out again. An account of the same name in
``broker.toml`` wins.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import attrs

from verniermq.kernel import InvalidParameter
from verniermq.kernel.requests import Action
from verniermq.plugins.acl.policies import ALLOW, CUSTOM, Policies, Resource

SUPER: Final = "Super"
NORMAL: Final = "Normal"
ENABLED: Final = "enable"
DISABLED: Final = "disable"
LONGEST_NAME: Final = 120
LONGEST_PASSWORD: Final = 1024
MOST_USERS: Final = 10_000
LONGEST_REMEMBERED: Final = 255
"""Characters of a name that is asked about; one that no topic and no group can have is not worth the memory."""


@attrs.frozen
class User:
    name: str
    password: str = attrs.field(repr=False)
    type: str = NORMAL
    status: str = ENABLED
    policies: Policies = attrs.field(factory=Policies, repr=False)

    @property
    def is_super(self) -> bool:
        return self.type == SUPER

    @property
    def is_enabled(self) -> bool:
        return self.status == ENABLED

    def as_json(self) -> dict[str, Any]:
        """What is told of it: not its password."""
        return {"userStatus": self.status, "userType": self.type, "username": self.name}

    def changed(self, data: Mapping[str, Any]) -> User:
        """With what somebody sent; what is missing stays.

        Raises:
            InvalidParameter: a member is wrong.
        """
        password, kind, status = (data.get(name) for name in ("password", "userType", "userStatus"))
        if password is not None and (not isinstance(password, str) or len(password) > LONGEST_PASSWORD):
            raise InvalidParameter(f"user {self.name!r}: a password is a text of at most {LONGEST_PASSWORD} characters")
        return attrs.evolve(
            self,
            password=password if password and password.strip() else self.password,
            type=self.type if not kind else _word(self.name, "userType", kind, (SUPER, NORMAL)),
            status=self.status if not status else _word(self.name, "userStatus", status, (ENABLED, DISABLED)),
        )


class UserPrincipal:
    """A user, ready to be asked, as an account of ``broker.toml`` is."""

    def __init__(self, user: User) -> None:
        self.key = user.name
        self.secret = user.password.encode()
        self.is_admin = user.is_super
        self.user = user
        self._decide = lru_cache(maxsize=1024)(user.policies.decide)
        self.how_to_administer = f"make it one with: mqadmin updateUser -u {user.name} -t Super"

    def trusts(self, address: str) -> bool:
        """From no address without signing."""
        return False

    def decides_about(self, kind: str, actions: frozenset[Action]) -> bool:
        """Its rights have words for all actions, an operator's too."""
        return True

    def refusal(self, kind: str, name: str, actions: frozenset[Action], address: str) -> str | None:
        """Why it may not do any of these with a topic or a group, and what to do; ``None`` if it may."""
        decide = self._decide if len(name) <= LONGEST_REMEMBERED else self.user.policies.decide
        entry = decide(kind.capitalize(), name, actions, address)
        if entry is not None and entry.decision == ALLOW:
            return None
        what = f"user {self.key!r} may not {' or '.join(sorted(actions))} with {kind} {name!r:.140} from {address}"
        if entry is not None:
            return f"{what}: its right to {entry.resource} says {entry.decision}; change it with: mqadmin updateAcl"
        right = f"-s User:{self.key} -r {kind.capitalize()}:{name:.140} -a {','.join(sorted(actions))} -d Allow"
        return f"{what}; allow it with: mqadmin createAcl {right}"


def _word(user: str, member: str, text: object, known: tuple[str, ...]) -> str:
    for word in known:
        if isinstance(text, str) and text.lower() == word.lower():
            return word
    raise InvalidParameter(f"user {user!r}: {member} {text!r:.80}; expected {' or '.join(known)}")


def check_user_name(name: str) -> None:
    if not name or len(name) > LONGEST_NAME or not name.isprintable() or any(c in name for c in " :*"):
        raise InvalidParameter(
            f"user name {name!r:.140}; expected 1 to {LONGEST_NAME} characters, without space, colon and star"
        )


class UserTable:
    """All users; the methods change it in memory, and say what became of a user."""

    def __init__(self) -> None:
        self._users: dict[str, User] = {}
        self._principals: dict[str, UserPrincipal] = {}
        """Made when they are first asked."""

    def __len__(self) -> int:
        return len(self._users)

    def __contains__(self, name: str) -> bool:
        return name in self._users

    def find(self, name: str) -> User | None:
        return self._users.get(name)

    def principal(self, name: str) -> UserPrincipal | None:
        """The user as requests ask it; ``None`` without one that is enabled."""
        user = self._users.get(name)
        if user is None or not user.is_enabled:
            return None
        principal = self._principals.get(name)
        if principal is None or principal.user is not user:
            principal = self._principals[name] = UserPrincipal(user)
        return principal

    def get(self, name: str) -> User:
        """
        Raises:
            InvalidParameter: there is none of this name.
        """
        user = self._users.get(name)
        if user is None:
            raise InvalidParameter(f"there is no user {name!r:.140}; create it with: mqadmin createUser -u {name:.140}")
        return user

    def listed(self, name_filter: str = "") -> list[User]:
        return [user for name, user in sorted(self._users.items()) if name_filter in name]

    def create(self, name: str, data: Mapping[str, Any]) -> User:
        """
        Raises:
            InvalidParameter: it exists, or a member is wrong, or it comes without a password.
        """
        check_user_name(name)
        if name in self._users:
            raise InvalidParameter(f"user {name!r} exists; change it with: mqadmin updateUser -u {name}")
        if len(self._users) >= MOST_USERS:
            raise InvalidParameter(f"there are {MOST_USERS} users, and no more are kept")
        user = User(name, "").changed(data)
        if not user.password:
            raise InvalidParameter(
                f"user {name!r} comes without a password; brokers do not give passwords out, so a copy has none: "
                f"create it with: mqadmin createUser -u {name} -p"
            )
        self._users[name] = user
        return user

    def update(self, name: str, data: Mapping[str, Any]) -> User:
        user = self._users[name] = self.get(name).changed(data)
        return user

    def delete(self, name: str) -> bool:
        """With its rights; says whether it was there."""
        self._principals.pop(name, None)
        return self._users.pop(name, None) is not None

    def set_policies(self, name: str, changes: Policies) -> User:
        """Add entries to the rights of a user, or change them."""
        user = self.get(name)
        user = self._users[name] = attrs.evolve(user, policies=user.policies.changed(changes))
        return user

    def delete_policies(self, name: str, kind: str = CUSTOM, resource: Resource | None = None) -> User:
        """Take away the entry for a resource, or all rights."""
        user = self.get(name)
        if not user.policies.entries:
            raise InvalidParameter(f"user {name!r} has no rights to take away")
        left = Policies() if resource is None else user.policies.without(kind, resource)
        user = self._users[name] = attrs.evolve(user, policies=left)
        return user

    # --- config/acl.json -------------------------------------------------------------------

    def as_json(self) -> dict[str, Any]:
        return {
            "users": {
                name: {**user.as_json(), "password": user.password, "policies": user.policies.as_json()}
                for name, user in self._users.items()
            }
        }

    def load_json(self, data: Mapping[str, Any]) -> None:
        """
        Raises:
            InvalidParameter: a user is wrong. Rights that cannot be read must not be passed over.
        """
        for name, member in (data.get("users") or {}).items():
            user = self.create(name, member)
            if member.get("policies"):
                self._users[name] = attrs.evolve(user, policies=Policies.from_json(member["policies"]))
