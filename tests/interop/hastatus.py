"""``verniermq ha status``, which tests ask often: in their own process, since a new one takes most of a second."""

from __future__ import annotations

import json
from typing import Any

from click.testing import CliRunner

from verniermq.cli import main


def ha_status(namesrv: str) -> dict[str, Any]:
    """What it says of the first broker; no replicas if it fails."""
    lines = CliRunner().invoke(main, ["ha", "status", "--json", "--namesrv", namesrv]).stdout.splitlines()
    return json.loads(lines[0]) if lines else {"term": 0, "master": 0, "replicas": []}


def is_led(status: dict[str, Any]) -> bool:
    return any(one["role"] == "master" and one["replica"] == status["master"] for one in status["replicas"])
