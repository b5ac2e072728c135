"""The text of ``broker.toml``, made from the classes: every key, its default, and one line that explains it.

``render`` writes the file that a new user starts from; ``render_effective`` writes what one broker really runs with,
and from where, in the same form with secrets masked. Both are TOML that reads back. What TOML cannot say (a setting
that is not set) and what would be in the way of adding to it (an empty list of tables) stands there as a comment.
"""

from __future__ import annotations

import ast
import inspect
import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import attrs

from verniermq.kernel.config.configuration import Configuration
from verniermq.kernel.config.fields import SECRET, Setting, settings_of, without_secrets
from verniermq.kernel.config.kinds import alternatives, described, is_table, item_kind, unwrapped, value_kind
from verniermq.kernel.config.schema import SECTIONS, PluginPlace
from verniermq.kernel.config.toml import toml_key, toml_text, toml_value
from verniermq.kernel.config.units import Duration, Size, format_duration, format_size

HEAD = """\
# VernierMQ's configuration: every setting with its default.
#
# Sizes are written "4MiB", times "500ms", "30s", "1h30m" or "7d". An environment variable goes before this file and a
# flag before both: [store] segment_size is VERNIERMQ_STORE_SEGMENT_SIZE, and [plugins.schedule] levels is
# VERNIERMQ_PLUGINS_SCHEDULE_LEVELS. What is misspelt or does not fit is refused at start, with its place.
"""


def render(
    sections: Mapping[str, type] = SECTIONS,
    plugins: Sequence[tuple[str, type | None, str]] = (),
) -> str:
    """The complete file with all defaults.

    Args:
        plugins: name, class of settings (``None`` if it has none) and one line about each plugin
    """
    blocks = [HEAD]
    blocks += [_section(name, cls, _first_line(cls)) for name, cls in sections.items()]
    if "plugins" in sections:
        blocks.append(_place())
    for name, cls, about in plugins:
        where = f"plugins.{toml_key(name)}"
        if cls is not None and settings_of(cls):
            blocks.append(_section(where, cls, about))
        else:
            blocks.append(f"# {about}\n# [{where}] has no settings.\n")
    return "\n".join(blocks)


def render_effective(configuration: Configuration, plugin_configs: Mapping[str, object] | None = None) -> str:
    """What one broker runs with: every value, where it came from unless it is the default, and no secret.

    Args:
        plugin_configs: the settings of the active plugins, by name
    """
    shown: dict[str, object] = {name: getattr(configuration, name) for name in SECTIONS}
    shown |= {f"plugins.{name}": config for name, config in (plugin_configs or {}).items() if config is not None}
    return "\n".join("".join(_effective(configuration, where, config)) for where, config in shown.items())


def effective(configuration: Configuration, plugin_configs: Mapping[str, object]) -> dict[str, dict[str, object]]:
    """The same as values, by table: durations in seconds, sizes in bytes, secrets masked."""
    shown: dict[str, object] = {name: getattr(configuration, name) for name in SECTIONS}
    shown |= {f"plugins.{name}": config for name, config in plugin_configs.items() if config is not None}
    return {
        where: {
            key: without_secrets(getattr(config, setting.attribute.name), setting)
            for key, setting in settings_of(type(config)).items()
        }
        for where, config in shown.items()
    }


def _section(where: str, cls: type, about: str, defaults: object = None) -> str:
    """One table; ``defaults`` is the instance whose values are written instead of the class's own defaults."""
    texts = explanations(cls)
    lines, inner = [f"# {about}\n" if about else "", f"[{where}]\n"], []
    for key, setting in settings_of(cls).items():
        explained = f"# {texts[key]}\n" if texts[key] else ""
        default = setting.default if defaults is None else getattr(defaults, setting.attribute.name)
        if is_table(type(default)):
            # Tables inside come after the plain keys, or these would belong to them.
            inner.append("\n" + _section(f"{where}.{toml_key(key)}", type(default), texts[key], default))
        else:
            lines.append(explained + _default_line(setting, default) + "\n")
    return "".join(lines + inner)


