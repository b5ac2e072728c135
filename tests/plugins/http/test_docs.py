"""What the documentation page says is so."""

from __future__ import annotations

import tomllib

from tests.plugins.documented import blocks
from verniermq.kernel.config.structure import structure
from verniermq.plugins.http import Config


def test_the_documented_settings_are_the_defaults() -> None:
    (block,) = blocks("http", "toml")
    assert structure(Config, tomllib.loads(block)["plugins"]["http"], "plugins.http") == Config()
