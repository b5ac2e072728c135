"""Configuration: ``broker.toml``, environment variables and flags, read into frozen attrs classes.

Read in this order: ``units`` (sizes and durations), ``fields`` (what a setting is), ``schema`` (the kernel's own),
``structure`` (tables into classes, with exact complaints), ``load`` (the whole).
"""

from verniermq.kernel.config.configuration import RESERVED_PLUGIN_KEYS, Configuration, Origin, put
from verniermq.kernel.config.environment import CONFIG_VARIABLE, variable
from verniermq.kernel.config.fields import SECRET, Setting, setting, settings_of, without_secrets
from verniermq.kernel.config.load import configuration_of, load
from verniermq.kernel.config.schema import (
    SECTIONS,
    BrokerSettings,
    ClientSettings,
    GroupSettings,
    LogSettings,
    OffsetSettings,
    PluginPlace,
    PluginSettings,
    PullSettings,
    RemotingSettings,
    StoreSettings,
    TlsSettings,
    TopicSettings,
)
from verniermq.kernel.config.structure import structure
from verniermq.kernel.config.units import (
    Duration,
    Size,
    format_duration,
    format_size,
    parse_duration,
    parse_size,
)

__all__ = [
    "CONFIG_VARIABLE",
    "RESERVED_PLUGIN_KEYS",
    "SECRET",
    "SECTIONS",
    "BrokerSettings",
    "ClientSettings",
    "Configuration",
    "Duration",
    "GroupSettings",
    "LogSettings",
    "OffsetSettings",
    "Origin",
    "PluginPlace",
    "PluginSettings",
    "PullSettings",
    "RemotingSettings",
    "Setting",
    "Size",
    "StoreSettings",
    "TlsSettings",
    "TopicSettings",
    "configuration_of",
    "format_duration",
    "format_size",
    "load",
    "parse_duration",
    "parse_size",
    "put",
    "setting",
    "settings_of",
    "structure",
    "variable",
    "without_secrets",
]
