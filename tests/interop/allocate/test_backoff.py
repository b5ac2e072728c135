"""Apache's Java client at a broker whose flow rules refuse part of its requests."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.interop.allocate.build import java_program
from tests.interop.verniermq_process import VernierMQBroker
from verniermq.kernel import ResponseCode
from verniermq.plugins.flow.command import _ask

pytestmark = pytest.mark.timeout(180)

RULES = """
[[plugins.flow.rules]]
resource = "eager-producers:limited"
count = 40

[[plugins.flow.rules]]
resource = "eager-consumers:limited"
count = 40
"""
MESSAGES = 200


def test_java_clients_back_off_and_lose_nothing(tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    config.write_text(RULES)
    with VernierMQBroker(tmp_path, config=config) as broker:
        command = [*java_program("Backoff"), broker.namesrv, "limited", str(MESSAGES)]
        run = subprocess.run(command, capture_output=True, text=True, timeout=150, check=True, cwd=tmp_path)
        (told,) = _ask(broker.namesrv, None).values()

    summary = json.loads(run.stdout.splitlines()[-1])
    figures = {resource["name"]: resource for resource in told["resources"]}
    assert summary["codes"] == [ResponseCode.SYSTEM_BUSY], "a refused send is SYSTEM_BUSY, once its retries are used up"
    assert summary["received"] == MESSAGES, "a refused pull is asked again, and everything arrives"
    # Each refused send was tried three times by the client; a refused pull came again, and was neither hammered
    # (no pause at all would be thousands) nor given up.
    assert figures["resource eager-producers:limited"]["blocked"] >= 3 * summary["refused"] > 0
    assert 0 < figures["resource eager-consumers:limited"]["blocked"] < 5000
