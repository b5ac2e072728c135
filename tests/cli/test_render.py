"""The text of ``broker.toml`` cannot drift from the classes: it is made from them and reads back to them."""

from __future__ import annotations

import enum
import tomllib
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verniermq.cli.render import render, render_effective
from verniermq.kernel.config import (
    SECTIONS,
    Configuration,
    Duration,
    Size,
    load,
    setting,
    settings_of,
    structure,
    without_secrets,
)
from verniermq.kernel.config.toml import toml_key, toml_value


class Level(enum.Enum):
    LOW = 1
    HIGH = 2


@attrs.frozen
class Rule:
    topic: str = "t"
    token: str = attrs.field(default="", metadata={"secret": True})


@attrs.frozen
class Config:
    """A plugin's settings of every kind."""

    plain: int = attrs.field(default=64)
    """How many there are;
    the text goes on."""
    nothing: float | None = setting(None, "Not set by default.", at_least=0)
    level: Level = setting(Level.HIGH, "How high.")
    sizes: list[Size] = setting([Size(4096)], "Some sizes.")
    waits: dict[str, Duration] = setting({"a b": Duration(90.0)}, "Some durations.")
    rule: Rule = setting(Rule("other"), "The first rule.")
    rules: list[Rule] = setting([], "More rules.")
    password: str = setting("", "The password.", secret=True)
    path: Path = setting(Path("a/b"), "A folder.")
    last: bool = setting(False, "The last one.")


@attrs.frozen
class Needy:
    must: str = setting(attrs.NOTHING, "Nobody can guess this.")


PLUGINS: list[tuple[str, type | None, str]] = [("x", Config, "Does x."), ("idle", None, "Has nothing to set.")]


def test_the_generated_file_reads_back_to_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_text(render(SECTIONS, PLUGINS), encoding="utf-8")

    configuration = load(path, environ={})

    assert attrs.evolve(configuration, plugin_tables={}) == Configuration()
    assert configuration.plugin("x", Config) == Config()


@pytest.mark.parametrize("section", SECTIONS)
def test_every_kernel_setting_is_in_the_file_and_explained_above(section: str) -> None:
    lines = render().splitlines()
    document = tomllib.loads(render())

    assert list(document[section]) == list(settings_of(SECTIONS[section]))
    start = lines.index(f"[{section}]")
    for key, known in settings_of(SECTIONS[section]).items():
        at = next(n for n in range(start, len(lines)) if lines[n].startswith(f"{key} = "))
        assert lines[at - 1] == f"# {known.rules.explanation}"


def test_every_kernel_number_has_its_limits() -> None:
    unlimited = [
        f"{section}.{key}"
        for section, cls in SECTIONS.items()
        for key, known in settings_of(cls).items()
        if known.kind in (int, float, Size, Duration) and None in (known.rules.at_least, known.rules.at_most)
    ]
    assert unlimited == []


def test_a_plugins_table_is_written_with_what_its_author_said() -> None:
    text = render({}, PLUGINS)

    assert text.partition("# Does x.\n")[2] == (
        "[plugins.x]\n"
        "# How many there are; the text goes on.\n"
        "plain = 64\n"
        "# Not set by default.\n"
        "# nothing = …  (not set; a number of at least 0)\n"
        "# How high.\n"
        'level = "high"\n'
        "# Some sizes.\n"
        'sizes = ["4KiB"]\n'
        "# Some durations.\n"
        'waits = { "a b" = "1m30s" }\n'
        "# More rules.\n"
        "# rules = []\n"
        "# The password.\n"
        'password = ""\n'
        "# A folder.\n"
        'path = "a/b"\n'
        "# The last one.\n"
        "last = false\n"
        "\n"
        "# The first rule.\n"
        "[plugins.x.rule]\n"
        'topic = "other"\n'
        'token = ""\n'
        "\n"
        "# Has nothing to set.\n"
        "# [plugins.idle] has no settings.\n"
    )


def test_a_setting_that_has_to_be_given_is_shown_as_such() -> None:
    assert "# must = …  (has to be given: a text)" in render({}, [("n", Needy, "Needs.")])


def test_what_runs_is_shown_with_where_it_came_from() -> None:
    environ = {"VERNIERMQ_STORE_FLUSH": "sync", "VERNIERMQ_PLUGINS_X_RULE_TOPIC": "orders"}
    configuration = load(None, {"broker.port": 0}, environ)

    text = render_effective(configuration, {"x": configuration.plugin("x", Config), "idle": None})

    assert "port = 0  # command line\n" in text
    assert 'flush = "sync"  # VERNIERMQ_STORE_FLUSH\n' in text
    assert '[plugins.x.rule]\ntopic = "orders"  # VERNIERMQ_PLUGINS_X_RULE_TOPIC\n' in text
    assert 'segment_size = "1GiB"\n' in text
    assert "# nothing is not set\n" in text


def test_what_runs_reads_back_to_the_same(tmp_path: Path) -> None:
    configuration = load(None, {"broker.port": 0, "store.flush_interval": "1m30s", "plugins.x.plain": 5}, {})
    path = tmp_path / "shown.toml"
    path.write_text(render_effective(configuration, {"x": configuration.plugin("x", Config)}))

    again = load(path, environ={})

    assert attrs.evolve(again, plugin_tables={}) == attrs.evolve(configuration, plugin_tables={})
    assert again.plugin("x", Config) == configuration.plugin("x", Config)


def test_a_secret_is_never_shown_but_its_absence_is() -> None:
    rules = [Rule("a", "hush"), Rule("b")]
    text = render_effective(Configuration(), {"x": Config(password="hush", rule=Rule("t", "hush"), rules=rules)})

    assert "hush" not in text
    assert 'password = "***"' in text
    assert 'rules = [{ topic = "a", token = "***" }, { topic = "b", token = "" }]' in text
    assert 'password = ""' in render_effective(Configuration(), {"x": Config()})


toml_values = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@given(key=st.text(max_size=8), value=toml_values)
def test_any_value_is_written_as_toml_on_one_line(key: str, value: Any) -> None:
    line = f"{toml_key(key)} = {toml_value(value)}"

    assert len(line.splitlines()) == 1
    assert tomllib.loads(line) == {key: value}


@given(
    port=st.integers(0, 65535),
    interval=st.floats(0.001, 3600),
    segment=st.integers(16 << 20, 2**31 - 1),
    names=st.lists(st.text(), max_size=3),
)
def test_any_settings_survive_being_shown(port: int, interval: float, segment: int, names: list[str]) -> None:
    flags = {
        "broker.port": port,
        "store.flush_interval": f"{interval}s",
        "store.segment_size": segment,
        "plugins.disable": names,
    }
    configuration = load(None, flags, {})

    shown = tomllib.loads(render_effective(configuration))

    for section, cls in SECTIONS.items():
        assert structure(cls, shown[section], section) == getattr(configuration, section)


def test_secrets_are_masked_however_deep_they_lie() -> None:
    config = Config(rule=Rule("a", "hidden"), rules=[Rule("b", "hidden"), Rule("c")], password="hidden")
    nested = {"x": (config, {"y": [config]})}

    shown: Any = without_secrets(nested)

    assert "hidden" not in repr(shown)
    assert shown["x"][1]["y"][0]["rules"] == [{"topic": "b", "token": "***"}, {"topic": "c", "token": ""}]
