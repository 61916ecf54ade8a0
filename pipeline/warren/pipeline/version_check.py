"""Version check of classes that Spark pickles: an executor without the same Warren fails with a one-line error."""

from __future__ import annotations

import copyreg
import re
from abc import ABCMeta
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any


class VersionChecked(ABCMeta):
    """Metaclass of classes that Spark pickles.

    Unpickling such a class or one of its objects checks that the machine has the Warren version that pickled it.
    Otherwise it raises an error named `PipelineError` that says what to install where. Spark reports it as an error of
    the task.
    """


def own_version() -> str:
    """Return the version of the installed distribution; empty for sources that are not installed."""
    try:
        return version("warren")
    except PackageNotFoundError:
        return ""


def explain_executor_error(error: str) -> str | None:
    """Explain in one line why the Python of an executor cannot run the source.

    :param error: text of an error of Spark
    :return: None if the error has another cause
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
    """Return the function that loads such a class in another process.

    It is nested so that cloudpickle sends it by value; by name it would be looked up in Warren, which may be missing
    there.
    """

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
            raise error(f"{place} has Warren {found}, but the job was started with {wanted}: {remedy}")
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as missing:
            raise error(f"{place} lacks {missing.name}: {remedy}") from None

    return load


def reduce_class(pickled_class: type) -> tuple[Any, ...]:
    """Return the pickle form of a class: its loader, module, name and version."""
    return make_loader(), (pickled_class.__module__, pickled_class.__qualname__, own_version())


copyreg.pickle(VersionChecked, reduce_class)
