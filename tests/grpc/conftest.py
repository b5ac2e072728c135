"""The broker runs on uvloop where it is installed, and so do these tests: its transports differ from asyncio's."""

from __future__ import annotations

from typing import Any

import pytest

from verniermq.kernel import backend_options


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", backend_options()
