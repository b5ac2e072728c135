"""Finds the packages, so that a new folder is shipped without anybody remembering to list it.

``contrib/example_plugin`` is left out: it is a distribution of its own, built and installed by the tests.
"""

import os
import sys
import zlib
from pathlib import Path

from setuptools import Extension, find_packages, setup

FOLDERS = ["kernel*", "protocol*", "plugins*", "client*", "cli*", "testing*", "contrib*"]

# Compiled only where it is asked for (make run asks if there is a compiler): an install needs none.
extensions = []
if os.environ.get("VERNIERMQ_COMPILE"):
    from Cython.Build import cythonize

    # Without the debugger's tables, which some builds of Python ask for, a compiler takes half as long.
    flags = [] if sys.platform == "win32" else ["-O2", "-g0", *os.environ.get("VERNIERMQ_COMPILE_FLAGS", "").split()]
    for source in (
        "kernel/accel/_lane.pyx", "kernel/commitlog/_records.pyx", "plugins/query/_entries.pyx", "client/_wire.pyx",
        "contrib/arrow/_pairs.pyx",
    ):  # fmt: skip
        # A broker tells by it whether what was compiled is still the source that lies beside it.
        mark = zlib.crc32(Path(source).read_bytes())
        name = f"verniermq.{source.removesuffix('.pyx').replace('/', '.')}"
        extensions.append(
            Extension(
                name, [source], define_macros=[("LANE_SOURCE", f"{mark}u")],
                extra_compile_args=flags, extra_link_args=flags,
            )
        )  # fmt: skip
    extensions = cythonize(extensions, build_dir="build/cython", quiet=True)

setup(
    ext_modules=extensions,
    packages=[f"verniermq.{name}" for name in find_packages(include=FOLDERS, exclude=["contrib.example_plugin*"])],
    # Beside this file, and not where the top-level module lies, among what is shipped.
    options={"egg_info": {"egg_base": "."}},
)
