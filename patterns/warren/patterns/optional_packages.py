"""Check for optional packages, with an error that names the extra to install."""

from __future__ import annotations

from importlib.util import find_spec

from warren.core.errors import missing_extra_error


def require_package(package: str, extra: str, purpose: str) -> None:
    """Raise `UsageError` if `package` is not installed; its text names the `extra` to install and the `purpose`."""
    try:
        installed = find_spec(package) is not None
    except ValueError:  # Raised for `sys.modules[package] = None`.
        installed = False
    if not installed:
        raise missing_extra_error(extra, purpose)


__all__ = ["require_package"]
