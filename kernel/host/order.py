"""The order in which plugins are asked: as they were named, unless ``needs``, ``before`` or ``after`` say otherwise.

What a plugin declares and what its table in ``broker.toml`` says count alike. Nobody moves who need not.
"""

from __future__ import annotations

from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush

from verniermq.kernel.config import Configuration
from verniermq.kernel.errors import PluginError, nearest
from verniermq.kernel.host.discovery import Found


def in_order(found: Sequence[Found], configuration: Configuration, known: Sequence[str]) -> list[Found]:
    """Sort plugins; ``known`` is every name that ``broker.toml`` may speak of.

    Raises:
        PluginError: one needs a plugin that is not active, or they want to be before each other in a circle.
    """
    by_name = {plugin.name: plugin for plugin in found}
    graph: dict[str, set[str]] = {name: set() for name in by_name}
    for plugin in found:
        for need in plugin.declaration.needs:
            if need not in by_name:
                why = f"plugin {plugin.name!r} needs {need!r}, which is not active; enable it in [plugins]"
                raise PluginError(why, plugin.name)
            graph[plugin.name].add(need)
        place = configuration.place(plugin.name)
        for other in (*place.after, *place.before):
            if other not in known:
                why = f"[plugins.{plugin.name}] wants a place beside {other!r}, which does not exist"
                raise PluginError(f"{why}; {nearest(other, known)}", plugin.name)
        for other in (*plugin.declaration.after, *place.after):
            if other in by_name:
                graph[plugin.name].add(other)
        for other in (*plugin.declaration.before, *place.before):
            if other in by_name:
                graph[other].add(plugin.name)
    sorter = TopologicalSorter(graph)
    try:
        sorter.prepare()
    except CycleError as error:
        raise PluginError(f"plugins want to be before each other in a circle: {' → '.join(error.args[1])}") from error
    ordered: list[Found] = []
    position = {name: index for index, name in enumerate(by_name)}
    ready: list[tuple[int, str]] = []
    while sorter.is_active():
        for name in sorter.get_ready():
            heappush(ready, (position[name], name))
        first = heappop(ready)[1]  # one at a time, so that nobody moves who need not
        ordered.append(by_name[first])
        sorter.done(first)
    return ordered
