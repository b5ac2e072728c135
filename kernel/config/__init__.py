"""Configuration: ``broker.toml``, environment variables and flags, read into frozen attrs classes.

Read in this order: ``units`` (sizes and durations), ``fields`` (what a setting is), ``schema`` (the kernel's own),
``structure`` (tables into classes, with exact complaints), ``load`` (the whole), ``render`` (the file's text).
"""

from verniermq.kernel.config.configuration import RESERVED_PLUGIN_KEYS, Configuration, Origin
from verniermq.kernel.config.environment import CONFIG_VARIABLE, variable
from verniermq.kernel.config.fields import SECRET, Setting, setting, settings_of
from verniermq.kernel.config.load import load
from verniermq.kernel.config.render import render, render_effective
from verniermq.kernel.config.schema import (
    SECTIONS,
    BrokerSettings,
    ClientSettings,
    GroupSettings,
    LogSettings,
    NamesrvSettings,
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
    "NamesrvSettings",
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
    "format_duration",
    "format_size",
    "load",
    "parse_duration",
    "parse_size",
    "render",
    "render_effective",
    "setting",
    "settings_of",
    "structure",
    "variable",
]
