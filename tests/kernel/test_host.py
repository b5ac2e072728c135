"""One broker's plugins: ordered, configured, checked against the specifications."""

from __future__ import annotations

import re
from typing import Any, ClassVar

import attrs
import pytest

from tests.kernel.enabling import enabled, loaded
from verniermq.kernel import ConfigError, Context, Declaration, PluginError, PluginHost, hookimpl, hookspecs, setting
from verniermq.kernel.hookspec import kind_of, specifications_in
from verniermq.testing import running_broker


class Plain:
    declaration: ClassVar = Declaration(api=1, summary="Hears of connections.")

    def __init__(self, config: Any, broker: Context) -> None:
        self.config = config

    @hookimpl
    def connection_closed(self, connection: Any) -> None: ...


class Early(Plain):
    declaration: ClassVar = Declaration(api=1, summary="Wants to be before a.", before=("a",))


class Late(Plain):
    declaration: ClassVar = Declaration(api=1, summary="Wants to be after c.", after=("c",))


class Needy(Plain):
    declaration: ClassVar = Declaration(api=1, summary="Needs c.", needs=("c",))


class First(Plain):
    @hookimpl(tryfirst=True)
    def connection_closed(self, connection: Any) -> None: ...


def order(host: PluginHost) -> list[str]:
    return [call.plugin.name for call in host.calls(hookspecs.connection_closed)]


# --- order ---------------------------------------------------------------------------------


def test_plugins_are_called_in_the_order_in_which_they_are_named() -> None:
    assert order(loaded(**enabled(c=Plain, a=Plain, b=Plain))) == ["c", "a", "b"]


def test_a_declaration_moves_its_plugin_and_nobody_else() -> None:
    assert order(loaded(**enabled(a=Plain, b=Plain, x=Early))) == ["b", "x", "a"]
    assert order(loaded(**enabled(a=Plain, x=Late, b=Plain, c=Plain, d=Plain))) == ["a", "b", "c", "x", "d"]


def test_broker_toml_moves_a_plugin_too() -> None:
    settings = enabled(a=Plain, b=Plain, c=Plain)

    assert order(loaded(**settings, plugins__c__before=["a"])) == ["b", "c", "a"]
    assert order(loaded(**settings, plugins__a__after=["b"])) == ["b", "a", "c"]


def test_a_place_beside_an_inactive_plugin_means_nothing() -> None:
    assert order(loaded(**enabled(a=Plain, b=Plain), plugins__b__before=["schedule"])) == ["a", "b"]


def test_a_place_beside_an_unknown_plugin_is_refused() -> None:
    with pytest.raises(PluginError, match="beside 'filtre', which does not exist; did you mean 'filter'"):
        loaded(**enabled(a=Plain), plugins__a__before=["filtre"])


def test_a_circle_is_refused_with_its_members() -> None:
    with pytest.raises(PluginError, match=r"in a circle: (x → a → x|a → x → a)"):
        loaded(**enabled(a=Plain, x=Early), plugins__a__before=["x"])


def test_tryfirst_goes_before_the_order() -> None:
    assert order(loaded(**enabled(a=Plain, b=First))) == ["b", "a"]


def test_what_a_plugin_needs_comes_before_it() -> None:
    assert order(loaded(**enabled(x=Needy, c=Plain))) == ["c", "x"]


def test_a_plugin_without_what_it_needs_is_refused() -> None:
    with pytest.raises(PluginError, match="plugin 'x' needs 'c', which is not active; enable it in") as raised:
        loaded(**enabled(x=Needy))
    assert raised.value.plugin == "x"


# --- hooks ---------------------------------------------------------------------------------


def test_a_hook_that_nobody_implements_is_an_empty_list() -> None:
    host = loaded(plugins__enable=[])

    assert {hook: host.implementations(hook) for hook in host.hook_names} == {hook: [] for hook in host.hook_names}


class Misspelt(Plain):
    @hookimpl
    def before_apend(self, message: Any) -> None: ...


