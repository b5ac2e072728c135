"""Files that decide what a broker does, and that anybody on the machine may change.

As ssh and sudo do it: what anybody may write is not trusted. A plugin's file is code that runs with the broker's
rights, so it is refused; a configuration is used, with a warning, since it may lie where permissions mean little (a
volume, a share), and a broker that does not start for that serves nobody.
"""

from __future__ import annotations

import shlex
import stat
from pathlib import Path


def open_to_anybody(path: Path) -> str | None:
    """How anybody may change a file, and what to run against it; ``None`` if only its owner and group may.

    A folder counts too: who may write there puts another file in its place, unless the sticky bit forbids it.
    """
    for place, what in ((path, "written"), (path.absolute().parent, "replaced")):
        try:
            mode = place.stat().st_mode
        except OSError:
            continue  # whoever reads it says what is wrong
        if mode & stat.S_IWOTH and not (stat.S_ISDIR(mode) and mode & stat.S_ISVTX):
            return (
                f"{path} may be {what} by anybody on this machine ({place} has mode {stat.S_IMODE(mode):04o}); "
                f"run: chmod o-w {shlex.quote(str(place))}"
            )
    return None
