"""Memory that this process may use: the limit set by its control groups or the machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from warren.core.operating_system.memory import machine_memory

CGROUPS: Final = Path("/sys/fs/cgroup")
MIN_MEMORY_LIMIT: Final = 16 * 1024 * 1024
"""Smallest accepted memory limit in bytes; a lower one is taken for a mistake in its unit."""


def available_memory(cgroups: Path = CGROUPS, membership: Path = Path("/proc/self/cgroup")) -> int:
    """Return the bytes that this process may use: the smallest limit of its control groups, or the machine's memory.

    Control groups of version 2 and 1 are supported.

    Source: https://docs.kernel.org/admin-guide/cgroup-v2.html, `memory.max`, and cgroup-v1/memory.html.
    """
    return min([machine_memory(), *_limits(cgroups, membership)])


def _limits(cgroups: Path, membership: Path) -> Iterator[int]:
    for folder, name in _groups(cgroups, membership):
        try:
            limit = (folder / name).read_bytes().strip()
        except OSError:
            continue
        if limit.isdigit():
            yield int(limit)


def _groups(cgroups: Path, membership: Path) -> Iterator[tuple[Path, str]]:
    """Yield folder and file name of each memory limit that applies: the process's own control group and its parents.

    The root of the hierarchy is included, because in a container it is the container's own group.
    """
    try:
        lines = os.fsdecode(membership.read_bytes()).splitlines()
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