class WrongArgument(Plain):
    @hookimpl
    def before_append(self, msg: Any) -> None: ...


class Wrapper(Plain):
    @hookimpl(wrapper=True)
    def before_append(self, message: Any) -> Any:
        return (yield)


class Failing(Plain):
    def __init__(self, config: Any, broker: Context) -> None:
        raise OSError("the file of rules is gone")


@pytest.mark.parametrize(
    ("plugin_class", "complaint"),
    [
        (Misspelt, "implements 'before_apend', which is no hook; did you mean 'before_append'?"),
        (WrongArgument, "does not fit:.*msg"),
        (Wrapper, "before_append is a wrapper; order plugins with before and after instead"),
        (Failing, "cannot be made: OSError: the file of rules is gone"),
    ],
)
def test_what_does_not_fit_is_an_error_at_the_start(plugin_class: type, complaint: str) -> None:
    with pytest.raises(PluginError, match=f"plugin 'x'.*{complaint}") as raised:
        loaded(**enabled(x=plugin_class))
    assert raised.value.plugin == "x"


KINDS = {name: kind_of(specification) for name, specification in specifications_in(hookspecs).items()}


def _waiting_class(hook: str) -> type:
    async def implementation(self: Any) -> None: ...

    implementation.__name__ = hook
    return type("Waiting", (Plain,), {hook: hookimpl(implementation)})


# Classes that the host can import by name, one for each hook.
globals().update({f"Waiting_{hook}": _waiting_class(hook) for hook in KINDS})


@pytest.mark.parametrize("hook", [hook for hook, kind in KINDS.items() if kind and not kind.may_wait])
def test_a_hook_whose_answer_is_needed_at_once_must_be_plain(hook: str) -> None:
    with pytest.raises(PluginError, match=f"{hook} must be a plain def, since its answer is needed at once"):
        loaded(plugins__enable=["x"], plugins__x__from=f"{__name__}:Waiting_{hook}")


@pytest.mark.parametrize("hook", [hook for hook, kind in KINDS.items() if kind and kind.may_wait])
def test_the_other_hooks_may_be_async(hook: str) -> None:
    host = loaded(plugins__enable=["x"], plugins__x__from=f"{__name__}:Waiting_{hook}")

    assert [call.is_async for call in host.implementations(hook)] == [True]


# --- settings ------------------------------------------------------------------------------


@attrs.frozen
class Config:
    max_tags: int = setting(64, "How many tags.", at_least=1)


class Configured(Plain):
    declaration: ClassVar = Declaration(api=1, summary="Has a setting.", config=Config)


def test_a_plugin_gets_its_settings_as_its_own_class() -> None:
    host = loaded(**enabled(x=Configured), plugins__x__max_tags=3)

    assert host.active["x"].instance.config == Config(max_tags=3)


def test_an_unknown_setting_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match=r"\[plugins.x\].*'?max_tag'?.*max_tags") as raised:
        loaded(**enabled(x=Configured), plugins__x__max_tag=3)
    assert raised.value.plugin == "x"


def test_a_wrong_value_is_refused_with_key_and_value() -> None:
    with pytest.raises(ConfigError, match=re.compile("max_tags.*0", re.DOTALL)):
        loaded(**enabled(x=Configured), plugins__x__max_tags=0)


def test_a_table_for_nobody_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"\[plugins.filtr\].*not there; did you mean 'filter'"):
        loaded(plugins__filtr__max_tags=1)


# --- one host per broker -------------------------------------------------------------------


async def test_two_brokers_in_one_process_have_plugins_of_their_own() -> None:
    async with (
        running_broker(**enabled(a=Plain)) as one,
        running_broker(**enabled("filter", a=Plain, b=Plain)) as other,
    ):
        assert list(one.host.active) == ["a"]
        assert list(other.host.active) == ["filter", "a", "b"]
        assert one.host.active["a"].instance is not other.host.active["a"].instance
