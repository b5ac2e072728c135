"""Contexts: clusters by name, so that nobody types addresses and secrets. They are in ``contexts.toml``::

    current = "test"

    [contexts.prod]
    namesrv = "10.0.0.5:9876;10.0.0.6:9876"
    access_key = "operator"
    secret_key = "…"
    tls = true
    ca_file = "/etc/ssl/rocketmq.pem"
    namespace = "shop"

The file lies in ``$XDG_CONFIG_HOME/verniermq``, by default ``~/.config/verniermq``, and is readable by its owner alone.
"""

from __future__ import annotations

import os
import ssl
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

from verniermq.kernel.errors import VernierMQError

if TYPE_CHECKING:
    from verniermq.client.options import ConnectionOptions

VARIABLE: Final = "VERNIERMQ_CONTEXT"


class ContextError(VernierMQError):
    """A context that is not there, or a file of contexts that cannot be used."""


def _is_text(instance: object, attribute: attrs.Attribute[str], value: object) -> None:
    if not isinstance(value, str):
        raise ContextError(f"{attribute.name} = {value!r}, expected a text")


def _text(default: str = "") -> str:
    return attrs.field(default=default, validator=_is_text)


@attrs.frozen(kw_only=True)
class ClusterContext:
    """One context: how to connect to a cluster."""

    name: str
    namesrv: str = _text()
    access_key: str = _text()
    secret_key: str = attrs.field(default="", repr=False, validator=_is_text)
    tls: bool = attrs.field(default=False)
    ca_file: str = _text()
    namespace: str = _text()

    @tls.validator
    def _is_switch(self, _: object, value: object) -> None:
        if not isinstance(value, bool):
            raise ContextError(f"tls = {value!r}, expected true or false")

    def options(self) -> ConnectionOptions:
        """For a client of ours.

        Raises:
            ContextError: ``ca_file`` cannot be read.
        """
        from verniermq.client.credentials import Credentials

        found: ConnectionOptions = {"namesrv": self.namesrv}
        if self.access_key:
            found["credentials"] = Credentials(self.access_key, self.secret_key)
        if self.tls:
            found["tls"] = self._authorities() if self.ca_file else True
        if self.namespace:
            found["namespace"] = self.namespace
        return found

    def _authorities(self) -> ssl.SSLContext:
        try:
            return ssl.create_default_context(cafile=self.ca_file)
        except (OSError, ssl.SSLError) as error:
            raise ContextError(f"context {self.name!r}: ca_file {self.ca_file!r} cannot be read: {error}") from None

    def settings(self) -> dict[str, str | bool]:
        """What is said in the file; nothing that has its default."""
        every = attrs.asdict(self, filter=lambda attribute, _: attribute.name != "name")
        return {name: value for name, value in every.items() if value}


@attrs.define
class Contexts:
    """All contexts of a file."""

    path: Path
    contexts: dict[str, ClusterContext]
    current: str = ""
    """The one that is used when nobody names one; empty if there is none."""

    @classmethod
    def load(cls, path: Path | None = None) -> Contexts:
        """
        Raises:
            ContextError: the file is there and cannot be used.
        """
        path = path or default_path()
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return cls(path, {})
        except (OSError, UnicodeDecodeError) as error:
            raise ContextError(f"{path} cannot be read: {error}") from None
        try:
            table = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ContextError(f"{path} is no TOML: {error}") from None
        found = table.get("contexts", {})
        current = table.get("current", "")
        if not isinstance(found, dict) or not isinstance(current, str):
            raise ContextError(f'{path}: expected current = "name" and tables [contexts.name]')
        return cls(path, {name: _context(path, name, settings) for name, settings in found.items()}, current)

    def get(self, name: str) -> ClusterContext:
        """
        Raises:
            ContextError: there is none of that name.
        """
        found = self.contexts.get(name)
        if found is None:
            known = f"known are {', '.join(sorted(self.contexts))}" if self.contexts else "there are none yet"
            raise ContextError(
                f"there is no context {name!r} in {self.path}; {known}; "
                f"add it with: verniermq context add {name} --namesrv HOST:PORT"
            )
        return found

    def save(self) -> None:
        """Write the file, readable by its owner alone; whole or not at all.

        Raises:
            ContextError: it cannot be written.
        """
        from verniermq.kernel.config.toml import toml_key, toml_text

        lines = [f"current = {toml_text(self.current)}", ""] if self.current else []
        for name, one in sorted(self.contexts.items()):
            lines.append(f"[contexts.{toml_key(name)}]")
            for key, value in one.settings().items():
                lines.append(f"{key} = {toml_text(value) if isinstance(value, str) else str(value).lower()}")
            lines.append("")
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with open(os.open(temporary, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
                file.write("\n".join(lines))
            temporary.rename(self.path)
        except OSError as error:
            raise ContextError(f"{self.path} cannot be written: {error}") from None


def default_path() -> Path:
    home = os.environ.get("XDG_CONFIG_HOME") or Path("~/.config").expanduser()
    return Path(home) / "verniermq" / "contexts.toml"


def _context(path: Path, name: str, settings: Any) -> ClusterContext:
    if not isinstance(settings, Mapping):
        raise ContextError(f"{path}: [contexts.{name}] is no table")
    known = [field.name for field in attrs.fields(ClusterContext) if field.name != "name"]
    unknown = sorted(set(settings) - set(known))
    if unknown:
        raise ContextError(f"{path}: [contexts.{name}] has no setting {unknown[0]!r}; it knows {', '.join(known)}")
    try:
        return ClusterContext(name=name, **settings)
    except ContextError as error:
        raise ContextError(f"{path}: [contexts.{name}]: {error}") from None
