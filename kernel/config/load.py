"""Reading the configuration: flags go before the environment, that before the file, that before the defaults."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from verniermq.kernel.config.configuration import Configuration, Origin, put
from verniermq.kernel.config.environment import CONFIG_VARIABLE, files_of, kernel_variables, read_environment
from verniermq.kernel.config.fields import settings_of
from verniermq.kernel.config.filestamps import FileStamps
from verniermq.kernel.config.schema import SECTIONS, PluginSettings
from verniermq.kernel.config.structure import structure
from verniermq.kernel.config.text import PlainText
from verniermq.kernel.config.toml import toml_key
from verniermq.kernel.errors import ConfigError, UnknownSetting, nearest

FLAGS = "command line"
"""What messages call the place that ``overrides`` came from."""


def load(
    path: Path | None,
    overrides: Mapping[str, object] = MappingProxyType({}),
    environ: Mapping[str, str] | None = None,
) -> Configuration:
    """Read and check everything that is known before the plugins are.

    Args:
        path: ``broker.toml``; ``None`` for the one that ``VERNIERMQ_CONFIG`` names, or the defaults
        overrides: dotted keys from flags, ``{"broker.port": 0}``; texts are read like environment variables
        environ: ``os.environ`` unless given

    Raises:
        ConfigError: with one line about the first thing that is wrong
    """
    environ = os.environ if environ is None else environ
    if path is None and environ.get(CONFIG_VARIABLE):
        path = Path(environ[CONFIG_VARIABLE])
    stamps = FileStamps(([] if path is None else [str(path)]) + files_of(environ)).stamps
    document = read_file(path) if path is not None else {}
    sources: dict[str, str] = {}

    kernel_environment, plugin_environment = read_environment(environ)
    known = kernel_variables() if kernel_environment else {}
    for name, text in kernel_environment.items():
        _override(document, known[name], PlainText(text), name)
        sources[known[name]] = name
    for dotted, value in overrides.items():
        _override(document, dotted, PlainText(value) if isinstance(value, str) else value, FLAGS)
        sources[dotted] = FLAGS
    return _configuration(document, Origin(str(path or "broker.toml"), sources, plugin_environment, stamps))


def configuration_of(document: Mapping[str, Any], source: str) -> Configuration:
    """Check tables that a program made itself; ``source`` is what messages call the place that they came from.

    Raises:
        ConfigError: with one line about the first thing that is wrong
    """
    return _configuration(dict(document), Origin(source))


def read_file(path: Path) -> dict[str, Any]:
    """Read a TOML file; whatever is wrong with it is one line."""
    import tomllib  # a broker with the defaults reads no file

    text = ""
    try:
        text = path.read_text(encoding="utf-8")
        return tomllib.loads(text)
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file; `verniermq config default` prints a complete one") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text: byte {error.start} is no part of a character") from None
    except tomllib.TOMLDecodeError as error:
        last = f"line {text.count(chr(10)) + 1}, the end of the file"
        said = " ".join(str(error).split()).replace("end of document", last)
        raise ConfigError(f"{path}: is not TOML: {said}") from None


def _override(document: dict[str, Any], dotted: str, value: object, source: str) -> None:
    section, _, key = dotted.partition(".")
    if section not in SECTIONS or not key:
        sections = [f"{name}.{known}" for name, cls in SECTIONS.items() for known in settings_of(cls)]
        raise ConfigError(f"{source}: {dotted!r} is not a setting; {nearest(dotted, sections)}")
    if not isinstance(document.get(section, {}), Mapping):
        return  # the file's mistake is reported when the section is read
    put(document, dotted, value)


def _configuration(document: dict[str, Any], origin: Origin) -> Configuration:
    for name in document:
        if name not in SECTIONS:
            key = toml_key(name)
            advice = f"{nearest(name, SECTIONS)}; a plugin's settings are in [plugins.{key}]"
            raise UnknownSetting(f"{origin.file}: there is no section [{key}]", name, advice)
    sections = dict(document)
    tables: dict[str, Any] = {}
    if isinstance(document.get("plugins"), Mapping):
        sections["plugins"], tables = _without_tables(document["plugins"])
    made: dict[str, Any] = {
        name: structure(cls, sections[name], name, origin.file, origin.keys)
        for name, cls in SECTIONS.items()
        if name in sections
    }
    configuration = Configuration(**made, plugin_tables=tables, origin=origin)
    for name in tables:
        configuration.place(name)  # the keys that are the host's can be checked before any plugin is imported
    return configuration


def _without_tables(plugins: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Take ``[plugins.<name>]`` out of ``[plugins]``."""
    own = settings_of(PluginSettings)
    settings = {key: value for key, value in plugins.items() if key in own or not isinstance(value, Mapping)}
    tables = {key: value for key, value in plugins.items() if key not in settings}
    return settings, tables
