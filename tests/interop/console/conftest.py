"""A browser for each test, and one that has never been here: Debian's, installed if it is missing."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Browser

from .browser import chromium

SCRIPT = Path(__file__).parents[1] / "chromium.sh"


@pytest.fixture(scope="session", autouse=True)
def installed() -> None:
    subprocess.run([str(SCRIPT)], check=True, timeout=600)


@pytest.fixture
async def browser(installed: None) -> AsyncIterator[Browser]:
    async with chromium() as started:
        yield started
