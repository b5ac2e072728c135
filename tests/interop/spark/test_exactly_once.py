"""Exactly once: an export and the broker are killed again and again while producers go on; its files have it all, once.

`make campaign KINDS=tables` does the same for hours, for each format in turn.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.campaign import tables

FORMATS = os.environ.get("FORMATS", "parquet").split(",")
"""Tables are for a run by hand, `FORMATS=iceberg,delta`: each format takes minutes."""


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("form", FORMATS)
def test_every_acknowledged_message_is_exported_exactly_once(tmp_path: Path, form: str) -> None:
    seed = random.randrange(1 << 32)

    outcome = tables.live(seed, tmp_path, form, kills=10, broker_kills=3)

    assert outcome.failures == [], f"seed {seed}: {dict(outcome.notes)}"
    assert outcome.checked > 1000
