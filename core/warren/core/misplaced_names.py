"""Error for a public name that is imported from the wrong package."""

from __future__ import annotations

from importlib import import_module
from typing import NoReturn


def raise_missing_name(package: str, other: str, name: str) -> NoReturn:
    """Raise the error for a name that a package lacks; called by the package's `__getattr__`.

    :param package: the package, such as `warren.sdk`.
    :param other: the package in which the name may be, such as `warren.patterns`.
    :param name: the missing name.
    :raises ImportError: if it is a public name of the other package; the text says what to write. An AttributeError would
        be replaced by `from package import name` with a text of Python's own.
    :raises AttributeError: otherwise.
    """
    if not name.startswith("_"):
        try:
            public = import_module(other).__all__
        except ImportError:
            public = []
        if name in public:
            raise ImportError(
                f"{name} is in {other}, not in {package}: write `from {other} import {name}`", name=name
            )
    raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name)
