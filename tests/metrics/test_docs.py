"""The page lists each metric with its kind, its labels and its meaning, and the settings with their defaults."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.metrics.test_metrics import METRICS
from verniermq.contrib.metrics import Config
from verniermq.contrib.metrics.exporter import ExporterMetrics
from verniermq.kernel.config.structure import structure
from verniermq.testing import running_broker

pytestmark = pytest.mark.anyio

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()


async def test_every_metric_is_on_the_page(tmp_path: Path) -> None:
    settings = METRICS | {"plugins__metrics__names": ["apache", "verniermq", "exporter"]}
    async with running_broker(tmp_path, **settings) as broker:
        metrics = [metric for registry in broker.registries for metric in registry.metrics]

    for metric in metrics:
        labels = ", ".join(f"`{label}`" for label in metric.labels) or "–"
        if metric.name.startswith(ExporterMetrics.PREFIXES):
            assert f"| `{metric.name}` | {metric.help} |" in PAGE, metric.name
        else:
            assert f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |" in PAGE, metric.name


def test_the_documented_settings_are_the_defaults() -> None:
    block = PAGE.partition("```toml\n")[2].partition("```")[0]
    assert structure(Config, tomllib.loads(block)["plugins"]["metrics"], "plugins.metrics") == Config()
