"""Where plugins come from: built in, installed, a module's attribute, a file; and that found is not active."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernel.enabling import configured, loaded, loaded_from
from verniermq.kernel import PluginError
from verniermq.kernel.config import load
from verniermq.kernel.host.builtin import BROKER_PLUGINS
from verniermq.kernel.host.discovery import installed

SOURCE = """
import pathlib
pathlib.Path(__file__).with_suffix(".imported").write_text("yes")

from verniermq.kernel import Declaration, hookimpl

class Plugin:
    declaration = Declaration(api={api}, summary="Stands for a stranger's.", version="2.5")
    def __init__(self, config, broker):
        self.config = config
    @hookimpl
    def store_opened(self):
        pass
"""


def write_module(folder: Path, name: str, api: int = 1) -> Path:
    """A plugin's module that leaves a mark beside itself when it is imported."""
    path = folder / f"{name}.py"
    path.write_text(SOURCE.format(api=api))
    return path


def was_imported(path: Path) -> bool:
    return path.with_suffix(".imported").exists()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed distribution that offers the plugin ``stranger``: its module and its metadata on the path."""
    name = f"stranger_{tmp_path.name}"
    module = write_module(tmp_path, name)
    metadata = tmp_path / f"{name}-1.2.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
    (metadata / "entry_points.txt").write_text(f"[verniermq]\nstranger = {name}:Plugin\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return module


def test_a_built_in_plugin_is_found_by_its_name() -> None:
    host = loaded(plugins__enable=["filter"])

    assert list(host.active) == ["filter"]
    assert host.active["filter"].candidate.origin == "built-in"


def test_default_stands_for_the_built_in_plugins_of_a_broker() -> None:
    assert set(loaded().active) == set(BROKER_PLUGINS.defaults)


def test_an_installed_plugin_is_found_by_its_entry_point(package: Path) -> None:
    host = loaded(plugins__enable=["stranger"])

    candidate = host.active["stranger"].candidate
    assert candidate.origin == f"{package.stem} 1.2"
    assert candidate.version == "1.2"


def test_what_is_installed_but_not_named_is_known_and_not_imported(package: Path) -> None:
    host = loaded(plugins__enable=["default"])

    assert "stranger" in installed(BROKER_PLUGINS.group)
    assert "stranger" not in host.active
    assert not was_imported(package)


def test_what_is_disabled_is_not_imported(package: Path) -> None:
    host = loaded(plugins__enable=["filter", "stranger"], plugins__disable=["stranger"])

    assert list(host.active) == ["filter"]
    assert not was_imported(package)


def test_a_plugin_is_found_by_module_and_attribute(package: Path) -> None:
    host = loaded(plugins__enable=[f"{package.stem}:Plugin"])

    assert list(host.active) == [package.stem]
    assert host.active[package.stem].candidate.version == "2.5"


def test_a_plugin_is_found_by_the_path_of_its_file(tmp_path: Path) -> None:
    path = write_module(tmp_path, "rules")

    assert list(loaded(plugins__enable=[str(path)]).active) == ["rules"]


def test_a_path_is_relative_to_the_configuration_file(tmp_path: Path) -> None:
    write_module(tmp_path, "rules")
    (tmp_path / "broker.toml").write_text('[plugins]\nenable = ["rules.py"]\n')

    host = loaded_from(load(tmp_path / "broker.toml", environ={}))

    assert list(host.active) == ["rules"]


def test_a_table_gives_a_file_the_name_it_wants(tmp_path: Path) -> None:
    path = write_module(tmp_path, "rules")

    host = loaded(plugins__enable=["house_rules"], plugins__house_rules__from=str(path))

    assert list(host.active) == ["house_rules"]


def test_two_files_of_one_name_keep_apart(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write_module(tmp_path / folder, "rules")

    host = loaded(
        plugins__enable=["one", "two"],
        plugins__one__from=str(tmp_path / "a" / "rules.py"),
        plugins__two__from=str(tmp_path / "b" / "rules.py"),
    )

    classes = [type(plugin.instance) for plugin in host.active.values()]
    assert classes[0] is not classes[1]


def test_two_plugins_that_would_have_one_name_are_refused(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write_module(tmp_path / folder, "rules")

    with pytest.raises(PluginError, match=r"two plugins named 'rules'.*give one another name"):
        loaded(plugins__enable=[str(tmp_path / "a" / "rules.py"), str(tmp_path / "b" / "rules.py")])


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("filtre", "enable names 'filtre'.*did you mean 'filter'"),
        ("nowhere.py", "there is no file .*nowhere.py"),
        ("verniermq.nowhere:Plugin", "cannot be imported: ModuleNotFoundError"),
        ("json:Plugin", "cannot be imported: AttributeError"),
        ("json:loads", "is no plugin: it lacks 'declaration"),
    ],
)
def test_a_name_that_leads_nowhere_is_one_line_that_says_so(name: str, complaint: str) -> None:
    with pytest.raises(PluginError, match=complaint) as raised:
        loaded(plugins__enable=[name])
    assert "\n" not in str(raised.value)


def test_a_misspelt_name_to_disable_is_refused() -> None:
    with pytest.raises(PluginError, match="disable names 'namesvr', which does not exist; did you mean 'namesrv'"):
        loaded(plugins__disable=["namesvr"])


def test_a_module_that_raises_on_import_is_named(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("1 / 0\n")

    with pytest.raises(PluginError, match=r"plugin 'broken' .* cannot be imported: ZeroDivisionError") as raised:
        loaded(plugins__enable=[str(path)])
    assert raised.value.plugin == "broken"


def test_the_line_of_the_file_that_raises_on_import_is_told(tmp_path: Path) -> None:
    path = tmp_path / "boom.py"
    path.write_text("import json\n\ndef settings():\n    return json.loads('x')\n\nsettings()\n")

    with pytest.raises(PluginError) as raised:
        loaded(plugins__enable=[str(path)])
    assert str(raised.value).endswith(f"({path}:4)"), "not a line of json"


def test_a_plugin_for_another_api_is_refused(tmp_path: Path) -> None:
    path = write_module(tmp_path, "ahead", api=2)

    with pytest.raises(PluginError, match="written for plugin API 2, this VernierMQ has 1; install a version"):
        loaded(plugins__enable=[str(path)])


def test_a_table_of_a_plugin_that_is_not_active_is_no_mistake(tmp_path: Path, package: Path) -> None:
    path = write_module(tmp_path, "rules")

    configuration = configured(
        plugins__enable=[], plugins__rules__from=str(path), plugins__stranger__anything=1, plugins__filter__max=3
    )
    loaded_from(configuration)

    assert not was_imported(path)
    assert not was_imported(package)


def test_settings_that_do_nothing_are_one_warning_and_defaults_are_none(
    package: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loaded_from(load(Path(__file__).parents[2] / "broker.toml", environ={}))
    loaded(plugins__enable=["default"], plugins__trace__topic="RMQ_SYS_TRACE_TOPIC")
    loaded(plugins__enable=["default"], plugins__disable=["retry"], plugins__retry__anything=1)
    loaded(plugins__enable=[], plugins__trace__topic="mine")
    assert not caplog.messages

    loaded(plugins__enable=["default"], plugins__trace__topic="mine", plugins__stranger__anything=1)

    assert caplog.messages == [
        "broker.toml: [plugins.trace], [plugins.stranger]: not enabled, so these settings do nothing; "
        'enable with [plugins] enable = ["default", "trace", "stranger"]'
    ]
    assert not was_imported(package)


def test_an_installed_plugin_may_be_spoken_of_without_being_active(package: Path) -> None:
    loaded_from(configured(plugins__enable=["filter"], plugins__filter__before=["stranger"]))
    loaded_from(load(None, {"plugins.enable": ["filter"]}, environ={"VERNIERMQ_PLUGINS_STRANGER_A": "1"}))

    assert not was_imported(package)


@pytest.mark.parametrize("flag", ["--no-plugins", "--no-plugins=rules"])
def test_no_plugins_takes_effect_before_anything_is_imported(tmp_path: Path, flag: str) -> None:
    path = write_module(tmp_path, "rules")
    (tmp_path / "broker.toml").write_text('[plugins]\nenable = ["rules.py"]\n')

    command = [sys.executable, "-m", "verniermq.cli", "plugins", "--config", str(tmp_path / "broker.toml"), flag]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert not was_imported(path)


@pytest.mark.parametrize(("mode", "runs"), [(0o755, True), (0o775, True), (0o1777, True), (0o777, False)])
def test_a_plugins_file_that_anybody_may_replace_is_not_run(tmp_path: Path, mode: int, runs: bool) -> None:
    folder = tmp_path / "plugins"
    folder.mkdir()
    path = write_module(folder, "shared")
    folder.chmod(mode)

    if runs:
        assert list(loaded(plugins__enable=[str(path)]).active) == ["shared"]
    else:
        with pytest.raises(PluginError, match=f"may be replaced by anybody .* run: chmod o-w {folder}$"):
            loaded(plugins__enable=[str(path)])
    assert was_imported(path) == runs
