"""Changed settings without a restart: a plugin's table in ``broker.toml`` may be edited while the broker runs.

The file is looked at every second. A file that cannot be used is reported once and changes nothing; a plugin
that implements ``settings_changed`` gets its new settings; for everything else a line says that it needs a restart.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

import anyio
import attrs

from verniermq.kernel.config import SECTIONS, Configuration
from verniermq.kernel.errors import VernierMQError
from verniermq.kernel.host import PluginHost

logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0


@attrs.define(eq=False)
class SettingsWatcher:
    """Watches the file of ``configuration``; ``read`` makes a configuration from it, as at the start."""

    host: PluginHost
    configuration: Configuration
    path: Path
    read: Callable[[], Configuration]
    _seen: tuple[int, int] | None = attrs.field(default=None, init=False)

    async def run(self) -> None:
        self._seen = self._stamp()
        while True:
            await anyio.sleep(LOOK_SECONDS)
            stamp = self._stamp()
            if stamp is not None and stamp != self._seen:
                self._seen = stamp
                self.reload()

    def _stamp(self) -> tuple[int, int] | None:
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return None  # an editor is replacing it
        return status.st_mtime_ns, status.st_size

    def reload(self) -> None:
        """Read the file again and pass on what changed."""
        try:
            changed = self.read()
            active = self.host.active
            configs = {name: changed.plugin(name, plugin.declaration.config) for name, plugin in active.items()}
        except VernierMQError as error:
            logger.error("the changed settings are not used: %s", error)
            return
        for section in SECTIONS:
            if getattr(changed, section) != getattr(self.configuration, section):
                logger.warning("[%s] in %s changed; it takes effect at the next start", section, self.path)
        self.configuration = changed
        for name, config in configs.items():
            plugin = self.host.active[name]
            if config == plugin.config:
                continue
            call = plugin.calls.get("settings_changed")
            if call is None:
                logger.warning("[plugins.%s] in %s changed; it takes effect at the next start", name, self.path)
                continue
            plugin.config = config
            call(config)
            logger.info("settings changed plugin=%s", name)
