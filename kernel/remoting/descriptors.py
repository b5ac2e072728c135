"""File descriptors: how many a process may have, and how many of them are not for its peers."""

from __future__ import annotations


def descriptor_limit() -> int:
    """How many files and sockets this process may have open."""
    import resource  # which only Unix has: clients, which import the kernel's types, run elsewhere too

    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 30 if limit == resource.RLIM_INFINITY else limit


def kept_for_files(limit: int) -> int:
    """How many of them no peer gets."""
    return limit // 4


def most_queue_files(wanted: int) -> int:
    """How many files of consume queues may stay open: half of what is kept for files, so that the others find room."""
    return min(wanted, max(kept_for_files(descriptor_limit()) // 2, 1))
