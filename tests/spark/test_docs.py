"""The manual's walk through runs as it is written."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from tests.arrow.producing import Producing
from tests.spark.conftest import WITH_PLUGIN, Source
from verniermq.cli import main
from verniermq.contrib.arrow.options import READ
from verniermq.contrib.arrow.schema import COLUMNS
from verniermq.contrib.spark.writeoptions import WRITE
from verniermq.testing import broker_process

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MANUAL = Path(__file__).parents[2] / "docs" / "spark.md"
SVG = "{http://www.w3.org/2000/svg}"
README = Path(__file__).parents[2] / "README.md"


def test_the_walk_through_runs(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = MANUAL.read_text()
    walk = text[text.index("<!-- walk -->") : text.index("## On a cluster")]
    program = "\n".join(re.findall(r"```python\n(.*?)```", walk, re.DOTALL))

    with broker_process(tmp_path / "store", WITH_PLUGIN) as process:
        exec(compile(program.replace("127.0.0.1:9876", process.namesrv), str(MANUAL), "exec"), {})

    shown = capsys.readouterr().out
    assert re.search(r"\|billing\|[^|]+\| +0\| +134\|", shown)
    assert re.search(r"\|%DLQ%billing\| +134\|", shown)
    drawn = ElementTree.parse(tmp_path / "messages.svg")
    assert [text.text for text in drawn.iter(f"{SVG}text")][-2:] == ["orders", "%DLQ%billing"]
    assert drawn.findall(f"{SVG}polyline")
    chart = [line for line in shown.splitlines() if "█" in line]
    assert [line.split("█")[0].strip() for line in chart] == ["card expired", "no such account"]
    assert sum(int(found[1]) for line in chart if (found := re.search(r"(\d+) messages", line))) == 134


def test_the_page_from_make_run_to_duckdb_runs(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker has the settings of ``make run``, but for its ports and its store."""
    monkeypatch.chdir(tmp_path)
    text = MANUAL.read_text()
    page = text[text.index("<!-- page -->") : text.index("## A walk through")].replace("/data/mq", str(tmp_path / "mq"))
    commands, program = re.findall(r"```(?:python)?\n(.*?)```", page, re.DOTALL)

    with broker_process(tmp_path / "store", "--config", str(MANUAL.parents[1] / "broker.toml")) as process:
        monkeypatch.setenv("VERNIERMQ_NAMESRV", process.namesrv)
        for line in commands.splitlines():
            words = shlex.split(line)
            if words[0] == "echo":
                Path(words[-1]).write_text(" ".join(words[1:-2]))
                continue
            done = CliRunner().invoke(main, words[1:])
            assert done.exit_code == 0, done.output
    capsys.readouterr()
    exec(compile(program, str(MANUAL), "exec"), {})

    shown = capsys.readouterr().out
    assert re.findall(r"(refund|sale) *│ *(\d+) │ *(\d+)", shown) == [("refund", "1", "5"), ("sale", "2", "50")]
    assert "no order at all" in shown


@pytest.mark.parametrize("page", [README, MANUAL], ids=["README", "manual"])
def test_the_first_example_runs(
    spark: SparkSession, producing: Producing, topic: str, source: Source, page: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    producing.send_many(topic, 7, TAGS="paid")
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    program = next(block for block in blocks if "verniermq.contrib.spark" in block)
    subscribe = '.option("subscribe", "orders")'
    assert subscribe in program
    here = f'.option("nameServer", "{source()["nameServer"]}").option("subscribe", "{topic}")'

    exec(compile(program.replace(subscribe, here), str(page), "exec"), {})

    assert re.search(r"\|paid\| +7\|", capsys.readouterr().out)


def test_every_option_and_column_is_described() -> None:
    text = MANUAL.read_text()

    for name in {*READ, *WRITE, *COLUMNS} - {"checkpointLocation"}:
        assert f"`{name}`" in text, f"docs/spark.md does not mention {name}"
