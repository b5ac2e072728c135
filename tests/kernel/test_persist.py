"""Tables on their way to the disk: one that cannot be written harms nobody else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.kernel.pulling import until
from tests.plugins.peer import peer
from verniermq.kernel import JsonFile
from verniermq.kernel.tables import document
from verniermq.kernel.tables.document import Documents
from verniermq.testing import running_broker

NESTED: dict[str, Any] = {"deep": "enough"}
for _ in range(300):
    NESTED = {"member": NESTED}


def stumbling() -> Mapping[str, Any]:
    raise LookupError("a row is gone")


UNWRITABLE = {
    "nested": lambda: NESTED,
    "past 64 bits": lambda: {"number": int(1e308)},
    "half a surrogate pair": lambda: {"text": "\ud800"},
    "no snapshot": stumbling,
}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "RETRY_SECONDS", 0.001)
    monkeypatch.setattr(document, "LONGEST_RETRY_SECONDS", 0.002)


@pytest.mark.parametrize("name", UNWRITABLE)
@pytest.mark.usefixtures("quick")
async def test_a_table_that_cannot_be_written_ends_nothing(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_broker(tmp_path) as broker, peer(broker.address) as client:
        table = broker.documents.add(JsonFile(broker.store.path / "config" / "bad.json"), UNWRITABLE[name])
        table.touch()
        await until(lambda: table.failures > 2)
        await client.sent("orders")
        await broker.topics_document.saved()

        assert "orders" in json.loads((tmp_path / "config" / "topics.json").read_text())["topicConfigTable"]
        assert broker.documents.failures == table.failures
        assert not list((tmp_path / "config").glob("bad*"))
    assert f"cannot write {tmp_path}/config/bad.json: " in caplog.text


@pytest.mark.usefixtures("quick")
async def test_a_table_is_written_when_it_can_be_again(tmp_path: Path) -> None:
    rows: dict[str, Any] = {"number": int(1e308)}
    async with running_broker(tmp_path, plugins__enable=[]) as broker:
        table = broker.documents.add(JsonFile(broker.store.path / "config" / "table.json"), lambda: dict(rows))
        table.touch()
        await until(lambda: table.failures > 1)
        rows["number"] = 1
        with anyio.fail_after(30):
            await table.saved()

        assert JsonFile(broker.store.path / "config" / "table.json").load() == {"number": 1}


def test_at_the_end_every_other_table_is_still_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    documents = Documents()
    for number, snapshot in enumerate([*UNWRITABLE.values(), lambda: {"good": True}]):
        documents.add(JsonFile(tmp_path / f"{number}.json"), snapshot).touch()
    (tmp_path / "full").write_text("a file, where a directory should be")
    documents.add(JsonFile(tmp_path / "full" / "table.json"), dict).touch()
    documents.add(JsonFile(tmp_path / "last.json"), lambda: {"good": True}).touch()

    documents.save_now()

    assert JsonFile(tmp_path / f"{len(UNWRITABLE)}.json").load() == {"good": True}
    assert JsonFile(tmp_path / "last.json").load() == {"good": True}
    assert documents.failures == len(UNWRITABLE) + 1
    assert caplog.text.count("what changed since it was written last is lost") == len(UNWRITABLE) + 1
