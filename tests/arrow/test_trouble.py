"""What goes wrong around an export is told in one line, and nothing of a batch is half there."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable

from tests.arrow.conftest import Source
from tests.arrow.producing import Producing
from tests.arrow.test_export import FORMATS, bodies_in, export
from verniermq.cli import main
from verniermq.contrib.arrow.compaction import compact
from verniermq.contrib.arrow.tables.iceberg import open_catalog
from verniermq.kernel import RequestCode

LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
from verniermq.cli import main
main(sys.argv[2:])
"""
"""Files of this process end where a full disk would end them."""


@pytest.mark.parametrize("form", FORMATS)
def test_a_disk_that_is_full_ends_an_export_in_one_line_and_the_next_goes_on(
    producing: Producing, topic: str, source: Source, tmp_path: Path, form: str
) -> None:
    bodies = producing.send_many(topic, 5)
    export(tmp_path, source, topic, format=form)
    large = [os.urandom(90_000) for _ in range(5)]
    for body in large:
        producing.send(topic, body)
    arguments = ["export", str(tmp_path), "--namesrv", source()["nameServer"], "--topic", topic, "--format", form]

    full = subprocess.run(
        [sys.executable, "-c", LIMITED, "200000", *arguments], capture_output=True, text=True, check=False, timeout=120
    )
    kept = bodies_in(tmp_path, form, topic) if form != "jsonl" else bodies
    export(tmp_path, source, topic, format=form)

    said = (full.stdout + full.stderr).strip().splitlines()
    assert full.returncode == 2
    assert len(said) == 1, said
    assert "cannot be written" in said[0]
    assert "run the export again" in said[0]
    assert kept == sorted(bodies)
    if form != "jsonl":
        assert sorted(bodies_in(tmp_path, form, topic)) == sorted([*bodies, *large])


def test_a_topic_that_disappears_is_told_and_so_is_one_of_its_name(
    producing: Producing, topic: str, source: Source, tmp_path: Path
) -> None:
    bodies = producing.send_many(topic, 6)
    export(tmp_path, source, topic)
    arguments = ["export", str(tmp_path), "--namesrv", source()["nameServer"], "--topic", topic]
    for code in (RequestCode.DELETE_TOPIC_IN_BROKER, RequestCode.DELETE_TOPIC_IN_NAMESRV):
        producing.wire.ask(code, {"topic": topic})

    gone = CliRunner().invoke(main, arguments)
    producing.send_many(topic, 1, queues=2)
    another = CliRunner().invoke(main, arguments)

    assert gone.exit_code == another.exit_code == 2
    assert "does not exist on the name server" in gone.output
    assert "the topic was made anew" in another.output
    assert bodies_in(tmp_path, "parquet", topic) == sorted(bodies)


@pytest.mark.parametrize("form", ["iceberg", "delta"])
def test_readers_see_each_row_once_while_files_are_put_together(
    producing: Producing, topic: str, source: Source, tmp_path: Path, form: str
) -> None:
    expected = sorted(producing.send_many(topic, 60))
    export(tmp_path, source, topic, format=form, batch_rows=10)
    looks: list[list[bytes]] = []
    enough = threading.Event()

    def look_on() -> None:
        while not enough.is_set():
            looks.append(bodies_in(tmp_path, form, topic))

    reader = threading.Thread(target=look_on)
    reader.start()
    try:
        for target in (8_000, 20_000, 1 << 27):
            compact(tmp_path, [topic], target, None, "", "mq")
    finally:
        enough.set()
        reader.join()

    assert looks
    assert all(look == expected for look in looks)
    assert files_of(tmp_path, form, topic) <= 2


def files_of(out: Path, form: str, topic: str) -> int:
    if form == "delta":
        return len(DeltaTable(out / "messages" / f"topic={topic}").file_uris())
    return len(list(open_catalog(out).load_table(("mq", topic)).scan().plan_files()))
