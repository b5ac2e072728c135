"""What operators ask for now and then: imported with the first request of one of them, so that a start is quick."""

from __future__ import annotations

from verniermq.kernel import Context, Handler
from verniermq.plugins.admin.connections import ConnectionRequests
from verniermq.plugins.admin.plugins import PluginRequests
from verniermq.plugins.admin.progress import ProgressRequests
from verniermq.plugins.admin.queues import QueueRequests
from verniermq.plugins.admin.rates import Rates
from verniermq.plugins.admin.reset import ResetRequests
from verniermq.plugins.admin.settings import SettingsRequests
from verniermq.plugins.admin.switches import SwitchRequests


def operators_handlers(broker: Context, rates: Rates) -> dict[int, Handler]:
    """By request code."""
    return {
        **ProgressRequests(broker, rates).handlers(),
        **ConnectionRequests(broker).handlers(),
        **ResetRequests(broker).handlers(),
        **SettingsRequests(broker).handlers(),
        **QueueRequests(broker).handlers(),
        **SwitchRequests().handlers(),
        **PluginRequests(broker).handlers(),
    }
