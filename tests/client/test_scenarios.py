"""The whole client against a VernierMQ broker; ``tests/interop/test_python_client.py`` has Apache's."""

from __future__ import annotations

import pytest

from tests.client.place import Place
from tests.client.scenarios import SCENARIOS

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_scenario(scenario: str, place: Place) -> None:
    await SCENARIOS[scenario](place)
