"""``verniermq compact``: the many small files of a table become few large ones, in one commit.

A reader sees the files of one snapshot of the table, those before or those after, so each row once. The old files stay
until their snapshots expire. Files without a table have no snapshots: a reader could meet a row twice or not at all, so
they are left alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import attrs

from verniermq.contrib.arrow.errors import NoTableLibrary, TableError
from verniermq.contrib.arrow.tables import NOTE, table_name


class NothingThere(TableError):
    def __init__(self, out: Path, why: str) -> None:
        super().__init__(f"{out} has nothing to compact: {why}")


@attrs.frozen
class Compacted:
    """What became of one table."""

    table: str
    before: int
    """Files that were put together."""
    after: int
    removed: int
    """Files that no snapshot needs any more, and that are deleted."""


def compact(
    out: Path, topics: Sequence[str], target_bytes: int, expire: timedelta | None, catalog: str, namespace: str
) -> list[Compacted]:
    """
    Args:
        topics: all if empty
        expire: forget snapshots that are older, and delete the files that only they had

    Raises:
        NothingThere: there is no table.
        TableChanged: somebody else changed the table again and again.
    """
    try:
        form = (out / NOTE).read_text().strip()
    except FileNotFoundError:
        raise NothingThere(out, "there is no export") from None
    wanted = {table_name(topic) for topic in topics}
    try:
        if form == "delta":
            return _compact_delta(out, wanted, target_bytes, expire)
        if form == "iceberg":
            return _compact_iceberg(out, wanted, target_bytes, expire, catalog, namespace)
    except ImportError as error:
        raise NoTableLibrary(form, error) from error
    raise NothingThere(out, f"an export as {form} has no snapshots, and a reader could meet a row twice")


def _compact_delta(out: Path, wanted: set[str], target_bytes: int, expire: timedelta | None) -> list[Compacted]:
    from deltalake import DeltaTable

    done = []
    for folder in sorted((out / "messages").glob("topic=*")):
        name = folder.name.partition("=")[2]
        if not (folder / "_delta_log").is_dir() or (wanted and name not in wanted):
            continue
        table = DeltaTable(folder)
        figures = table.optimize.compact(target_size=target_bytes)
        removed = []
        if expire is not None:
            hours = int(expire.total_seconds() // 3600)
            removed = table.vacuum(hours, dry_run=False, enforce_retention_duration=False)
        done.append(Compacted(name, int(figures["numFilesRemoved"]), int(figures["numFilesAdded"]), len(removed)))
    return done


def _compact_iceberg(
    out: Path, wanted: set[str], target_bytes: int, expire: timedelta | None, catalog: str, namespace: str
) -> list[Compacted]:
    from pyiceberg.catalog import Catalog, load_catalog

    from verniermq.contrib.arrow.tables.iceberg import open_catalog
    from verniermq.contrib.arrow.tables.icebergfiles import expire as forget
    from verniermq.contrib.arrow.tables.icebergfiles import merge_files

    found: Catalog = load_catalog(catalog) if catalog else open_catalog(out)
    done = []
    for identifier in sorted(found.list_tables(namespace)):
        name = identifier[-1]
        if wanted and name not in wanted:
            continue
        table = found.load_table(identifier)
        before, after = merge_files(table, target_bytes, out / "messages" / f"topic={name}")
        removed = 0 if expire is None else forget(found.load_table(identifier), expire)
        done.append(Compacted(name, before, after, removed))
    return done
