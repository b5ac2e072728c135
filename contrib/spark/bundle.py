"""The source as one zip for Spark's ``--py-files``, for executors without VernierMQ installed.

Python finds a package without ``__init__.py`` in a zip only if the zip lists its folder, so folders are listed too.
"""

from __future__ import annotations

import importlib
import zipfile
from pathlib import Path
from typing import Final

PACKAGES: Final = ("verniermq.kernel", "verniermq.protocol", "verniermq.contrib.arrow", "verniermq.contrib.spark")


def write_bundle(file: Path) -> int:
    """Write the zip; return how many modules are in it."""
    count = 0
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for folder in ("verniermq/", "verniermq/contrib/"):
            archive.mkdir(folder)
        archive.writestr("verniermq/contrib/__init__.py", "")
        for package in PACKAGES:
            origin = importlib.import_module(package).__file__
            assert origin is not None
            root = Path(origin).parent
            for source in sorted(root.rglob("*.py")):
                if "autoload" in source.parts:
                    continue
                archive.write(source, f"{package.replace('.', '/')}/{source.relative_to(root).as_posix()}")
                count += 1
    return count
