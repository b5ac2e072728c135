"""The whole configuration: the file, the environment and the flags together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import attrs
import pytest

from verniermq.kernel.config import Configuration, PluginPlace, load, setting
from verniermq.kernel.errors import ConfigError

Loader = Callable[..., Configuration]


@pytest.fixture
def load_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Loader:
    """Load a configuration from the text of a file that is called ``broker.toml``."""
    monkeypatch.chdir(tmp_path)

    def loader(
        text: str = "", flags: Mapping[str, object] | None = None, environ: Mapping[str, str] | None = None
    ) -> Configuration:
        Path("broker.toml").write_text(text, encoding="utf-8")
        return load(Path("broker.toml"), flags or {}, environ or {})

    return loader


@attrs.frozen
class Limits:
    rate: int = setting(100, "Messages a second.", at_least=1)


@attrs.frozen
class Schedule:
    levels: list[str] = setting(["1s", "5s"], "The delays.")
    most: int = setting(18, "How many.", at_least=1)
    limits: Limits = setting(Limits(), "Limits.")
    token: str = setting("", "A token.", secret=True, check=lambda text: "8 or more" if 0 < len(text) < 8 else None)


def test_without_a_file_there_are_the_defaults() -> None:
    configuration = load(None, environ={})

    assert configuration == Configuration()
    assert configuration.broker.port == 10911
    assert configuration.store.segment_size == 1 << 30
    assert configuration.store.flush_interval == 0.5
    assert configuration.plugins.enable == ("default",)


def test_flags_go_before_the_environment_and_that_before_the_file(load_text: Loader) -> None:
    text = '[broker]\nname = "file"\ncluster = "file"\nport = 1\n[store]\nflush = "sync"\n'
    environ = {"VERNIERMQ_BROKER_CLUSTER": "environment", "VERNIERMQ_BROKER_PORT": "2", "HOME": "/root"}

    configuration = load_text(text, {"broker.port": 3}, environ)

    assert configuration.broker.name == "file"
    assert configuration.broker.cluster == "environment"
    assert configuration.broker.port == 3
    assert configuration.store.flush == "sync"


def test_texts_from_outside_are_read_by_kind() -> None:
    environ = {
        "VERNIERMQ_BROKER_VIP_PORT": "off",
        "VERNIERMQ_BROKER_NAMESRV": "a:9876, b:9876",
        "VERNIERMQ_STORE_SEGMENT_SIZE": "64MiB",
        "VERNIERMQ_STORE_FLUSH_INTERVAL": "2",
        "VERNIERMQ_PLUGINS_ENABLE": "",
        "VERNIERMQ_PLUGINS_DISABLE": '["x,y", "z"]',
    }
    configuration = load(None, {"broker.port": "0", "topics.auto_create": "no"}, environ)

    assert configuration.broker.vip_port is False
    assert configuration.broker.namesrv == ("a:9876", "b:9876")
    assert configuration.store.segment_size == 64 << 20
    assert configuration.store.flush_interval == 2.0
    assert configuration.plugins.enable == ()
    assert configuration.plugins.disable == ("x,y", "z")
    assert configuration.broker.port == 0
    assert configuration.topics.auto_create is False


def test_the_file_can_be_named_in_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('[broker]\nname = "mine"\n')

    assert load(None, environ={"VERNIERMQ_CONFIG": str(path)}).broker.name == "mine"


def test_variables_of_the_interop_tests_are_no_settings() -> None:
    assert load(None, environ={"VERNIERMQ_INTEROP_JAVA": "x"}) == Configuration()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('[store]\nflush = "fast"', '[store] flush = "fast" is not one of "async", "sync"'),
        ('[broker]\nport = "x"', '[broker] port = "x": expected a whole number from 0 to 65535'),
        ("[broker]\nprot = 1", "[broker] has no setting 'prot'; did you mean 'port'?"),
        ("[stor]", "there is no section [stor]; did you mean 'store'?"),
        (
            "[namesrv]",
            "there is no section [namesrv]; it knows broker, clients, groups, log, offsets, plugins, pull, "
            "remoting, store, tls, topics; a plugin's settings are in [plugins.namesrv]",
        ),
        ("store = 3", "store = 3: expected a table, [store]"),
        ("plugins = 3", "plugins = 3: expected a table, [plugins]"),
        ("[broker]\nname = 'a b'", '[broker] name = "a b": expected 1 to 127 letters, digits or any of _ - . % | @'),
        ("[broker]\nadvertise = 'a:b'", '[broker] advertise = "a:b": expected an address such as "10.0.0.5"'),
        ("[broker]\nnamesrv = ['h:0']", '[broker] namesrv = ["h:0"]: expected addresses with ports'),
        ("[store]\npath = ''", '[store] path = "": expected a text that is not empty'),
        ("[plugins]\nenabel = []", "[plugins] has no setting 'enabel'; did you mean 'enable'?"),
        ("[plugins.x]\nbefore = 3", "[plugins.x] before = 3: expected a list, each item a text"),
        ("[store]\nsegment_size = '1MiB'", "[store] max_message_size = 4MiB does not fit into segment_size = 1MiB"),
        ("[store]\nmax_message_size = '16MiB'", "[store] max_message_size = 16MiB and [remoting] max_header_size"),
        ("[broker]\nport = \n", "is not TOML: Invalid value (at line 2, column 8)"),
        (
            "[broker]\nport",
            "is not TOML: Expected '=' after a key in a key/value pair (at line 2, the end of the file)",
        ),
    ],
)
def test_a_mistake_in_the_file_is_one_line(load_text: Loader, text: str, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_text(text)
    assert str(caught.value).startswith(f"broker.toml: {line}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("flags", "environ", "line"),
    [
        (
            {},
            {"VERNIERMQ_BROKER_PROT": "1"},
            "environment: VERNIERMQ_BROKER_PROT is not a setting; did you mean 'VERNIERMQ_BROKER_PORT'?",
        ),
        (
            {},
            {"VERNIERMQ_BROKER_PORT": "x"},
            'VERNIERMQ_BROKER_PORT: [broker] port = "x": expected a whole number from 0 to 65535',
        ),
        (
            {},
            {"VERNIERMQ_BROKER_VIP_PORT": "2"},
            'VERNIERMQ_BROKER_VIP_PORT: [broker] vip_port = "2": expected true or false',
        ),
        ({"broker.port": -1}, {}, "command line: [broker] port = -1: expected a whole number from 0 to 65535"),
        ({"broker.prt": 1}, {}, "command line: [broker] has no setting 'prt'; did you mean 'port'?"),
        ({"brok.port": 1}, {}, "command line: 'brok.port' is not a setting; did you mean 'broker.port'?"),
        ({"broker": 1}, {}, "command line: 'broker' is not a setting; did you mean 'broker."),
    ],
)
def test_a_mistake_elsewhere_names_its_place(flags: dict[str, object], environ: dict[str, str], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, flags, environ)
    assert str(caught.value).startswith(line)


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none.toml: there is no such file"):
        load(tmp_path / "none.toml", environ={})
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load(tmp_path, environ={})
    (tmp_path / "latin.toml").write_bytes(b'a = "\xe4"')
    with pytest.raises(ConfigError, match="is not UTF-8 text: byte 5"):
        load(tmp_path / "latin.toml", environ={})


# --- plugins -------------------------------------------------------------------------------


def test_a_plugins_table_waits_for_its_class(load_text: Loader) -> None:
    text = """
        [plugins.schedule]
        levels = ["9s"]
        before = ["retry"]
        from = "pkg:Plugin"
        [plugins.schedule.limits]
        rate = 5
    """

    configuration = load_text(text)

    assert configuration.plugin("schedule", Schedule) == Schedule(levels=["9s"], limits=Limits(5))
    assert configuration.place("schedule") == PluginPlace(before=("retry",), from_="pkg:Plugin")
    assert configuration.plugin("other", Schedule) == Schedule()
    assert configuration.place("other") == PluginPlace()


def test_the_environment_and_flags_reach_plugins_too(load_text: Loader) -> None:
    text = '[plugins.my-schedule]\nlevels = ["9s"]\nmost = 1\n'
    environ = {
        "VERNIERMQ_PLUGINS_MY_SCHEDULE_LEVELS": "1s,2s",
        "VERNIERMQ_PLUGINS_MY_SCHEDULE_MOST": "2",
        "VERNIERMQ_PLUGINS_MY_SCHEDULE_LIMITS_RATE": "7",
        "VERNIERMQ_PLUGINS_MY_SCHEDULE_AFTER": "acl",
    }

    configuration = load_text(text, {"plugins.my-schedule.most": "3"}, environ)

    assert configuration.plugin("my-schedule", Schedule) == Schedule(["1s", "2s"], 3, Limits(7))
    assert configuration.place("my-schedule") == PluginPlace(after=("acl",))
    configuration.check_plugins({"my-schedule": Schedule})


@pytest.mark.parametrize(
    ("text", "flags", "environ", "line"),
    [
        (
            "[plugins.schedule]\nlevel = []",
            {},
            {},
            "broker.toml: [plugins.schedule] has no setting 'level'; did you mean 'levels'?",
        ),
        (
            "",
            {"plugins.schedule.most": "x"},
            {},
            'command line: [plugins.schedule] most = "x": expected a whole number of at least 1',
        ),
        (
            "",
            {},
            {"VERNIERMQ_PLUGINS_SCHEDULE_MOST": "0"},
            'VERNIERMQ_PLUGINS_SCHEDULE_MOST: [plugins.schedule] most = "0": expected',
        ),
        (
            "",
            {},
            {"VERNIERMQ_PLUGINS_SCHEDULE_LIMITS_RATE": "0"},
            "VERNIERMQ_PLUGINS_SCHEDULE_LIMITS_RATE: [plugins.schedule.limits] rate",
        ),
        (
            "",
            {},
            {"VERNIERMQ_PLUGINS_SCHEDULE_TOKEN": "hush"},
            'VERNIERMQ_PLUGINS_SCHEDULE_TOKEN: [plugins.schedule] token = "***": expected 8 or more',
        ),
        (
            "",
            {},
            {"VERNIERMQ_PLUGINS_SCHEDULE_MOSD": "1"},
            "environment: VERNIERMQ_PLUGINS_SCHEDULE_MOSD is not a setting; "
            "did you mean 'VERNIERMQ_PLUGINS_SCHEDULE_MOST'?",
        ),
        (
            "[plugins.shedule]",
            {},
            {},
            "broker.toml: [plugins.shedule] is for a plugin that is not there; did you mean 'schedule'?",
        ),
        ("", {"plugins.shedule.a": 1}, {}, "command line: [plugins.shedule] is for a plugin that is not there"),
    ],
)
def test_a_mistake_about_a_plugin_names_its_place(
    load_text: Loader, text: str, flags: dict[str, object], environ: dict[str, str], line: str
) -> None:
    configuration = load_text(text, flags, environ)

    def ask_as_the_host_does() -> None:
        configuration.plugin("schedule", Schedule)
        configuration.check_plugins({"schedule": Schedule, "acl": None})

    with pytest.raises(ConfigError) as caught:
        ask_as_the_host_does()
    assert str(caught.value).startswith(line)


def test_settings_of_a_plugin_that_is_not_loaded_are_left_alone(load_text: Loader) -> None:
    configuration = load_text("[plugins.acl]\nwhatever = 1\n", environ={"VERNIERMQ_PLUGINS_ACL_WHATEVER": "2"})
    configuration.check_plugins({"acl": None})


def test_a_plugin_cannot_take_the_hosts_keys() -> None:
    clash = attrs.make_class("Clash", {"before": attrs.field(default=1)})
    with pytest.raises(ConfigError, match="plugin 'x' has a setting 'before'"):
        load(None, environ={}).plugin("x", clash)


def test_a_plugins_secret_is_not_in_the_configurations_repr(load_text: Loader) -> None:
    environ = {"VERNIERMQ_PLUGINS_SCHEDULE_TOKEN": "hush-from-outside"}
    configuration = load_text('[plugins.schedule]\ntoken = "hush-hush"\n', environ=environ)
    assert "hush" not in repr(configuration) + repr(configuration.origin)
    assert "hush" not in repr(configuration.plugin("schedule", Schedule))
