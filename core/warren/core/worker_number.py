"""Number of a worker process of `warren run`, which the supervisor passes in the environment."""

from __future__ import annotations

import os
from typing import Final

WORKER_VARIABLE: Final = "WARREN_RUN_WORKER"
"""Environment variable that holds the number of the worker and how many there are, such as `2/4`."""


def worker_number() -> str:
    """Return the number of this worker and how many there are, such as `2/4`; `-` if the process is no worker."""
    return os.environ.get(WORKER_VARIABLE) or "-"
