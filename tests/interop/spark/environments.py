"""Pythons for a cluster's hosts: with VernierMQ's dependencies, and with VernierMQ itself or without."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def python_with_dependencies(folder: Path, *packages: str) -> Path:
    """A Python with our dependencies: a plain path in a .pth file brings packages, but no editable installs.

    Args:
        packages: what pip installs into it besides, from the registry or a folder
    """
    venv.create(folder, with_pip=False, symlinks=True)
    site = next(folder.glob("lib/python*/site-packages"))
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    if packages:
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "--target", str(site), *packages], check=True, timeout=300)
    python = folder / "bin" / "python"
    missing = subprocess.run(
        [python, "-c", "import pyarrow; import verniermq.kernel"], capture_output=True, check=False
    )
    has_ours = any("verniermq" in package for package in packages)
    assert has_ours or b"No module named 'verniermq'" in missing.stderr
    return python


def wheel(folder: Path) -> Path:
    """VernierMQ as pip installs it."""
    build = [sys.executable, "-m", "pip", "--quiet", "wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, timeout=300)
    return next(folder.glob("verniermq-*.whl"))
