"""What every test shares: async tests run on asyncio, the loop that the broker runs on, and no test is timed."""

from __future__ import annotations

import pytest
from hypothesis import settings

# How long an example takes says more about what else the machine does than about us.
settings.register_profile("verniermq", deadline=None)
settings.load_profile("verniermq")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
