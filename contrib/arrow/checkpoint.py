"""How far an export is, in the files of a Spark checkpoint: one can begin without Spark and go on with it, and back.

::

    metadata      {"id": "1f0c2d3e-…"}             of the export, for good
    offsets/7     v1 | {…} | {"orders": {"broker-a": {"0": 501}}}     where batch 7 ends; written before it runs
    commits/7     v1 | {…}                         batch 7 is done; written after it
    first         {"orders": …}                    where batch 0 begins; Spark has no such file, and is told each time

A batch with offsets and without a commit was cut short: it runs again, from the same offset to the same offset.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from pathlib import Path
from typing import Any, Final

import attrs

from verniermq.contrib.arrow.errors import TableError
from verniermq.contrib.arrow.offsets import Offsets, as_json, from_json

VERSION: Final = "v1"
KEPT: Final = 100
"""Batches that are kept in the checkpoint, as Spark does."""


class BadCheckpoint(TableError):
    def __init__(self, path: Path, why: object) -> None:
        super().__init__(
            f"{path} is not what an export's checkpoint has there: {why}; nothing was exported. To begin anew, use "
            "another folder, or remove the checkpoint and what was exported"
        )


@attrs.frozen
class ExportBatch:
    """Messages that are exported together: each batch is there as a whole, once."""

    export: str
    """The id of the export."""
    number: int
    start: Offsets
    end: Offsets

    @property
    def name(self) -> str:
        return batch_name(self.export, self.number)


def batch_name(export: str, number: int) -> str:
    return f"{export[:8]}-{number}"


class ExportCheckpoint:
    """
    Raises:
        BadCheckpoint: the folder has something else in it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for part in ("offsets", "commits"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        if not (folder / "metadata").exists():
            self._write(folder / "metadata", json.dumps({"id": str(uuid.uuid4())}))
        self.id = str(self._parsed(folder / "metadata", (folder / "metadata").read_text())["id"])

    def cut_short(self) -> ExportBatch | None:
        """The batch that began and did not end."""
        number = self._newest("offsets")
        if number < 0 or number == self._newest("commits"):
            return None
        return self.batch(number)

    def batch(self, number: int) -> ExportBatch:
        """A batch that began."""
        start = (self.first() or {}) if number == 0 else self._offsets(number - 1)
        return ExportBatch(self.id, number, start, self._offsets(number))

    def reached(self) -> Offsets | None:
        """Where the newest batch ends; ``None`` before the first."""
        number = self._newest("offsets")
        return None if number < 0 else self._offsets(number)

    def begin(self, start: Offsets, end: Offsets) -> ExportBatch:
        """Note the next batch, before anything of it is written."""
        number = self._newest("offsets") + 1
        if number == 0:
            self.note_first(start)
        about = {"batchWatermarkMs": 0, "batchTimestampMs": int(time.time() * 1000), "conf": {}}
        lines = (VERSION, json.dumps(about), json.dumps(as_json(end)))
        self._write(self._folder / "offsets" / str(number), "\n".join(lines))
        return ExportBatch(self.id, number, start, end)

    def commit(self, batch: ExportBatch) -> None:
        """Note that all of a batch is there."""
        lines = (VERSION, json.dumps({"nextBatchWatermarkMs": 0}))
        self._write(self._folder / "commits" / str(batch.number), "\n".join(lines))
        for part in ("offsets", "commits"):
            for number in self._numbers(part):
                if number <= batch.number - KEPT:
                    (self._folder / part / str(number)).unlink(missing_ok=True)
                    (self._folder / part / f".{number}.crc").unlink(missing_ok=True)

    def _numbers(self, part: str) -> list[int]:
        return [int(name) for name in os.listdir(self._folder / part) if name.isdecimal()]

    def _newest(self, part: str) -> int:
        return max(self._numbers(part), default=-1)

    @property
    def is_under_way(self) -> bool:
        """Whether a batch is done, or was begun after the first."""
        return self._newest("commits") >= 0 or self._newest("offsets") > 0

    def note_first(self, start: Offsets) -> None:
        """Note where batch 0 begins."""
        self._write(self._folder / "first", json.dumps(as_json(start)))

    def first(self) -> Offsets | None:
        """Where batch 0 begins; ``None`` where nothing noted it, as in exports of earlier versions."""
        path = self._folder / "first"
        return from_json(self._parsed(path, path.read_text())) if path.exists() else None

    def _offsets(self, number: int) -> Offsets:
        path = self._folder / "offsets" / str(number)
        lines = path.read_text().splitlines()
        if len(lines) != 3 or lines[0] != VERSION:
            raise BadCheckpoint(path, f"expected {VERSION} and two lines of JSON, found {lines[:3]}")
        try:
            return from_json(self._parsed(path, lines[2]))
        except ValueError as error:
            raise BadCheckpoint(path, error) from None

    @staticmethod
    def _parsed(path: Path, text: str) -> Any:
        try:
            found = json.loads(text)
        except ValueError as error:
            raise BadCheckpoint(path, f"no JSON: {error}") from None
        if not isinstance(found, dict):
            raise BadCheckpoint(path, f"expected an object, found {text[:80]!r}")
        return found

    @staticmethod
    def _write(path: Path, text: str) -> None:
        """All of it or nothing, whatever happens meanwhile."""
        half = path.with_name(f".{path.name}.half")
        with half.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        half.replace(path)
