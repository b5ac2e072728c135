"""The pages of the plugins for the kinds of message say what is in the code: settings, defaults and hooks."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import attrs
import pytest

from tests.plugins.documented import PAGES, blocks
from verniermq.kernel import RequestCode
from verniermq.kernel.config.structure import structure
from verniermq.kernel.host import discovery
from verniermq.kernel.host.builtin import BROKER_PLUGINS

PAGE_OF = {"sql": "filter"}
KINDS = ["filter", "sql", "txn", "reply", "pop", "schedule", "retry", "order"]
A_LIST_OF_ONES_OWN = ("schedule", "levels")
"""Shown with other values than the usual ones, as an example of what can be set."""


@pytest.fixture(params=KINDS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def plugin_of(name: str) -> Any:
    return discovery.load(discovery.built_in(name, BROKER_PLUGINS)).plugin_class


def page_of(name: str) -> str:
    return PAGE_OF.get(name, name)


def text_of(name: str) -> str:
    return (PAGES / f"{page_of(name)}.md").read_text(encoding="utf-8")


def test_the_settings_that_are_shown_are_the_defaults(name: str) -> None:
    config = plugin_of(name).declaration.config
    shown: dict[str, Any] = {}
    for block in blocks(page_of(name), "toml"):
        shown |= tomllib.loads(block).get("plugins", {}).get(name, {})
    for setting, value in re.findall(r"^\| `(\w+)` \| `([^`]*)` \|", text_of(name), re.MULTILINE):
        if setting in attrs.fields_dict(config):
            shown.setdefault(setting, {"true": True, "false": False}.get(value, value))

    structured = structure(config, shown, f"plugins.{name}")

    usual = config()
    for setting in shown:
        if (name, setting) != A_LIST_OF_ONES_OWN:
            assert getattr(structured, setting) == getattr(usual, setting), setting
    explained = set(re.findall(r"^\| `(\w+)` \|", text_of(name), re.MULTILINE))
    assert attrs.fields_dict(config).keys() == shown.keys() | (explained & attrs.fields_dict(config).keys())


def test_every_hook_that_it_implements_is_named_and_there_is_an_example(name: str) -> None:
    text = text_of(name)
    plugin = plugin_of(name)
    hooks = [one for one, member in vars(plugin).items() if hasattr(member, "verniermq_impl")]
    assert hooks or hasattr(plugin, "setup")
    for hook in hooks:
        assert hook in text, hook
    for code in map(RequestCode, plugin.declaration.requests):
        assert code.name in text or f"{code.name.removesuffix('_V2')}` and its short form" in text, code.name
    assert re.search(r"^## .*([Ee]xample|Your own)", text, re.MULTILINE)


@pytest.mark.parametrize("page", ["schedule", "order"])
def test_the_example_runs(page: str) -> None:
    program = blocks(page, "python")[-1]
    exec(compile(program, f"{page}.md", "exec"), {"__name__": "__main__"})
