"""Changed settings without a restart: a plugin's table in ``broker.toml`` may be edited while the broker runs.

The file, and those that ``VERNIERMQ_…_FILE`` variables name, are looked at every second. One that cannot be used is
reported once and changes nothing; a plugin that implements ``settings_changed`` gets its new settings; for everything
else a line says that it needs a restart.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import attrs

from verniermq.kernel.config import SECTIONS, Configuration
from verniermq.kernel.config.filestamps import FileStamps, watch_files
from verniermq.kernel.host.host import PluginHost

logger = logging.getLogger(__name__)


@attrs.define(eq=False)
class SettingsWatcher:
    """Watches the files of ``configuration``; ``read`` makes a configuration from them, as at the start."""

    host: PluginHost
    configuration: Configuration
    read: Callable[[], Configuration]
    _stamps: FileStamps = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._stamps = FileStamps(self.configuration.origin.files)

    async def run(self) -> None:
        await watch_files("settings are", self._stamps, self.reload)

    def reload(self) -> None:
        """Read the files again and pass on what changed.

        Raises:
            VernierMQError: they cannot be used; nothing changed.
        """
        changed = self.read()
        active = self.host.active
        configs = {name: changed.plugin(name, plugin.declaration.config) for name, plugin in active.items()}
        file = changed.origin.file
        for section in SECTIONS:
            if getattr(changed, section) != getattr(self.configuration, section):
                logger.warning("[%s] in %s changed; it takes effect at the next start", section, file)
        self.configuration = changed
        for name, config in configs.items():
            plugin = self.host.active[name]
            if config == plugin.config:
                continue
            if "settings_changed" not in plugin.calls:
                logger.warning(
                    "[plugins.%s] in %s changed; it takes effect at the next start", name, changed.origin.file
                )
                continue
            self.host.give_settings(plugin, config)
            logger.info("settings changed plugin=%s", name)
