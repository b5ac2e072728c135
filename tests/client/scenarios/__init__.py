"""What the client does, as functions that run against any broker: ours in ``make test``, Apache's in the interop suite.

The name of a scenario is the sentence that is true when it passes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import ModuleType

from tests.client.place import Place
from tests.client.scenarios import (
    administering,
    consuming,
    ordering,
    popping,
    pulling,
    rebalancing,
    sending,
    transactions,
)

Scenario = Callable[[Place], Awaitable[None]]

MODULES = (sending, consuming, ordering, pulling, popping, rebalancing, transactions, administering)


def scenarios_of(module: ModuleType) -> dict[str, Scenario]:
    return {
        name: value
        for name, value in vars(module).items()
        if callable(value) and getattr(value, "__module__", "") == module.__name__ and not name.startswith("_")
    }


SCENARIOS: dict[str, Scenario] = {name: found for module in MODULES for name, found in scenarios_of(module).items()}
