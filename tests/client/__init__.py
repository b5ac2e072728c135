"""Tests of the client."""

import pytest

# The scenarios are no test modules by their names, so pytest has to be told to explain their asserts.
pytest.register_assert_rewrite("tests.client.scenarios", "tests.client.crashes")
