"""Gauges of a node: memory, disk, descriptors and sockets in use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warren.core.operating_system.descriptors import count_open_descriptors

if TYPE_CHECKING:
    from warren.broker.management.management import Management


def node_gauges(management: Management) -> list[int]:
    """Return used memory and free disk space in KiB, and the numbers of descriptors and sockets in use."""
    resources = management.resources
    return [
        resources.memory_used // 1024,
        (resources.disk_free or 0) // 1024,
        count_open_descriptors(),
        management.admission.sockets,
    ]
