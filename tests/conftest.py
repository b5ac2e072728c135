"""What every test shares: async tests run on asyncio, the loop that the broker runs on, and none waits for ever."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Generator
from typing import Any

import anyio
import pytest
from hypothesis import settings

# How long an example takes says more about what else the machine does than about us.
settings.register_profile("verniermq", deadline=None)
settings.load_profile("verniermq")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    """Cancel an async test a little before pytest-timeout ends it, which would leave its loop waiting for ever."""
    test = pyfuncitem.obj
    if inspect.iscoroutinefunction(test):
        marker = pyfuncitem.get_closest_marker("timeout")
        seconds = float(marker.args[0] if marker else pyfuncitem.config.getini("timeout"))

        @functools.wraps(test)
        async def limited(**arguments: Any) -> None:
            with anyio.fail_after(seconds * 0.9):
                await test(**arguments)

        pyfuncitem.obj = limited
    try:
        return (yield)
    finally:
        pyfuncitem.obj = test
