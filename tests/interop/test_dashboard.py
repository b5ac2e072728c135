"""What the pages of ``rocketmq-dashboard`` ask for, with the library that it uses; users and rights: ``test_acl``."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from .toolchains import java_command, server_classpath
from .verniermq_process import VernierMQBroker

pytestmark = pytest.mark.timeout(240)

ANSWERS = {
    "clusters": "[DefaultCluster]", "version": "V5_3_3", "brokerName": "broker-a",
    "queues": "1", "retries": "3", "topicIsThere": "true", "groupIsThere": "true", "received": "5",
    "topicIsListed": "true", "route": "broker-a", "messages": "5", "readers": "[watched]", "sent": "true",
    "pulled": "true", "producers": "1",
    "language": "JAVA", "clientsOfBroker": "1", "running": "2", "directly": "CR_SUCCESS",
    "behind": "0", "behindAtBroker": "0", "reset": "[0]", "resetOld": "0",
    "found": "body 4", "viewed": "body 4", "track.watched": "CONSUMED", "topicIsGone": "true", "groupIsGone": "true",
}  # fmt: skip


def test_every_page_of_the_dashboard_is_answered(tmp_path: Path) -> None:
    calls = Path(__file__).parent / "server" / "DashboardCalls.java"
    with VernierMQBroker(tmp_path) as broker:
        options = ("-Xmx256m", "-cp", server_classpath(), str(calls), broker.namesrv)
        done = subprocess.run(
            java_command(*options, home=tmp_path), capture_output=True, text=True, timeout=200, cwd=tmp_path
        )

    shown = dict(line.split("\t", 1) for line in done.stdout.splitlines() if "\t" in line)
    assert done.returncode == 0, done.stdout + done.stderr
    assert shown == ANSWERS
