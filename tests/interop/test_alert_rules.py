"""Prometheus' own tool takes the alert rules and what a broker shows (Debian's package ``prometheus``)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import anyio
import pytest

from tests.metrics.test_metrics import METRICS, busy
from tests.plugins.peer import peer
from tests.plugins.watching import look
from verniermq.testing import running_broker

SCRIPT = Path(__file__).with_name("promtool.sh")
RULES = Path(__file__).parents[2] / "contrib" / "metrics" / "verniermq.rules.yml"


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    subprocess.run([str(SCRIPT)], check=True, timeout=300)


def promtool(*arguments: str, text: str = "") -> str:
    done = subprocess.run(["promtool", *arguments], input=text, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_promtool_takes_the_alerts() -> None:
    assert "9 rules found" in promtool("check", "rules", str(RULES))


def test_promtool_takes_what_a_broker_shows(tmp_path: Path) -> None:
    async def text() -> str:
        async with running_broker(tmp_path, **METRICS) as broker, peer(broker.address) as client:
            await busy(broker, client)
            return (await look(broker, "/metrics")).text

    shown = anyio.run(text)
    done = subprocess.run(["promtool", "check", "metrics"], input=shown, capture_output=True, text=True, timeout=60)
    # Exit code 3 means matters of style: Apache's names do not follow them all.
    assert done.returncode in (0, 3), done.stdout + done.stderr