def _default_line(setting: Setting, default: object) -> str:
    key = toml_key(setting.key)
    if default is attrs.NOTHING:
        return f"# {key} = …  (has to be given: {described(setting.kind, setting)})"
    if default is None:
        return f"# {key} = …  (not set; {described(setting.kind, setting)})"
    line = f"{key} = {written(setting.kind, default)}"
    # "rules = []" would forbid to add [[plugins.flow.rules]] further down.
    return f"# {line}" if not default and _holds_tables(setting.kind) else line


def _holds_tables(kind: Any) -> bool:
    kind = unwrapped(kind)
    item = item_kind(kind)
    return value_kind(kind) is not None or (item is not None and is_table(unwrapped(item)))


def _place() -> str:
    """The keys of the plugin host, which every plugin's table may have besides the plugin's own."""
    texts = explanations(PluginPlace)
    lines = ["# Each plugin's own settings are in [plugins.<name>], where these can stand as well:\n"]
    lines += [f"#   {key:<7} {text}\n" for key, text in texts.items()]
    return "".join(lines)


def _effective(configuration: Configuration, where: str, config: object) -> Iterator[str]:
    yield f"[{'.'.join(toml_key(part) for part in where.split('.'))}]\n"
    inner = []
    for key, setting in settings_of(type(config)).items():
        value, dotted = getattr(config, setting.attribute.name), f"{where}.{key}"
        if is_table(type(value)) and not setting.secret:
            inner.append((dotted, value))
        elif value is None:
            yield f"# {toml_key(key)} is not set\n"
        else:
            origin = "" if value == setting.default else f"  # {configuration.source_of(dotted)}"
            yield f"{toml_key(key)} = {_masked(setting, value)}{origin}\n"
    for dotted, value in inner:
        yield "\n"
        yield from _effective(configuration, dotted, value)


def _masked(setting: Setting, value: object) -> str:
    # An empty secret is not one: that it is missing is worth seeing.
    if setting.secret and value not in ("", (), [], {}):
        return toml_text(SECRET)
    return written(setting.kind, value)


def written(kind: Any, value: object) -> str:
    """A value as the file has it: sizes and durations with their units, choices by name, secrets inside masked."""
    kind = unwrapped(kind)
    if len(alternatives(kind)) > 1:
        kind = type(value)
    if kind is Size and isinstance(value, int):
        return toml_text(format_size(value))
    if kind is Duration and isinstance(value, int | float) and math.isfinite(value):
        return toml_text(format_duration(value))
    if attrs.has(type(value)):
        settings = settings_of(type(value)).values()
        pairs = [(setting, getattr(value, setting.attribute.name)) for setting in settings]
        inside = [f"{toml_key(setting.key)} = {_masked(setting, item)}" for setting, item in pairs if item is not None]
        return f"{{ {', '.join(inside)} }}" if inside else "{}"
    item = item_kind(kind)
    if item is not None and isinstance(value, list | tuple | set | frozenset):
        items = sorted(value, key=str) if isinstance(value, set | frozenset) else value
        return "[" + ", ".join(written(item, each) for each in items) + "]"
    inner = value_kind(kind)
    if inner is not None and isinstance(value, Mapping):
        pairs_of_texts = [f"{toml_key(str(key))} = {written(inner, each)}" for key, each in value.items()]
        return f"{{ {', '.join(pairs_of_texts)} }}" if pairs_of_texts else "{}"
    return toml_value(value)


def _first_line(cls: type) -> str:
    return (cls.__doc__ or "").strip().partition("\n")[0].replace("``", "")


def explanations(cls: type) -> dict[str, str]:
    """One line for each setting; empty where its author wrote none."""
    below = _texts_below_fields(cls)
    return {
        key: setting.rules.explanation or below.get(setting.attribute.name, "")
        for key, setting in settings_of(cls).items()
    }


def _texts_below_fields(cls: type) -> dict[str, str]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError, SyntaxError):
        return {}  # made at run time, or shipped without source
    body = tree.body[0].body if tree.body and isinstance(tree.body[0], ast.ClassDef) else []
    found = {}
    for field, after in pairwise(body):
        match field, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str() as text)):
                found[name] = " ".join(text.split())
    return found
