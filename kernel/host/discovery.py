"""Finding plugins: from a name in ``broker.toml`` to a class, and nothing that was not named.

A name is looked up in this order: the ``from`` key of its own table, the built-in ones, entry points of the
group ``verniermq``, a path to a Python file, ``module:attribute``. Entry points are read from the metadata
of installed packages; their code is imported only when the name is active.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from verniermq.kernel.config import Configuration
from verniermq.kernel.errors import PluginError, nearest
from verniermq.kernel.host.builtin import Catalogue
from verniermq.kernel.host.permissions import open_to_anybody
from verniermq.kernel.host.plugin import Declaration, declaration_of

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

DEFAULT = "default"
"""In ``enable``: stands for all built-in plugins."""


class PluginCandidate(NamedTuple):
    """A plugin that could be loaded: its name and where its class is."""

    name: str
    target: str
    """``module:attribute``, or the path of a Python file."""
    origin: str
    """For people: ``built-in``, ``verniermq-example 1.2``, ``rules.py``."""
    version: str = ""


class Found(NamedTuple):
    """A candidate whose class was imported."""

    candidate: PluginCandidate
    plugin_class: Any
    declaration: Declaration

    @property
    def name(self) -> str:
        return self.candidate.name


def installed(group: str) -> dict[str, PluginCandidate]:
    """What other packages offer, without importing any of it."""
    from importlib.metadata import entry_points

    found = {}
    for entry in entry_points(group=group):
        package, version = _distribution(entry)
        found[entry.name] = PluginCandidate(entry.name, entry.value, f"{package} {version}".strip(), version)
    return found


def _distribution(entry: EntryPoint) -> tuple[str, str]:
    return (entry.dist.name, entry.dist.version) if entry.dist is not None else ("", "")


def _offered(configuration: Configuration, catalogue: Catalogue) -> dict[str, PluginCandidate]:
    """What other packages offer, if ``broker.toml`` speaks of more than built-in plugins.

    Otherwise nobody asks, and looking through the installed packages would be a tenth of a broker's start.
    """
    spoken_of = {*configuration.plugins.enable, *configuration.plugins.disable, *configuration.plugin_tables}
    for name in configuration.plugin_tables:
        place = configuration.place(name)
        spoken_of.update((*place.before, *place.after))
    only_built_in = spoken_of <= {DEFAULT, *catalogue.builtin} and not configuration.origin.plugin_environment
    return {} if only_built_in else installed(catalogue.group)


def choose(configuration: Configuration, catalogue: Catalogue, defaults: Sequence[str]) -> list[PluginCandidate]:
    """The plugins to load, as ``[plugins]`` says; ``defaults`` is what ``"default"`` stands for.

    Raises:
        PluginError: a name leads nowhere.
    """
    names: list[str] = []
    for name in configuration.plugins.enable:
        names.extend(defaults if name == DEFAULT else [name])
    unwanted = configuration.plugins.disable
    offered = _offered(configuration, catalogue)
    base = Path(configuration.origin.file).parent
    chosen: dict[str, PluginCandidate] = {}
    for name in names:
        if name in unwanted:
            continue
        candidate = _look_up(name, configuration.place(name).from_, catalogue, offered, base)
        other = chosen.setdefault(candidate.name, candidate)
        if other.target != candidate.target:
            raise PluginError(
                f"[plugins] enable has two plugins named {candidate.name!r}, {other.target} and {candidate.target}; "
                f"give one another name: [plugins.<name>] from = {candidate.origin!r}"
            )
    for name in unwanted:
        if name not in (known := known_names(configuration, catalogue, chosen.values())):
            raise PluginError(f"[plugins] disable names {name!r}, which does not exist; {nearest(name, known)}")
    return [candidate for candidate in chosen.values() if candidate.name not in unwanted]


def known_names(configuration: Configuration, catalogue: Catalogue, chosen: Iterable[PluginCandidate]) -> list[str]:
    """Every name that ``broker.toml`` may speak of, whether or not its plugin is active."""
    placed = [name for name in configuration.plugin_tables if configuration.place(name).from_]
    named = [*configuration.plugins.enable, *(candidate.name for candidate in chosen), *placed]
    return list(dict.fromkeys([*catalogue.builtin, *_offered(configuration, catalogue), *named]))


def _look_up(
    name: str, source: str, catalogue: Catalogue, offered: Mapping[str, PluginCandidate], base: Path
) -> PluginCandidate:
    if source:
        return PluginCandidate(name, str(base / source) if source.endswith(".py") else source, source)
    if name in catalogue.builtin:
        return built_in(name, catalogue)
    if name in offered:
        return offered[name]
    if name.endswith(".py"):
        return PluginCandidate(Path(name).stem, str(base / name), name)
    if ":" in name:
        return PluginCandidate(name.partition(":")[0].rpartition(".")[2], name, name)
    raise PluginError(
        f"[plugins] enable names {name!r}, which is no built-in plugin, no installed one (entry point group "
        f"'{catalogue.group}'), no .py file and no module:attribute; {nearest(name, [*catalogue.builtin, *offered])}"
    )


def built_in(name: str, catalogue: Catalogue) -> PluginCandidate:
    return PluginCandidate(name, catalogue.builtin[name], "built-in")


def load(candidate: PluginCandidate, attribute: str = "Plugin") -> Found:
    """Import a candidate's class; ``attribute`` is its name in a file.

    Raises:
        PluginError: the import fails, or what it finds is no plugin for this version.
    """
    where = f"plugin {candidate.name!r} ({candidate.target})"
    try:
        plugin_class = (
            _import_file(candidate, attribute) if candidate.target.endswith(".py") else _import_target(candidate.target)
        )
    except PluginError:
        raise
    except Exception as error:  # whatever a stranger's module raises on import, we say whose it was
        raise PluginError(
            f"{where} cannot be imported: {type(error).__name__}: {error}{_place(error, candidate)}", candidate.name
        ) from error
    try:
        declaration = declaration_of(plugin_class, where)
    except PluginError as error:
        error.plugin = candidate.name
        raise
    return Found(candidate._replace(version=candidate.version or declaration.version), plugin_class, declaration)


def _place(error: Exception, candidate: PluginCandidate) -> str:
    """The innermost line of the plugin's own that the error passed."""
    own = _module_of_file(candidate) if candidate.target.endswith(".py") else candidate.target.partition(":")[0]
    place, trace = "", error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        if f"{frame.f_globals.get('__name__')}.".startswith(f"{own}."):
            place = f" ({frame.f_code.co_filename}:{trace.tb_lineno})"
        trace = trace.tb_next
    return place


