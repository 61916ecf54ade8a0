"""Switch `WARREN_PORTABLE`: use only what every operating system offers."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any, Final

VARIABLE: Final = "WARREN_PORTABLE"
PORTABLE: Final = os.environ.get(VARIABLE, "").strip().lower() in ("1", "true", "yes", "on")
"""True to use portable ways also where this system offers better ones. The switch costs speed and weakens no guarantee."""


def offered(module: str, name: str) -> Any:
    """Return an object of a Python module that only some systems have; None if it is missing, or PORTABLE is set.

    :param module: name of the module, which may be missing as well.
    """
    return None if PORTABLE else present(module, name)


def present(module: str, name: str) -> Any:
    """Return an object of a Python module that only some systems have; None if it is missing.

    For what has no equivalent portable way: PORTABLE has no effect.
    """
    try:
        return getattr(import_module(module), name, None)
    except ImportError:
        return None


__all__ = ["PORTABLE", "VARIABLE", "offered", "present"]
