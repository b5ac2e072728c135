"""The maps through which old segments are read: made when somebody reads one, and kept for a moment."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

from verniermq.kernel.commitlog.mapped import MappedFile, file_name

KEPT = 64
"""Old segments that stay mapped after somebody read them; the least recently read goes first."""


class ReadMaps:
    """The old segments of one log. Safe in any thread: a map lives as long as somebody holds it."""

    def __init__(self, directory: Path, segment_size: int) -> None:
        self._directory = directory
        self._segment_size = segment_size
        self._maps: OrderedDict[int, MappedFile] = OrderedDict()

    def get(self, start: int) -> MappedFile | None:
        """The segment that begins at ``start``; ``None`` when there is no such file."""
        maps = self._maps
        file = maps.get(start)
        if file is None:
            try:
                file = MappedFile(self._directory / file_name(start), self._segment_size, writable=False)
            except FileNotFoundError:
                return None
            maps[start] = file
            if len(maps) > KEPT:
                maps.popitem(last=False)
        else:
            try:
                maps.move_to_end(start)
            except KeyError:
                pass  # another thread just made room; our reference still holds the map
        return file

    def forget(self, start: int) -> None:
        self._maps.pop(start, None)

    def let_go(self) -> None:
        """Forget all of them, and take their pages out of our memory, even while somebody still holds one."""
        maps, self._maps = self._maps, OrderedDict()
        for file in list(maps.values()):
            file.let_go(0, file.size)

    def clear(self) -> None:
        self._maps.clear()
