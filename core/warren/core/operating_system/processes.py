"""Forks of this process."""

from __future__ import annotations

from collections.abc import Callable

from warren.core.operating_system.portable_switch import present


def after_fork(call: Callable[[], object]) -> None:
    """Call a function in each child that this process forks; no effect on systems without fork."""
    register = present("os", "register_at_fork")
    if register is not None:
        register(after_in_child=call)


__all__ = ["after_fork"]
