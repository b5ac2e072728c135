"""What the documentation page says is so."""

from __future__ import annotations

from tests.plugins.documented import settings
from verniermq.kernel.config.structure import structure
from verniermq.plugins.query import Config


def test_the_documented_settings_are_the_defaults() -> None:
    assert structure(Config, settings("query"), "plugins.query") == Config()
