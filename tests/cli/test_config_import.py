"""RocketMQ's own names: a hint where they are written, and a whole file translated."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from verniermq.cli import main
from verniermq.kernel.config import load

CONF = """
# what a tutorial says
brokerClusterName = DefaultCluster
brokerName=broker-x
brokerId=0
brokerRole=ASYNC_MASTER
flushDiskType=SYNC_FLUSH
deleteWhen=04
fileReservedTime=48
messageDelayLevel=1s 5s 10s
namesrvAddr=10.0.0.1:9876;10.0.0.2:9876
autoCreateTopicEnable=false
transactionTimeOut=6000
mapedFileSizeCommitLog=1073741824
sendMessageThreadPoolNums=16
"""


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ('brokerName = "x"', "RocketMQ's brokerName is name in [broker]"),
        ('[broker]\nbrokerRole = "SLAVE"', "RocketMQ's brokerRole is role in [plugins.ha]"),
        ('[store]\nflushDiskType = "SYNC_FLUSH"', "RocketMQ's flushDiskType is flush in [store]"),
        ('[store]\nflush = "SYNC_FLUSH"', 'did you mean "sync"?'),
        ('[broker]\nmessageDelayLevel = "1s"', "RocketMQ's messageDelayLevel is levels in [plugins.schedule]"),
    ],
)
def test_a_name_of_rocketmqs_gets_a_hint(tmp_path: Path, text: str, hint: str) -> None:
    (tmp_path / "broker.toml").write_text(text)

    refused = CliRunner().invoke(main, ["config", "check", "--config", str(tmp_path / "broker.toml")])

    assert refused.exit_code == 2
    assert hint in refused.output


def test_the_list_of_plugins_has_the_hint_too(tmp_path: Path) -> None:
    (tmp_path / "broker.toml").write_text('[plugins.schedule]\nmessageDelayLevel = "1s"\n')

    listed = CliRunner().invoke(main, ["plugins", "--config", str(tmp_path / "broker.toml"), "--json"])

    reasons = {entry["name"]: entry["reason"] for entry in json.loads(listed.output)["entries"]}
    assert "RocketMQ's messageDelayLevel is levels in [plugins.schedule]" in reasons["schedule"]


def test_a_file_of_rocketmqs_is_translated(tmp_path: Path) -> None:
    conf, made = tmp_path / "broker.conf", tmp_path / "broker.toml"
    conf.write_text(CONF)

    done = CliRunner().invoke(main, ["config", "import", str(conf), "-o", str(made)])
    shown = CliRunner().invoke(main, ["config", "import", str(conf)])
    told = json.loads(CliRunner().invoke(main, ["config", "import", str(conf), "--json"]).output)

    assert done.exit_code == 0, done.output
    assert shown.output == made.read_text()
    configuration = load(made, {}, {})
    assert (configuration.broker.name, configuration.store.flush) == ("broker-x", "sync")
    assert configuration.broker.namesrv == ("10.0.0.1:9876", "10.0.0.2:9876")
    assert configuration.plugin_tables["schedule"] == {"levels": ["1s", "5s", "10s"]}
    assert configuration.plugin_tables["retention"] == {"delete_when": "04", "max_age": "48h"}
    assert configuration.plugin_tables["txn"] == {"timeout": "6000ms"}
    assert not configuration.topics.auto_create
    assert "# sendMessageThreadPoolNums: has no setting here" in made.read_text()
    assert "# brokerRole: a broker with id 0 is a master" in made.read_text()
    assert "ha" not in configuration.plugin_tables
    assert told["settings"] == tomllib.loads(made.read_text())
    assert {"name": "sendMessageThreadPoolNums", "why": "has no setting here"} in told["left_out"]


def test_a_file_of_a_slave_makes_a_slave(tmp_path: Path) -> None:
    conf, made = tmp_path / "broker.conf", tmp_path / "broker.toml"
    conf.write_text("brokerId=1\nbrokerRole=SLAVE\nslaveReadEnable=true\nnamesrvAddr=10.0.0.1:9876\n")

    done = CliRunner().invoke(main, ["config", "import", str(conf), "-o", str(made)])

    assert done.exit_code == 0, done.output
    configuration = load(made, {}, {})
    assert configuration.plugins.enable == ("default", "ha")
    assert configuration.plugin_tables["ha"] == {"role": "slave", "slave_reads": True}
    assert configuration.broker.id == 1


@pytest.mark.parametrize(
    ("conf", "warned"),
    [
        ("namesrvAddr=10.0.0.1:9876\n", True),
        ("namesrvAddr=names.example:9876\nbrokerName=b\n", True),
        ("namesrvAddr=10.0.0.1:9876\nbrokerIP1=10.0.0.5\n", False),
        ("namesrvAddr=127.0.0.1:9876;localhost:9877\n", False),
    ],
)
def test_a_broker_that_name_servers_elsewhere_would_call_loopback_is_warned_of(
    tmp_path: Path, conf: str, warned: bool
) -> None:
    file, made = tmp_path / "broker.conf", tmp_path / "broker.toml"
    file.write_text(conf)

    done = CliRunner().invoke(main, ["config", "import", str(file), "-o", str(made)])
    checked = CliRunner().invoke(main, ["config", "check", str(made)])
    as_json = json.loads(CliRunner().invoke(main, ["config", "check", str(made), "--json"]).output)

    assert (done.exit_code, checked.exit_code) == (0, 0), checked.output
    assert ("# brokerIP1 is not said" in made.read_text(), "brokerIP1 is not said" in done.stderr) == (warned, warned)
    assert ("would tell clients 127.0.0.1" in checked.stderr, "fine" in checked.stdout) == (warned, not warned)
    assert bool(as_json["warning"]) == warned


def test_a_value_that_no_broker_would_take_is_refused(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("listenPort=99999999\n")

    refused = CliRunner().invoke(main, ["config", "import", str(conf)])

    assert refused.exit_code == 2
    assert "port" in refused.output