def _module_of_file(candidate: PluginCandidate) -> str:
    """A name of its own, so that rules.py of one broker is not mistaken for somebody's module `rules`."""
    return f"verniermq_plugin_file_{candidate.name}"


def check_packages(found: Found) -> None:
    """
    Raises:
        PluginError: a package that the plugin declares is not installed.
    """
    declaration = found.declaration
    missing = [name for name in declaration.packages if not _is_installed(name)]
    if missing:
        install = declaration.install or " ".join(missing)
        why = f"plugin {found.name!r} needs {', '.join(missing)}; install it with: pip install '{install}'"
        raise PluginError(why, found.name)


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):  # the package that it is in is missing; or somebody made a module of that name
        return package in sys.modules


def _import_target(target: str) -> Any:
    module_name, _, attribute = target.partition(":")
    module = importlib.import_module(module_name)
    value: Any = module
    for part in (attribute or "Plugin").split("."):
        value = getattr(value, part)
    return value


def _import_file(candidate: PluginCandidate, attribute: str) -> Any:
    path = Path(candidate.target)
    if not path.is_file():
        raise PluginError(f"plugin {candidate.name!r}: there is no file {path}", candidate.name)
    if (how := open_to_anybody(path)) is not None:
        raise PluginError(f"plugin {candidate.name!r} is not run: {how}", candidate.name)
    module_name = _module_of_file(candidate)
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None  # it ends in .py
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    return getattr(module, attribute, None) or module.Plugin
