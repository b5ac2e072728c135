"""What may be done from the console."""

from __future__ import annotations

from typing import Final

from verniermq.contrib.console.action import ConsoleAction
from verniermq.contrib.console.actions import groups, letters, offsets, pending, topics

ACTIONS: Final[dict[str, ConsoleAction]] = {
    action.name: action
    for action in (*topics.ACTIONS, *groups.ACTIONS, *offsets.ACTIONS, *letters.ACTIONS, *pending.ACTIONS)
}
