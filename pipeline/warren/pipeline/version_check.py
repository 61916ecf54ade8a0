"""Classes that go to executors and ask there for the same Warren, so that a machine without it says so in one line."""

from __future__ import annotations

import copyreg
import re
from abc import ABCMeta
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any


class VersionChecked(ABCMeta):
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


def explain_executor_error(error: str) -> str | None:
    """What is wrong with the Python of an executor that cannot run anything of the source, in one line.

    :param told: an error of Spark
    :return: None if it is about something else
    """
    wheel = "==".join(filter(None, ("warren[spark]", own_version())))
    remedy = f"install {wheel} on every executor, in the Python that PYSPARK_PYTHON names"
    if found := re.search(r"No module named '(pyarrow|pyspark|warren)\b", error):
        return f"the Python of an executor lacks {found[1]}: {remedy}"
    if found := re.search(
        r"Python in worker has different version: (\S+) than that in driver: ([\d.]+)", error
    ):
        return f"the Python of an executor is {found[1]}, and the driver's is {found[2]}: {remedy}"
    return None


def make_loader() -> Callable[[str, str, str], Any]:
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


def reduce_class(pickled_class: type) -> tuple[Any, ...]:
    return make_loader(), (pickled_class.__module__, pickled_class.__qualname__, own_version())


copyreg.pickle(VersionChecked, reduce_class)
