"""RocketMQ's releases as clients write them in their requests (RocketMQ: ``MQVersion``)."""

from __future__ import annotations

from typing import Final

FIRST_RELEASE: Final = 212
"""The number of version 4.0.0's snapshots on the wire; from there on, each version has two, the second the release."""


def version_name(number: int) -> str:
    """``479`` as ``V5_3_3``."""
    if number < FIRST_RELEASE:
        return f"V{number}"
    version, is_release = divmod(number - FIRST_RELEASE, 2)
    major, rest = divmod(version, 100)
    return f"V{major + 4}_{rest // 10}_{rest % 10}{'' if is_release else '_SNAPSHOT'}"
