"""Classes that go to executors and ask there for the same Warren, so that a machine without it says so in one line."""

from __future__ import annotations

import copyreg
from abc import ABCMeta
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any


class Travels(ABCMeta):
    """The metaclass of what Spark pickles: the class, and with it each object of it.

    Where a pickle of it is loaded, Warren must be there in the version that wrote it. Else loading raises an error named
    `PipelineError` that says what to install where; it comes out of the task as any error of the source does.
    """


def own_version() -> str:
    """The version of the installed distribution; empty if these are sources that nobody installed."""
    try:
        return version("warren")
    except PackageNotFoundError:
        return ""


def loader() -> Callable[[str, str, str], Any]:
    """What loads such a class in another process. It is nested, so that it goes there by value: by name it would be
    looked for in Warren."""

    def load(module: str, name: str, wanted: str) -> Any:
        import importlib
        import socket
        import sys
        from importlib.metadata import PackageNotFoundError, version

        place = f"{sys.executable} on {socket.gethostname()}"
        wheel = f"warren[spark]=={wanted}" if wanted else "warren[spark]"
        remedy = f"install {wheel} on every executor, in the Python that PYSPARK_PYTHON names"
        error = type("PipelineError", (RuntimeError,), {})
        try:
            found = version("warren")
        except PackageNotFoundError:  # none, or sources on a path, which carry no version
            found = ""
        if found and wanted and found != wanted:
            raise error(f"{place} has Warren {found}, and this job is of {wanted}: {remedy}")
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as missing:
            raise error(f"{place} lacks {missing.name}: {remedy}") from None

    return load


def reduced(travelling: type) -> tuple[Any, ...]:
    return loader(), (travelling.__module__, travelling.__qualname__, own_version())


copyreg.pickle(Travels, reduced)
