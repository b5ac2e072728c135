"""The dashboard and the alerts speak of metrics that a real broker shows, with labels that they have."""

from __future__ import annotations

import re
from pathlib import Path

import orjson
import pytest

from tests.metrics.test_metrics import METRICS, Scrape, busy, consume, scrape
from tests.plugins.peer import peer
from verniermq.testing import running_broker

pytestmark = pytest.mark.anyio

FOLDER = Path(__file__).parents[2] / "contrib" / "metrics"
USUAL = {"cluster", "node_id", "consumer_group", "topic", "plugin"}
"""Of those that have no figures now."""
NAME = re.compile(r"\b(?:rocketmq|verniermq)_\w+")
WORD = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"")
BY = re.compile(r"\b(?:by|on)\s*\(([^)]*)\)")


@pytest.fixture
async def shown(tmp_path: Path) -> Scrape:
    async with running_broker(tmp_path, **METRICS) as broker, peer(broker.address) as client:
        await busy(broker, client)
        await consume(client, "billing", "orders", 0)
        return await scrape(broker)


def family(name: str) -> str:
    return re.sub(r"_(bucket|count|sum)$", "", name)


def unresolved(expressions: list[str], shown: Scrape) -> list[str]:
    """What an expression names and the broker does not show."""
    wrong = []
    for expression in expressions:
        names = NAME.findall(re.sub(r'"[^"]*"', "", expression))
        assert names or "up{" in expression, expression
        labels: set[str] = {"le", "job"}
        for name in names:
            if name not in shown.kinds and family(name) not in shown.kinds:
                wrong.append(f"{name} in {expression}")
            labels |= shown.labels(name) if name in shown.samples else USUAL
        used = set(WORD.findall(expression)) | {
            word.strip() for group in BY.findall(expression) for word in group.split(",")
        }
        if names:
            wrong += [f"{label} in {expression}" for label in used - labels]
    return wrong


async def test_every_expression_of_the_dashboard_is_resolved(shown: Scrape) -> None:
    dashboard = orjson.loads((FOLDER / "dashboard.json").read_bytes())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]

    assert len(expressions) > 25
    assert unresolved(expressions, shown) == []
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    assert unresolved(["rocketmq_nothing"], shown) == ["rocketmq_nothing in rocketmq_nothing"]


async def test_every_expression_of_the_nine_alerts_is_resolved(shown: Scrape) -> None:
    text = (FOLDER / "verniermq.rules.yml").read_text()
    blocks = re.findall(r"- alert: (\w+)\n\s+expr: (.*?)\n\s+(?:for|labels):", text, re.DOTALL)
    expressions = [" ".join(expression.removeprefix(">-").split()) for _, expression in blocks]

    assert len(blocks) == text.count("- alert:") == 9
    assert unresolved(expressions, shown) == []
