"""Finds the packages, so that a new folder is shipped without anybody remembering to list it.

``contrib/example_plugin`` is left out: it is a distribution of its own, built and installed by the tests.
"""

from setuptools import find_packages, setup

FOLDERS = ["kernel*", "protocol*", "plugins*", "client*", "cli*", "testing*", "contrib*"]

setup(
    packages=[f"verniermq.{name}" for name in find_packages(include=FOLDERS, exclude=["contrib.example_plugin*"])],
    # Beside this file, and not where the top-level module lies, among what is shipped.
    options={"egg_info": {"egg_base": "."}},
)
