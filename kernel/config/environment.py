"""Environment variables that override settings.

The name is made from the key: ``[store] segment_size`` is ``VERNIERMQ_STORE_SEGMENT_SIZE``, and
``[plugins.schedule] levels`` is ``VERNIERMQ_PLUGINS_SCHEDULE_LEVELS``. A variable with our prefix that means nothing
is refused, since a misspelt one would otherwise be silently without effect. The few that are no settings are
listed below.

A secret does not belong into an environment. ``VERNIERMQ_PLUGINS_NAMESRV_SECRET_FILE`` names a file that holds the
value of ``[plugins.namesrv] secret``, and so for every setting; a table's file is TOML, as ``broker.toml`` has it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from verniermq.kernel.config.fields import settings_of
from verniermq.kernel.config.kinds import is_table, unwrapped
from verniermq.kernel.config.schema import SECTIONS, PluginPlace
from verniermq.kernel.errors import ConfigError, close_match

PREFIX: Final = "VERNIERMQ_"
PLUGIN_PREFIX: Final = "VERNIERMQ_PLUGINS_"

CONFIG_VARIABLE: Final = "VERNIERMQ_CONFIG"
"""The path of ``broker.toml`` when no flag gives it; a container then needs no command line."""

PURE_VARIABLE: Final = "VERNIERMQ_PURE"
"""Keeps a process from using what is compiled."""

OTHER_VARIABLES: Final = frozenset({CONFIG_VARIABLE, PURE_VARIABLE, "VERNIERMQ_NAMESRV", "VERNIERMQ_CONTEXT"})
"""The last two are for commands and clients: where the brokers are. A broker on the same machine passes them over."""
OTHER_PREFIXES: Final = ("VERNIERMQ_INTEROP_",)
"""The tests with real Java, Go and Node clients are steered with these."""


FILE_SUFFIX: Final = "_FILE"


def text_of(environ: Mapping[str, str], name: str) -> str | None:
    """What a variable says, or the file that the variable with ``_FILE`` behind its name names.

    Raises:
        ConfigError: both are set, or the file cannot be read
    """
    text, path = environ.get(name), environ.get(name + FILE_SUFFIX)
    if path is None:
        return text
    if text is not None:
        raise ConfigError(f"environment: {name} and {name}{FILE_SUFFIX} are both set; unset one of them")
    try:
        return Path(path).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"environment: {name}{FILE_SUFFIX} names {path}, which cannot be read: {why}") from None


def files_of(environ: Mapping[str, str]) -> list[str]:
    """The files that variables may take their values from."""
    return [path for name, path in sorted(environ.items()) if name.startswith(PREFIX) and name.endswith(FILE_SUFFIX)]


def variable(dotted: str) -> str:
    """The environment variable for a dotted key."""
    return PREFIX + re.sub(r"[^A-Z0-9]", "_", dotted.upper())


def variables_of(cls: type, where: str) -> dict[str, str]:
    """Variable → dotted key for every setting of a class, those of tables inside it included."""
    found = {}
    for key, setting in settings_of(cls).items():
        dotted = f"{where}.{key}"
        found[variable(dotted)] = dotted
        inner = unwrapped(setting.kind)
        if is_table(inner):
            found.update(variables_of(inner, dotted))
    return found


def kernel_variables() -> dict[str, str]:
    """Variable → dotted key for the kernel's own settings."""
    found: dict[str, str] = {}
    for section, cls in SECTIONS.items():
        found.update(variables_of(cls, section))
    return found


def plugin_variables(name: str, cls: type | None) -> dict[str, str]:
    """Variable → dotted key for one plugin: its own settings, and its place in the order."""
    where = f"plugins.{name}"
    own = variables_of(cls, where) if cls is not None else {}
    return own | variables_of(PluginPlace, where)


def read_environment(environ: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Split our variables: those of the kernel's settings, and those that some plugin will have to know.

    Raises:
        ConfigError: for a variable with our prefix that is neither
    """
    ours = sorted(name for name in environ if name.startswith(PREFIX))
    known = kernel_variables() if ours else {}
    kernel, plugins = {}, {}
    for name in ours:
        if name in OTHER_VARIABLES or name.startswith(OTHER_PREFIXES):
            continue
        if name in known:
            kernel[name] = environ[name]
        elif name.endswith(FILE_SUFFIX) and (base := name.removesuffix(FILE_SUFFIX)) in known:
            kernel[base] = text_of(environ, base) or ""
        elif name.startswith(PLUGIN_PREFIX):
            plugins[name] = environ[name]
        else:
            refuse_variable(name, known)
    return kernel, plugins


def refuse_variable(name: str, known: Iterable[str]) -> None:
    """Say that no setting has this variable."""
    # Without what all have in common, or anything would be like something.
    close = close_match(name.removeprefix(PREFIX), [other.removeprefix(PREFIX) for other in known], 0.6)
    advice = "'verniermq config default' shows all settings" if close is None else f"did you mean {PREFIX + close!r}?"
    raise ConfigError(f"environment: {name} is not a setting; {advice}")
