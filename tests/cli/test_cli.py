"""The command ``verniermq``, run as a user runs it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from verniermq.cli import main

ROOT = Path(__file__).parent.parent.parent


def run(*arguments: str, environment: dict[str, str] | None = None, cwd: Path | None = None) -> Result:
    """In this process, for what ends by itself and starts no broker."""
    with contextlib.chdir(cwd or Path()):
        return CliRunner().invoke(main, arguments, env=environment)


def start(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "verniermq.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, cwd=cwd)


def test_the_file_in_the_repository_is_what_the_classes_say() -> None:
    assert (ROOT / "broker.toml").read_text() == run("config", "default").stdout


def test_the_page_of_commands_is_what_the_commands_say() -> None:
    page = subprocess.run(
        [sys.executable, "-m", "verniermq.cli.reference"], capture_output=True, text=True, check=True
    ).stdout

    assert (ROOT / "docs" / "commands.md").read_text() == page


FREE_PORTS = "[broker]\nport = 0\n[plugins.namesrv]\nport = 0\n"
"""Ports are tried before plugins are looked for."""


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[broker]\nprt = 1\n", "[broker] has no setting 'prt'; did you mean 'port'?"),
        ("[broker]\nport = 'x'\n", '[broker] port = "x": expected a whole number from 0 to 65535'),
        ("[store]\nflush = 'fast'\n", '[store] flush = "fast" is not one of "async", "sync"'),
        ("[store]\nsegment_size = '1XiB'\n", "segment_size"),
        (
            FREE_PORTS + "[plugins.filter]\nmax_tag = 1\n",
            "[plugins.filter] has no setting 'max_tag'; did you mean 'max_tags'?",
        ),
        (FREE_PORTS + "[plugins]\nenable = ['default', 'schedul']\n", "'schedul'"),
        ("[broker\n", "line 1"),
    ],
)
def test_a_wrong_file_is_one_line_and_exit_code_2(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "broker.toml"
    path.write_text(text)

    result = run("config", "check", "--config", str(path), cwd=tmp_path)

    assert result.exit_code == 2
    assert complaint in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_start_with_a_wrong_file_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_text("[broker]\nport = 'x'\n")

    result = start("broker", "--config", str(path), cwd=tmp_path)

    assert (result.returncode, len(result.stderr.strip().splitlines())) == (2, 1)
    assert '[broker] port = "x"' in result.stderr


def test_an_environment_variable_goes_before_the_file_and_a_flag_before_both(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_text("[broker]\nport = 1000\nname = 'from-file'\n")

    shown = run(
        "config", "show", "--config", str(path), "--set", "broker.id=7",
        environment={"VERNIERMQ_BROKER_PORT": "2000", "VERNIERMQ_BROKER_ID": "5"},
    ).stdout  # fmt: skip

    assert 'name = "from-file"' in shown
    assert "port = 2000" in shown
    assert "id = 7" in shown


def test_plugins_are_listed_with_their_state_and_order() -> None:
    listed = json.loads(run("plugins", "--no-plugins=sql", "--json").stdout)

    states = {entry["name"]: (entry["state"], entry["reason"]) for entry in listed["entries"]}
    assert states["filter"] == ("active", "")
    assert states["sql"] == ("inactive", "in [plugins] disable")
    assert listed["order"]["compile_filter"] == ["filter"]
    assert "compile_filter" in run("plugins", "--graph").stdout


def test_the_list_of_plugins_can_be_read_in_a_terminal_of_80_columns() -> None:
    listed = json.loads(run("plugins", "--json").stdout)

    shown = run("plugins", environment={"COLUMNS": "80"}).stdout.splitlines()

    assert max(map(len, shown)) <= 80
    assert [line.split()[:2] for line in shown] == [[entry["name"], entry["state"]] for entry in listed["entries"]]


def test_one_plugin_is_shown_with_its_settings() -> None:
    listed = {entry["name"]: entry for entry in json.loads(run("plugins", "--json").stdout)["entries"]}

    shown = run("plugins", "show", "retention", environment={"COLUMNS": "80"}).stdout.splitlines()
    unknown = run("plugins", "show", "retentoin")

    assert max(map(len, shown)) <= 80
    names = [line.split(" = ")[0].strip() for line in shown if " = " in line]
    assert names == list(listed["retention"]["settings"])
    assert (unknown.exit_code, "did you mean 'retention'?" in unknown.stderr) == (2, True)


def test_a_name_that_is_like_none_gets_no_other_one() -> None:
    plugin = run("plugins", "show", "nosuch")
    variable = run("config", "check", environment={"VERNIERMQ_FOO": "1"})

    assert (plugin.exit_code, "it knows " in plugin.stderr, "did you mean" in plugin.stderr) == (2, True, False)
    assert (variable.exit_code, "VERNIERMQ_FOO is not a setting" in variable.stderr) == (2, True)
    assert "'verniermq config default' shows all settings" in variable.stderr


def test_a_plugin_that_fails_to_load_is_listed_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise RuntimeError('no licence')\n")
    (tmp_path / "broker.toml").write_text("[plugins]\nenable = ['default', 'broken.py']\n")

    result = run("plugins", "--config", str(tmp_path / "broker.toml"), "--json")

    entries = {entry["name"]: entry for entry in json.loads(result.stdout)["entries"]}
    assert result.exit_code == 1
    assert entries["broken"]["state"] == "failed"
    assert "no licence" in entries["broken"]["reason"]
    assert entries["filter"]["state"] == "active"


@pytest.mark.parametrize(
    ("enabled", "setting", "missing", "told"),
    [
        ("grpc", "plugins.grpc.port=0", "hpack", "plugin 'grpc' needs hpack; install it with: pip install 'verniermq["),
        ("console", "plugins.console.listen=127.0.0.1:0", "jinja2", "plugin 'console' needs jinja2; install it with:"),
        ("zookeeper", "plugins.ha.replica=1", "kazoo", "plugin 'zookeeper' needs kazoo; install it with: pip install"),
        (
            "metrics", "plugins.metrics.otlp=http://localhost:4318",
            "opentelemetry.exporter.otlp.proto.http.metric_exporter", "otlp needs OpenTelemetry's exporter",
        ),
    ],
)  # fmt: skip
def test_a_package_that_a_plugin_needs_is_missed_before_a_start(
    monkeypatch: pytest.MonkeyPatch, enabled: str, setting: str, missing: str, told: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)  # what a module that is not installed looks like to an import
    monkeypatch.delitem(sys.modules, "verniermq.contrib.metrics.otlp", raising=False)
    options = ("--set", f"plugins.enable=default,ha,http,{enabled}", "--set", setting)

    checked = run("config", "check", *options)
    listed = run("plugins", *options, "--json")

    entries = {entry["name"]: entry for entry in json.loads(listed.stdout)["entries"]}
    assert (checked.exit_code, told in checked.stderr, checked.stderr.count("\n")) == (2, True, 1)
    assert (listed.exit_code, entries[enabled]["state"], told in entries[enabled]["reason"]) == (1, "failed", True)


def test_the_list_of_plugins_shows_no_secret_however_deep_it_lies(tmp_path: Path) -> None:
    (tmp_path / "broker.toml").write_text(
        "[plugins]\nenable = ['default', 'acl']\n"
        "[plugins.acl.accounts.orders]\nsecret = 'very-secret-text'\ntopics = { orders = 'PUB' }\n"
    )

    shown = run("plugins", "--config", str(tmp_path / "broker.toml"))
    as_json = run("plugins", "--config", str(tmp_path / "broker.toml"), "--json")

    settings = next(entry["settings"] for entry in json.loads(as_json.stdout)["entries"] if entry["name"] == "acl")
    assert settings["accounts"]["orders"]["secret"] == "***"
    for result in (shown, as_json):
        assert result.exit_code == 0, result.stderr
        assert "very-secret-text" not in result.stdout


def test_a_start_warns_of_a_configuration_that_anybody_may_write_and_runs_no_plugin_of_anybodys(tmp_path: Path) -> None:
    config, plugin = tmp_path / "broker.toml", tmp_path / "rules.py"
    plugin.write_text("open('imported', 'w').close()\n")
    config.write_text(f"[plugins]\nenable = ['rules.py']\n[store]\npath = '{tmp_path}/store'\n")
    config.chmod(0o646)
    plugin.chmod(0o666)

    result = start("broker", "--config", str(config), "--port=0", cwd=tmp_path)
    listed = run("plugins", "--config", str(config), cwd=tmp_path)

    assert result.returncode != 0
    assert f"{config} may be written by anybody on this machine" in result.stderr
    assert f"has mode 0646); run: chmod o-w {config}" in result.stderr
    assert f"plugin 'rules' is not run: {plugin} may be written by anybody" in result.stderr
    assert f"has mode 0666); run: chmod o-w {plugin}" in result.stderr
    assert "Traceback" not in result.stderr
    assert listed.exit_code == 1
    assert not (tmp_path / "imported").exists()


def test_no_plugins_takes_effect_before_any_import(tmp_path: Path) -> None:
    (tmp_path / "noisy.py").write_text("open('imported', 'w').close()\n")
    (tmp_path / "broker.toml").write_text("[plugins]\nenable = ['noisy.py']\n")

    result = run("config", "check", "--config", str(tmp_path / "broker.toml"), "--no-plugins=noisy", cwd=tmp_path)

    assert result.exit_code == 0, result.stderr
    assert not (tmp_path / "imported").exists()


@pytest.mark.parametrize(("pure", "path"), [("", "compiled|plain"), ("1", "plain")])
def test_a_broker_says_where_it_is_and_stops_when_told(tmp_path: Path, pure: str, path: str) -> None:
    ready = tmp_path / "ready.json"
    process = subprocess.Popen(
        [
            sys.executable, "-m", "verniermq.cli", "broker", "--port", "0", "--namesrv-port", "0",
            "--store", str(tmp_path / "store"), "--ready-file", str(ready), "--set", "broker.vip_port=false",
        ],
        stderr=subprocess.PIPE, text=True, env={**os.environ, "VERNIERMQ_PURE": pure},
    )  # fmt: skip
    while not ready.exists():
        assert process.poll() is None
        time.sleep(0.02)
    addresses = json.loads(ready.read_text())

    process.send_signal(signal.SIGTERM)
    _, printed = process.communicate(timeout=30)

    assert process.returncode == 0
    assert addresses["broker"] in printed
    assert addresses["namesrv"] in printed
    assert str(tmp_path / "store") in printed
    assert "reachable from this machine only" in printed
    assert re.search(rf"^path +({path})$", printed, re.MULTILINE)
    assert "verniermq send greetings" in printed
    assert not (tmp_path / "store" / "abort").exists()


def test_the_line_to_try_works_as_it_is_printed(tmp_path: Path) -> None:
    elsewhere = {**os.environ, "PATH": "/usr/bin:/bin"}  # the environment that we are installed in is not active
    process = subprocess.Popen(
        [
            Path(sys.executable).with_name("verniermq"), "broker", "--port", "0", "--namesrv-port", "0",
            "--store", str(tmp_path / "store"), "--set", "broker.vip_port=false",
        ],
        stderr=subprocess.PIPE, text=True, env=elsewhere,
    )  # fmt: skip
    assert process.stderr is not None
    line = next(line.removeprefix("try").strip() for line in process.stderr if line.startswith("try"))

    sent = subprocess.run(line, shell=True, env=elsewhere, capture_output=True, text=True, check=False, timeout=60)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)

    assert sent.returncode == 0, sent.stderr
    assert sent.stdout.startswith("SEND_OK")


def test_two_brokers_on_one_port_are_told_apart(tmp_path: Path) -> None:
    from verniermq.testing import broker_process

    with broker_process() as first:
        port = first.broker.rpartition(":")[2]
        result = start("broker", "--port", port, "--namesrv-port", "0", "--store", str(tmp_path / "other"))

    assert result.returncode == 2
    assert f"port {port}" in result.stderr or f":{port}" in result.stderr
    assert "in use" in result.stderr


def test_a_new_plugin_package_can_be_started_from(tmp_path: Path) -> None:
    result = run("plugin", "new", "order_rules", "--into", str(tmp_path))

    folder = tmp_path / "verniermq-order-rules"
    again = run("plugin", "new", "order_rules", "--into", str(tmp_path))
    by_path = tmp_path / "broker.toml"
    by_path.write_text(f"[plugins]\nenable = ['default', '{folder}/verniermq_order_rules.py']\n")
    listed = json.loads(run("plugins", "--config", str(by_path), "--json").stdout)
    assert result.exit_code == 0, result.stderr
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md", "pyproject.toml", "test_order_rules.py", "verniermq_order_rules.py",
    ]  # fmt: skip
    assert again.exit_code == 2
    assert "verniermq_order_rules" in listed["order"]["before_append"]


def test_a_broker_for_tests_ends_when_it_is_told_to_though_its_input_stays_open(tmp_path: Path) -> None:
    command = ["broker", "--for-tests", "--port", "0", "--namesrv-port", "0", "--store", str(tmp_path / "store")]
    with subprocess.Popen(
        [sys.executable, "-m", "verniermq.cli", *command],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        assert '"ready":true' in process.stdout.readline()
        process.stdin.write("stop\n")
        process.stdin.flush()

        assert process.wait(60) == 0


def test_a_broker_for_tests_that_cannot_start_ends_though_its_input_stays_open(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = ["broker", "--for-tests", "--port", "0", "--namesrv-port", "0", "--store", str(tmp_path / "store")]
        command += ["--set", "plugins.enable=default,ha", "--set", f"plugins.ha.port={port}"]
        with subprocess.Popen(
            [sys.executable, "-m", "verniermq.cli", *command],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        ) as process:  # fmt: skip
            try:
                code = process.wait(60)
            finally:
                process.kill()

            assert code != 0
            assert process.stderr is not None
            assert port in process.stderr.read()


def test_every_help_fits_into_80_columns_and_says_what_each_option_is() -> None:
    long, silent = [], []

    def look(command: click.Command, parent: click.Context | None, name: str) -> None:
        context = click.Context(command, info_name=name, parent=parent, terminal_width=80, max_content_width=80)
        long.extend(line for line in command.get_help(context).splitlines() if len(line) > 80)
        options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
        silent.extend(f"{context.command_path} {option.opts[0]}" for option in options if not option.help)
        if isinstance(command, click.Group):
            for inner in command.list_commands(context):
                found = command.get_command(context, inner)
                assert found is not None
                look(found, context, inner)

    look(main, None, "verniermq")

    assert (long, silent) == ([], [])


def test_a_command_that_is_misspelt_is_answered_with_the_one_that_is_like_it() -> None:
    wrong = CliRunner().invoke(main, ["topci", "list"])

    assert wrong.exit_code == 2
    assert "there is no command 'topci'; did you mean 'topic'?" in wrong.output
