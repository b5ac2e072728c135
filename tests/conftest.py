"""What every test shares: async tests run on asyncio, the loop that the broker runs on."""

from __future__ import annotations

import pytest


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
