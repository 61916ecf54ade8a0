"""How much memory there is for this process, and how much of it the process has: cgroups, else the machine's."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

CGROUPS: Final = Path("/sys/fs/cgroup")
LEAST: Final = 16 * 1024 * 1024
"""A limit below this is a mistake of its unit."""


def available_memory(cgroups: Path = CGROUPS, membership: Path = Path("/proc/self/cgroup")) -> int:
    """The bytes that this process may use: the smallest limit of its control groups (version 2 or 1), else all there are.

    Source: https://docs.kernel.org/admin-guide/cgroup-v2.html, `memory.max`, and cgroup-v1/memory.html.
    """
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([total, *_limits(cgroups, membership)])


def resident_memory() -> int:
    """The bytes of this process that are in memory; 0 where the system does not tell."""
    try:
        # Not by a file object, which costs five more system calls: who has just published waits for this.
        descriptor = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        try:
            pages = int(os.read(descriptor, 100).split()[1])
        finally:
            os.close(descriptor)
    except (OSError, IndexError, ValueError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def release_memory() -> None:
    """Give back to the system what the allocator holds without use, where it can (the C library of GNU)."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        return


def _limits(cgroups: Path, membership: Path) -> Iterator[int]:
    for folder, name in _groups(cgroups, membership):
        try:
            text = (folder / name).read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            yield int(text)


def _groups(cgroups: Path, membership: Path) -> Iterator[tuple[Path, str]]:
    """The folders that may limit this process: its own group and those above it; in a container the root is its own."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0" and not controllers:
            root, name = cgroups, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = cgroups / "memory", "memory.limit_in_bytes"
        else:
            continue
        group = root / path.strip("/")
        yield group, name
        yield from ((parent, name) for parent in group.parents if parent.is_relative_to(root))
