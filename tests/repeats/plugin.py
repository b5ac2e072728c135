"""Run each test of a session several times: ``-p tests.repeats.plugin``, with the number in the environment."""

from __future__ import annotations

import os

import pytest


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    times = range(int(os.environ["REPEATS_TIMES"]))
    metafunc.fixturenames.append("repetition")
    metafunc.parametrize("repetition", times, indirect=True, ids=[f"again{number}" for number in times])


@pytest.fixture
def repetition(request: pytest.FixtureRequest) -> int:
    number: int = request.param
    return number
