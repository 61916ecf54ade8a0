"""What the patterns that need an optional package share: one line says which extra to install."""

from __future__ import annotations

from importlib.util import find_spec

from warren.core.errors import missing_extra_error


def require_package(package: str, extra: str, purpose: str) -> None:
    """:raises UsageError: `package` is not installed."""
    try:
        there = find_spec(package) is not None
    except ValueError:  # What `sys.modules[package] = None` makes of it.
        there = False
    if not there:
        raise missing_extra_error(extra, purpose)


__all__ = ["require_package"]
